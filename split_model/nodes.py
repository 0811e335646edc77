"""What may be asked of rows that branch, the same wherever a session's rows are. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from split_model.tree import Branching, Tree


def tree_behind(position: int, parents: Sequence[int], rows: int, most: int) -> tuple[Tree, Branching | None]:
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
