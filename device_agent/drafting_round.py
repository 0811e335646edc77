"""One round of drafting on the compute thread: from the deep hidden states that came back to the rows that go out next.

HAT's section 3.4: head, verdict, and the next draft. While the draft is verified, ``prepare`` drafts on (section 3.5).
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
class Outgoing:
    """Rows to be verified, and what must be forgotten before them.

    Attributes:
        begin: the position of the first row; what the middle holds from there on was not accepted.
        kept: where the last draft was a tree, those of its rows that were accepted; None where it was a chain.
        rows: ``[rows, hidden_size]``; None when the answer is complete.
        parents: of the rows, where the draft is a tree.
    """

    begin: int
    kept: tuple[int, ...] | None
    rows: torch.Tensor | None
    parents: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Turn:
    """What one round made: the tokens that were chosen, and what is to be sent.

    Attributes:
        streamed: rows of ``outgoing``, from the first on, that were handed out already.
    """

    steps: tuple[Step, ...]
    outgoing: Outgoing
    streamed: int = 0


class DraftingRounds:
    """The rounds of one answer, one after the other.

    Args:
        way: drafter and what is known of drafting with it; ``session`` was opened with its drafter.
        stream: called with rows that can be sent before the round is over.

    Attributes:
        tally: what drafting brought in this answer.
    """

    def __init__(
        self,
        session: ChainSession,
        chooser: Chooser,
        way: DraftingWay,
        end_ids: Collection[int],
        max_tokens: int,
        stream: Callable[[Outgoing], None],
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
        self._preparation: Preparation | None = None
        self._ended_at: float | None = None

    def turn(self, deep: torch.Tensor, waited_s: float | None) -> Turn:
        """The verdict, and the next draft.

        Args:
            deep: ``[1 + drafted, hidden_size]``: of the last chosen token and the draft; at first of the prompt's end.
            waited_s: from when the last row was sent to when the last of these came; None at first.
        """
        sent, tried, branching = self._sent, self._tried, bool(self._way.drafter.tree_nodes and self._sent)
        steps, path = self._verdict(deep)
        if waited_s is not None:
            self._count(path, waited_s, complete=steps[-1].reason is not None)
        row_of = {node: row for row, node in enumerate(sent, 1)}
        kept = (0, *(row_of[node] for node in path))
        token = None if steps[-1].reason else steps[-1].chosen.token
        begin = self._session.front.position + len(path)
        line = self._tree.settle(path, token, deep[list(kept)] if branching else deep[: len(kept)])
        outgoing, streamed = self._draft(token, line, Outgoing(begin, kept if branching else None, None))
        now = perf_counter()
        if self._ended_at is not None:
            self._way.length.seen(len(sent), len(path), now - self._ended_at, tried)
        self._ended_at = now
        return Turn(steps, outgoing, streamed)

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

    def _draft(self, token: int | None, line: Sequence[int], base: Outgoing) -> tuple[Outgoing, int]:
        """The rows that go out, and how many of them were streamed."""
        self._sent, self._tried, self._preparation = [], False, None
        if token is None:
            return base, 0
        tree, way, session = self._tree, self._way, self._session
        assert tree.root_row is not None and session.drafts is not None
        generated = self._chooser.generated
        room = min(session.positions - session.front.position, self._max_tokens - len(generated) - 1)
        streamed = 0

        def send(row: torch.Tensor) -> None:
            nonlocal streamed
            self._stream(Outgoing(base.begin, None, row))
            streamed += 1

        if room > 0:
            self._tried = way.length.begins()
        if self._tried:
            if way.drafter.tree_nodes:
                drafts = cast(TreeDraftSession, session.drafts)
                self._sent = self._maker.branches(generated, drafts.levels(), room)
            elif way.streams:
                send(tree.root_row)
                self._sent = self._maker.chain(generated, line, room, lambda node: send(tree.nodes[node].row))
            else:
                self._sent = self._maker.chain(generated, line, room, lambda node: None)
        rows = torch.cat([tree.root_row, *(tree.nodes[node].row for node in self._sent)])
        parents = None
        if way.drafter.tree_nodes and self._sent:
            row_of = {TRUNK: 0} | {node: row for row, node in enumerate(self._sent, 1)}
            parents = (TRUNK, *(row_of[tree.nodes[node].parent] for node in self._sent))
        return Outgoing(base.begin, base.kept, rows, parents), streamed

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
            tally.accepted += len(path)
            tally.prepared += prepared
            tally.hits += hit

    @property
    def _full(self) -> bool:
        return len(self._chooser.generated) >= self._max_tokens

    @property
    def _last(self) -> int:
        return self._chooser.generated[-1]
