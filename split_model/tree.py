"""Rows of one session that branch: several continuations side by side in one cache, each seeing only its own past.

A cache keeps rows in the order they came, so a row's *slot* is a number and not its position in the text. The slots
before ``trunk`` are one line, where the two are the same; behind it lie the *nodes* of a tree, numbered from 0 in the
order they came, each following a parent: another node, or ``TRUNK``, the last row of the trunk. One tree is handed to
everybody who has rows of its nodes, whichever layers they are of. Pure: no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TRUNK = -1
"""The parent of a node that follows the trunk itself."""


@dataclass(frozen=True)
class Branches:
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
        tokens: of every node, in order, where whoever adds the nodes knows them.
    """

    def __init__(self, trunk: int) -> None:
        assert trunk >= 0
        self.trunk = trunk
        self.parents: list[int] = []
        self.tokens: list[int] = []
        self._paths: list[tuple[int, ...]] = []
        self._children: dict[tuple[int, int], int] = {}
        self._line = 0
        """How many nodes, the first ones, are one line."""

    def __len__(self) -> int:
        return len(self.parents)

    def add(self, parents: Sequence[int], tokens: Sequence[int] = ()) -> Branches | None:
        """New nodes that follow ``parents``, in a tree of tokens with theirs; what they see, as ``sees`` says.

        Raises ``ValueError``, nothing being added, where a parent does not come before its child or tokens are missing.
        """
        first = len(self.parents)
        for node, parent in enumerate(parents, first):
            if not TRUNK <= parent < node:
                raise ValueError(f"node {node} cannot follow {parent}")
        if tokens and len(tokens) != len(parents):
            raise ValueError(f"{len(parents)} nodes cannot have {len(tokens)} tokens")
        if tokens:
            self.tokens += tokens
            for node, place in enumerate(zip(parents, tokens, strict=True), first):
                self._children[place] = node
        for node, parent in enumerate(parents, first):
            self._line += self._line == node == parent + 1
            self.parents.append(parent)
            self._paths.append((*self.path(parent), node))
        return self.sees(first)

    def tell(self, node: int, token: int) -> None:
        """The token of a node that was added with another in its place, before anybody knew it."""
        self.tokens[node] = token
        self._children[self.parents[node], token] = node

    def sees(self, first: int, end: int | None = None) -> Branches | None:
        """What the nodes from ``first`` to ``end`` see, for whoever runs them; None where they and all before them are
        one line: then slots are positions."""
        end = len(self) if end is None else end
        if end <= self._line:
            return None
        positions = tuple(self.trunk + len(path) - 1 for path in self._paths[:end])
        return Branches(self.trunk, positions, tuple(self._paths[first:end]))

    def position(self, node: int) -> int:
        """Where in the text a node stands; ``TRUNK`` is the position before the first."""
        return self.trunk + len(self.path(node)) - 1

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the trunk to ``node``, itself last; empty for ``TRUNK``."""
        return () if node == TRUNK else self._paths[node]

    def text_of(self, node: int) -> list[int]:
        """The tokens on the way to ``node``, its own last."""
        return [self.tokens[each] for each in self.path(node)]

    def child(self, node: int, token: int) -> int | None:
        """The node that follows ``node`` with ``token``, the last one that was added so."""
        return self._children.get((node, token))

    def line_of(self, node: int, token: int) -> list[int]:
        """The nodes that follow ``node`` where ``token`` is the first of them, and of several continuations of it the
        first, which is the likeliest; none where there is no such node."""
        line = [] if (first := self.child(node, token)) is None else [first]
        for number, parent in enumerate(self.parents):
            if line and parent == line[-1]:
                line.append(number)
        return line

    def follow(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The longest path of nodes that begins as ``tokens`` do."""
        node = TRUNK
        for token in tokens:
            found = self.child(node, token)
            if found is None:
                break
            node = found
        return self.path(node)

    def slots(self, nodes: Sequence[int]) -> list[int]:
        """The slots of nodes."""
        return [self.trunk + node for node in nodes]


def tree_behind(position: int, parents: Sequence[int], rows: int, most: int) -> tuple[Tree, Branches | None]:
    """``rows`` rows as nodes behind ``position`` that follow ``parents``, -1 being the last row before; and what they
    see, None where they are a line.

    Raises ``ValueError`` where they are more than ``most``, have not a parent each, or one comes before its parent.
    """
    if not len(parents) == rows <= most:
        raise ValueError(f"{rows} rows and {len(parents)} parents; rows that branch are at most {most}, with one each")
    tree = Tree(position)
    return tree, tree.add(parents)


def reach(tree: Tree) -> int:
    """Positions of the text up to the last that a node stands at."""
    return max(map(tree.position, range(len(tree))), default=tree.trunk - 1) + 1


def check_path(tree: Tree | None, nodes: Sequence[int]) -> None:
    """Raises ``ValueError`` unless there is a tree and ``nodes``, perhaps none, are a path of it from its trunk on."""
    if tree is None:
        raise ValueError("there are no rows that branch")
    if nodes and not (0 <= nodes[-1] < len(tree) and tree.path(nodes[-1]) == tuple(nodes)):
        raise ValueError(f"nodes {list(nodes)} are no path from the trunk on")
