"""What a device has thought ahead: a tree of tokens behind the last chosen one, and how it grows.

One tree serves the draft in flight and what is prepared while its verdict travels. Input submodel, drafter and verdict
are handed the same one, so nodes are numbered alike everywhere and no shallow row is computed twice. For the compute
thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from device_agent.chain.chain import ChainSession
from drafting.drafter import Guess
from drafting.proposing import Candidate
from split_model.device import joined_rows, put
from split_model.stack import Span
from split_model.tree import TRUNK, Branches, Tree


@dataclass
class Node:
    """One drafted token.

    Attributes:
        row: of the input submodel, ``[1, hidden_size]``.
        chance: calibrated, of being accepted once all before it are.
        guess: what the drafter says may follow; of use once the drafter knows the node.
        unseen: its token, int64 ``[1]`` where the layers are, if it was made before the host knew it.
    """

    candidate: Candidate
    chance: float
    row: torch.Tensor
    guess: Guess | None = None
    unseen: torch.Tensor | None = None


class Ahead:
    """The tree behind the last chosen token.

    Attributes:
        tree: how its nodes follow each other.
        nodes: all of them, in order.
        root_row: the input submodel's row of the last chosen token, ``[1, hidden_size]``; None before the first.
        embedding: what makes the rows of tokens that ``run`` takes.
    """

    def __init__(self, session: ChainSession) -> None:
        self.tree = Tree(0)
        self.nodes: list[Node] = []
        self.root_row: torch.Tensor | None = None
        self._front, cache = session.front, session.front.cache
        assert cache is not None
        self._cache = cache
        self.embedding = session.chain.parts.embedding
        self._drafts = session.drafts
        self._begun: torch.Tensor | None = None
        self._known = 0
        """Nodes that the drafter knows."""
        self._root_guess: Guess | None = None
        self._root_asked = False

    def add(self, parents: Sequence[int], candidates: Sequence[Candidate], chances: Sequence[float]) -> range:
        """New nodes, run by the input submodel in one batch; their numbers."""
        tokens, first = [each.token for each in candidates], len(self.nodes)
        rows = self.run(self.embedding.forward(tokens), self.tree.add(parents, tokens))
        self.nodes += map(Node, candidates, chances, rows.split_with_sizes([1] * len(tokens)))
        return range(first, len(self.nodes))

    @property
    def position(self) -> int:
        """Where the first node goes."""
        return self._front.position - (self._begun is not None)

    def begin(self, token: torch.Tensor) -> torch.Tensor:
        """The row of the token that is chosen next, ``token`` int64 ``[1]`` where the layers are, before anybody else
        knows which it is; ``settle`` must follow."""
        self._begun = self._next(self.embedding.forward(token.clamp(min=0)))
        return self._begun

    def rows(self, nodes: Sequence[int]) -> torch.Tensor:
        """The rows of the last chosen token and of nodes, ``[1 + nodes, hidden_size]``."""
        assert self.root_row is not None
        return joined_rows([self.root_row, *(self.nodes[node].row for node in nodes)])

    def guess(self, node: int) -> Guess | None:
        """What the drafter says may follow ``node``, or the last chosen token for ``TRUNK``."""
        assert self._drafts is not None
        if node == TRUNK:
            if not self._root_asked:
                self._root_guess, self._root_asked = self._drafts.guess(), True
            return self._root_guess
        if new := self.nodes[self._known :]:  # In one batch, however long nobody asked.
            guesses = self._drafts.extend(self.tree, joined_rows([each.row for each in new]), _unseen(new))
            self._known = len(self.nodes)
            for each, guess in zip(new, guesses, strict=True):
                each.guess = guess
        return self.nodes[node].guess

    def settle(self, path: Sequence[int], token: int | None, deep: torch.Tensor) -> list[int]:
        """A verdict: the nodes of ``path`` were accepted and then ``token`` was chosen; None: the answer ends first.

        deep: deep hidden states of the token before the first node and of ``path``, ``[len(path) + 1, hidden_size]``.

        Returns:
            the nodes that go on from ``token``, where that was prepared; renumbered, and all others forgotten.
        """
        tree = self.tree
        found = tree.line_of(path[-1] if path else TRUNK, token) if token is not None else []
        final, line = [*path, *found[:1]], found[1:]
        begun, self._begun = self._begun, None
        if begun is not None and token is None:
            self._front.position -= 1
            self._cache.truncate(self._front.position)
        if self.nodes:
            self._cache.keep(tree.trunk, tree.slots([*final, *line]))
            self._front.position += len(final)
        tokens, rows = [tree.tokens[node] for node in final], [self.nodes[node].row for node in final]
        if token is not None and not found:
            tokens.append(token)
            rows.append(begun if begun is not None else self._next(self.embedding.forward([token])))
        if token is not None:
            self.root_row = rows[-1]
        if self._drafts is None:
            pass
        elif tokens:
            self._drafts.observe(tokens, joined_rows(rows), deep[: len(tokens)])
        else:  # Nothing new, and nothing drafted is needed any more: it may be kept for long.
            self._drafts.truncate(self._drafts.position)
        self.nodes = [self.nodes[node] for node in line]
        self.tree, self._known = Tree(self._front.position), 0
        self.tree.add(range(-1, len(line) - 1), [tree.tokens[node] for node in line])
        self._root_guess, self._root_asked = None, False
        return list(range(len(line)))

    def _next(self, row: torch.Tensor) -> torch.Tensor:
        row = self.run(row)
        self._front.position += 1
        return row

    def run(self, rows: torch.Tensor, branching: Branches | None = None) -> torch.Tensor:
        """Run rows, the next ones or nodes, which count once they are kept. Raises ``CacheFull``."""
        front = self._front
        return front.stack.forward(rows, [Span(self._cache, len(rows), branching)], sources=front.sources)


def _unseen(nodes: Sequence[Node]) -> torch.Tensor | None:
    """The tokens of nodes where the host does not know all of them yet, int64 ``[nodes]`` where their rows are."""
    if all(each.unseen is None for each in nodes):
        return None
    given = (each.unseen if each.unseen is not None else torch.tensor([each.candidate.token]) for each in nodes)
    return torch.cat([put(token, node.row.device) for token, node in zip(given, nodes, strict=True)])
