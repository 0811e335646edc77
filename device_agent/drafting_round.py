"""One round of drafting on the compute thread: from the deep hidden states that came back to the rows that go out next.

HAT's section 3.4: head and verdict, then the next draft, so that chosen tokens need not wait for it. While the draft is
verified, ``prepare`` drafts on (section 3.5).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import cast

import torch

from device_agent.chain import ChainSession
from device_agent.choosing import Chooser
from device_agent.draft_making import DraftMaker
from device_agent.draft_tree import DraftTree
from device_agent.drafting_way import DraftingWay, Tally
from device_agent.generation import Step
from device_agent.preparation import Preparation
from drafting.drafter import TreeDraftSession
from drafting.proposing import Proposer
from drafting.verification import Rule, verify, walk
from split_model.tree import TRUNK


@dataclass(frozen=True)
class Turn:
    """A verdict.

    Attributes:
        steps: the tokens that were chosen.
        accepted: how many of them, the first ones, were drafted.
        begin: where the last of them goes; what the middle submodel holds from there on was not accepted.
        kept: where the last draft was a tree, those of its rows that were accepted; None where it was a chain.
        row: of the token that was chosen last, ``[1, hidden_size]``; None when the answer is complete.
        drafts: whether a draft is to be made behind it.
    """

    steps: tuple[Step, ...]
    accepted: int
    begin: int
    kept: tuple[int, ...] | None
    row: torch.Tensor | None
    drafts: bool


@dataclass(frozen=True)
class Draft:
    """Rows to be verified.

    Attributes:
        rows: ``[1 + drafted, hidden_size]``, the last chosen token's first.
        parents: of the rows, where the draft is a tree.
        streamed: how many of them, the first ones, were handed out already.
    """

    rows: torch.Tensor
    parents: tuple[int, ...] | None
    streamed: int


class DraftingRounds:
    """The rounds of one answer, one after the other.

    Args:
        way: drafter and what is known of drafting with it; ``session`` was opened with its drafter.
        stream: called with rows that can be sent before the draft is complete.

    Attributes:
        tally: what drafting brought in this answer; accepted tokens count once they are read.
        begin: where the token that was chosen last goes: all before it is final.
    """

    def __init__(
        self,
        session: ChainSession,
        chooser: Chooser,
        way: DraftingWay,
        end_ids: Collection[int],
        max_tokens: int,
        stream: Callable[[torch.Tensor], None],
    ) -> None:
        assert session.drafts is not None
        self.tally = Tally()
        self._session = session
        self._chooser = chooser
        self._way = way
        self._ends = end_ids
        self._max_tokens = max_tokens
        self._stream = stream
        # One noise for all branches of a tree; drawn drafts are for chains.
        self._rule: Rule = "keyed" if way.drafter.tree_nodes else way.settings.rule
        proposer = Proposer(chooser.params, chooser.prompt, chooser.seed, self._rule)
        self._tree = DraftTree(session, session.drafts)
        self._maker = DraftMaker(self._tree, proposer, way, not chooser.params.is_greedy, end_ids)
        self._sent: list[int] = []
        """The nodes that are being verified, in the order of their rows."""
        self._tried = False
        self._line: list[int] = []
        """Nodes that were prepared for what was chosen."""
        self.begin = 0
        self._preparation: Preparation | None = None
        self._ended_at: float | None = None

    def turn(self, deep: torch.Tensor, waited_s: float | None) -> Turn:
        """The verdict on a draft.

        Args:
            deep: ``[1 + drafted, hidden_size]``: of the last chosen token and the draft; at first of the prompt's end.
            waited_s: from when the last row was sent to when the last of these came; None at first.
        """
        sent, branching = self._sent, bool(self._way.drafter.tree_nodes and self._sent)
        steps, path = self._verdict(deep)
        if waited_s is not None:
            self._count(path, waited_s, complete=steps[-1].reason is not None)
        row_of = {node: row for row, node in enumerate(sent, 1)}
        kept = (0, *(row_of[node] for node in path))
        token = None if steps[-1].reason else steps[-1].chosen.token
        self.begin = self._session.front.position + len(path)
        self._line = self._tree.settle(path, token, deep[list(kept)] if branching else deep[: len(kept)])
        now = perf_counter()
        if self._ended_at is not None:  # From verdict to verdict: a draft's own making is part of what it takes.
            self._way.length.seen(len(sent), len(path), now - self._ended_at, self._tried)
        self._ended_at = now
        self._sent, self._preparation = [], None
        self._tried = token is not None and self._room > 0 and self._way.length.begins()
        row = self._tree.root_row if token is not None else None
        return Turn(steps, len(path), self.begin, kept if branching else None, row, self._tried)

    def draft(self) -> Draft:
        """The draft behind the token that was chosen last."""
        tree, way = self._tree, self._way
        assert tree.root_row is not None and self._tried
        generated = self._chooser.generated
        streamed = 0

        def send(row: torch.Tensor) -> None:
            nonlocal streamed
            self._stream(row)
            streamed += 1

        if way.drafter.tree_nodes:
            drafts = cast(TreeDraftSession, self._session.drafts)
            self._sent = self._maker.branches(generated, drafts.levels(), self._room)
        elif way.streams:
            send(tree.root_row)
            self._sent = self._maker.chain(generated, self._line, self._room, lambda node: send(tree.nodes[node].row))
        else:
            self._sent = self._maker.chain(generated, self._line, self._room, lambda node: None)
        rows = torch.cat([tree.root_row, *(tree.nodes[node].row for node in self._sent)])
        parents = None
        if way.drafter.tree_nodes and self._sent:
            row_of = {TRUNK: 0} | {node: row for row, node in enumerate(self._sent, 1)}
            parents = (TRUNK, *(row_of[tree.nodes[node].parent] for node in self._sent))
        return Draft(rows, parents, streamed)

    def prepare(self) -> bool:
        """Draft one token further for every verdict that is likely; False when that is enough.

        Nothing where this round was not drafted for. Nor for blocks: their verdict depends on the noise of all drafted
        tokens, so what is drawn with the same noise for another verdict would not be drawn independently of it.
        """
        if not self._tried or self._rule == "block":
            return False
        if self._preparation is None:
            generated, kind = self._chooser.generated, self._way.settings.prepare
            self._preparation = Preparation(self._tree, self._maker, generated, self._sent, kind)
        return self._preparation.step()

    def _verdict(self, deep: torch.Tensor) -> tuple[tuple[Step, ...], list[int]]:
        """The tokens that are chosen, and the nodes among them that stand in the text before the last of them."""
        chooser, nodes = self._chooser, [self._tree.nodes[node] for node in self._sent]
        logits = self._session.chain.parts.head.forward(deep)
        given = chooser.params, chooser.prompt, chooser.generated, chooser.seed
        if self._rule == "keyed" or not nodes:
            row_of = {TRUNK: TRUNK} | {node: row for row, node in enumerate(self._sent)}
            walked = walk(logits, [row_of[each.parent] for each in nodes], [each.token for each in nodes], *given)
            tokens, rows = walked.tokens, walked.nodes
        else:
            verdict = verify(logits, [each.candidate for each in nodes], self._rule, *given)
            tokens, rows = verdict.tokens, tuple(range(verdict.accepted))
        steps: list[Step] = []
        for token, row in zip(tokens, (0, *(each + 1 for each in rows)), strict=True):
            chosen = chooser.take(token, logits[row])
            ended = token in self._ends
            steps.append(Step(chosen, "stop" if ended else "length" if self._full else None))
            if steps[-1].reason:
                break
        return tuple(steps), [self._sent[row] for row in rows[: len(steps) - 1]]

    def _count(self, path: Sequence[int], waited_s: float, complete: bool) -> None:
        """Learn from a verdict."""
        way, sampled = self._way, not self._chooser.params.is_greedy
        way.costs.verified(1 + len(self._sent), waited_s)
        if not way.drafter.tree_nodes:
            judged = self._sent[: len(path) + (not complete)]
            for node in judged:
                candidate = self._tree.nodes[node].candidate
                way.calibration.seen(candidate.source, sampled, candidate.weight, node in path)
        prepared = self._preparation is not None and self._preparation.begun
        hit = prepared and not complete and self._tree.child(path[-1] if path else TRUNK, self._last) is not None
        for tally in (self.tally, way.tally):
            tally.rounds += 1
            tally.proposed += len(self._sent)
            tally.prepared += prepared
            tally.hits += hit

    @property
    def _room(self) -> int:
        """Tokens that may be drafted: as many as there are positions, and tokens that are still wanted."""
        left = self._session.positions - self._session.front.position
        nodes, middle = self._way.drafter.tree_nodes, self._session.chain.middle
        if nodes and (left < nodes or (middle is not None and middle.max_rows <= nodes)):
            return 0  # A tree goes whole or not at all, and takes as many slots as it has nodes.
        return min(left, self._max_tokens - len(self._chooser.generated) - 1)

    @property
    def _full(self) -> bool:
        return len(self._chooser.generated) >= self._max_tokens

    @property
    def _last(self) -> int:
        return self._chooser.generated[-1]
