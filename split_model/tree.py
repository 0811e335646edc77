"""Rows of one session that branch: several continuations side by side in one cache, each seeing only its own past.

A cache keeps rows in the order they came, so a row's *slot* is a number and not its position in the text. The slots
before ``trunk`` are one line, where the two are the same; behind it lie the *nodes* of a tree, numbered from 0 in the
order they came, each following a parent: another node, or ``TRUNK``, the last row of the trunk. Pure: no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TRUNK = -1
"""The parent of a node that follows the trunk itself."""


@dataclass(frozen=True)
class Branching:
    """What the new rows of a step see, where they are not simply the next positions of one line.

    Attributes:
        trunk: slots from 0 on that all rows see (less what a sliding window hides).
        positions: of every node so far, the new rows last.
        seen: for each new row the nodes that it sees, itself last.
    """

    trunk: int
    positions: tuple[int, ...]
    seen: tuple[tuple[int, ...], ...]

    @property
    def rows(self) -> int:
        """How many rows are new."""
        return len(self.seen)

    @property
    def length(self) -> int:
        """Slots once the new rows are stored."""
        return self.trunk + len(self.positions)


class Tree:
    """The nodes behind a trunk.

    Attributes:
        trunk: how many rows the line before the first node has.
        parents: of every node, in order.
    """

    def __init__(self, trunk: int) -> None:
        assert trunk >= 0
        self.trunk = trunk
        self.parents: list[int] = []
        self._paths: list[tuple[int, ...]] = []
        self._line = True

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def is_line(self) -> bool:
        """Whether each node follows the one before it: then slots are positions."""
        return self._line

    def check(self, parents: Sequence[int]) -> None:
        """Raises ``ValueError`` where a parent of new nodes does not come before its child."""
        for number, parent in enumerate(parents, len(self.parents)):
            if not TRUNK <= parent < number:
                raise ValueError(f"node {number} cannot follow {parent}")

    def add(self, parents: Sequence[int]) -> Branching | None:
        """New nodes that follow ``parents``; None where they go on with one line and nothing has branched yet.

        Raises ``ValueError`` as ``check`` does, nothing being added.
        """
        self.check(parents)
        first = len(self.parents)
        for number, parent in enumerate(parents, first):
            self._line &= parent == number - 1
            self.parents.append(parent)
            self._paths.append((*(self._paths[parent] if parent != TRUNK else ()), number))
        if self._line:
            return None
        positions = tuple(self.trunk + len(path) - 1 for path in self._paths)
        return Branching(self.trunk, positions, tuple(self._paths[first:]))

    def position(self, node: int) -> int:
        """Where in the text a node stands; ``TRUNK`` is the position before the first."""
        return self.trunk - 1 if node == TRUNK else self.trunk + len(self._paths[node]) - 1

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the trunk to ``node``, itself last; empty for ``TRUNK``."""
        return () if node == TRUNK else self._paths[node]

    def slots(self, nodes: Sequence[int]) -> list[int]:
        """The slots of nodes."""
        return [self.trunk + node for node in nodes]
