"""The tokens that a device has thought ahead: nodes behind the last chosen token, with all that is known of them.

One tree serves the draft in flight and what is prepared while its verdict travels. Its nodes are numbered alike here,
in the input submodel's session and in the drafter's, so no shallow row is computed twice. For the compute thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from device_agent.chain import ChainSession
from drafting.drafter import DraftSession, Guess
from drafting.proposing import Candidate
from split_model.tree import TRUNK


@dataclass
class Node:
    """One drafted token.

    Attributes:
        row: of the input submodel, ``[1, hidden_size]``.
        chance: calibrated, of being accepted once all before it are.
        guess: what the drafter says may follow; of use once the drafter knows the node.
    """

    parent: int
    candidate: Candidate
    chance: float
    row: torch.Tensor
    guess: Guess | None = None

    @property
    def token(self) -> int:
        """Its token id."""
        return self.candidate.token


class DraftTree:
    """The nodes behind the last chosen token.

    Attributes:
        nodes: all of them, in order.
        root_row: the input submodel's row of the last chosen token, ``[1, hidden_size]``.
    """

    def __init__(self, session: ChainSession, drafts: DraftSession) -> None:
        self.nodes: list[Node] = []
        self.root_row: torch.Tensor | None = None
        self._front = session.front
        self._embedding = session.chain.parts.embedding
        self._drafts = drafts
        self._children: dict[tuple[int, int], int] = {}
        self._known = 0
        """Nodes that the drafter knows."""
        self._root_guess: Guess | None = None
        self._root_asked = False

    def add(self, parents: Sequence[int], candidates: Sequence[Candidate], chances: Sequence[float]) -> list[int]:
        """New nodes, run by the input submodel in one batch; their numbers."""
        rows = self._front.branch_now(self._embedding.forward([each.token for each in candidates]), parents)
        first = len(self.nodes)
        for at, (parent, candidate, chance) in enumerate(zip(parents, candidates, chances, strict=True)):
            self._children[parent, candidate.token] = first + at
            self.nodes.append(Node(parent, candidate, chance, rows[at : at + 1]))
        return list(range(first, len(self.nodes)))

    def child(self, node: int, token: int) -> int | None:
        """The node that follows ``node`` with ``token``."""
        return self._children.get((node, token))

    def path(self, node: int) -> list[int]:
        """The nodes down to ``node``, itself last; none for ``TRUNK``."""
        found: list[int] = []
        while node != TRUNK:
            found.append(node)
            node = self.nodes[node].parent
        return found[::-1]

    def tokens(self, node: int) -> list[int]:
        """The tokens on the way to ``node``, its own last."""
        return [self.nodes[each].token for each in self.path(node)]

    def guess(self, node: int) -> Guess | None:
        """What the drafter says may follow ``node``, or the last chosen token for ``TRUNK``."""
        if node == TRUNK:
            if not self._root_asked:
                self._root_guess, self._root_asked = self._drafts.guess(), True
            return self._root_guess
        self._catch_up()
        return self.nodes[node].guess

    def settle(self, path: Sequence[int], token: int | None, deep: torch.Tensor) -> list[int]:
        """A verdict: the nodes of ``path`` were accepted and then ``token`` was chosen; None: the answer ends first.

        deep: deep hidden states of the token before the first node and of ``path``, ``[len(path) + 1, hidden_size]``.

        Returns:
            the nodes that go on from ``token``, where that was prepared; renumbered, and all others forgotten.
        """
        tokens = [self.nodes[node].token for node in path]
        rows = [self.nodes[node].row for node in path]
        hit = self.child(path[-1] if path else TRUNK, token) if token is not None else None
        line: list[int] = []
        if hit is not None:
            line = self._line(hit)
            self._front.keep_now([*path, hit], line)
            self.root_row = self.nodes[hit].row
        else:
            self._front.keep_now(path)
            if token is not None:
                self.root_row = self._front.forward_now(self._embedding.forward([token]))
        if token is not None:
            assert self.root_row is not None
            tokens, rows = [*tokens, token], [*rows, self.root_row]
        if tokens:
            self._drafts.observe(tokens, rows[0] if len(rows) == 1 else torch.cat(rows), deep[: len(tokens)])
        else:  # Nothing new, and nothing drafted is needed any more: it may be kept for long.
            self._drafts.truncate(self._drafts.position)
        kept = [self.nodes[node] for node in line]
        self.nodes, self._children, self._known = [], {}, 0
        self._root_guess, self._root_asked = None, False
        for at, node in enumerate(kept):
            node.parent, node.guess = at - 1, None
            self._children[at - 1, node.token] = at
            self.nodes.append(node)
        return list(range(len(kept)))

    def line_of(self, node: int, token: int) -> list[int]:
        """The nodes that follow ``node`` where ``token`` is the first of them; none where there is no such node."""
        first = self.child(node, token)
        return [] if first is None else [first, *self._line(first)]

    def _line(self, node: int) -> list[int]:
        """What was prepared to follow ``node``: of several continuations the first, which is the likeliest."""
        following: dict[int, int] = {}
        for number, each in enumerate(self.nodes):
            following.setdefault(each.parent, number)
        line: list[int] = []
        while (next_node := following.get(node)) is not None:
            line.append(next_node)
            node = next_node
        return line

    def _catch_up(self) -> None:
        """Tell the drafter of the nodes it does not know, all in one batch."""
        new = self.nodes[self._known :]
        if not new:
            return
        rows = new[0].row if len(new) == 1 else torch.cat([node.row for node in new])
        guesses = self._drafts.extend([node.parent for node in new], [node.token for node in new], rows)
        self._known = len(self.nodes)
        for node, guess in zip(new, guesses, strict=True):
            node.guess = guess
