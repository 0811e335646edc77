"""The nodes behind the last observed token, with what was said about each."""

from __future__ import annotations

from collections.abc import Sequence

from drafting.drafter import Guess
from split_model.tree import TRUNK, Branching, Tree

NODE_SLOTS = 256
"""Nodes that a text can have at a time, where nodes take room in a cache. One more, and ``extend`` raises CacheFull."""


class Nodes:
    """A tree of nodes with their tokens.

    Attributes:
        tree: where they stand and what they see.
        guesses: what may follow each of them.
    """

    def __init__(self, trunk: int) -> None:
        """trunk: rows that all nodes see."""
        self.tree = Tree(trunk)
        self.guesses: list[Guess] = []
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tree)

    def add(self, parents: Sequence[int], tokens: Sequence[int]) -> Branching | None:
        """As ``Tree.add``, which raises ``ValueError`` for a parent that does not come before its child."""
        first = len(self.tree)
        branching = self.tree.add(parents)
        for node, place in enumerate(zip(parents, tokens, strict=True), first):
            self._children.setdefault(place, node)
        return branching

    def follow(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The longest path of nodes that begins as ``tokens`` do."""
        path: list[int] = []
        node = TRUNK
        for token in tokens:
            child = self._children.get((node, token))
            if child is None:
                break
            path.append(child)
            node = child
        return tuple(path)

    @property
    def nbytes(self) -> int:
        """Bytes of the logits that are held."""
        return sum(guess.logits.nbytes for guess in self.guesses if guess.logits is not None)
