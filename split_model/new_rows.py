"""Where the new rows of a session stand: the one thing that positions, sight and caches are all told of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from split_model.tree import Branches


class NewRows(Protocol):
    """Consecutive rows of one session in a step."""

    @property
    def start(self) -> int:
        """The slot of the first: its position too, unless rows branch."""
        ...

    @property
    def rows(self) -> int:
        """How many there are."""
        ...

    @property
    def branching(self) -> Branches | None:
        """Where they stand and what they see, when they are not simply the next positions."""
        ...


def positions_of(new: NewRows) -> Sequence[int]:
    """The absolute position of each row."""
    if new.branching is None:
        return range(new.start, new.start + new.rows)
    return new.branching.positions[-new.rows :]
