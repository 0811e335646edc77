"""What every attack is: rows that crossed the wire go in, guesses at their tokens come out. Pure but for the time.

Who attacks sees what a cloud server sees: rows and positions. What else he knows (weights, texts) he is made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import torch

UNTRIED: Final = -1
"""In place of a token's id, where the time was over before the row was looked at."""


@dataclass(frozen=True)
class Sent:
    """The rows of one forward, ``[count, hidden_size]`` of the wire's dtype, the first at ``position``. What was sent
    before for this and later positions is forgotten."""

    position: int
    rows: torch.Tensor


@dataclass(frozen=True)
class Reading:
    """What an attack makes of the rows of one session.

    Attributes:
        guesses: int64 ``[rows]``, the tokens of all rows in the order in which they were sent, or ``UNTRIED``.
        misfit: float32 ``[rows]``, how far what the guess would have sent is from what was sent, as a share of its
            length; None where the attack cannot know.
    """

    guesses: torch.Tensor
    misfit: torch.Tensor | None = None


class Attack(Protocol):
    """One way to read tokens off rows.

    Attributes:
        name: what tables call it.
    """

    name: str

    def read(self, sent: Sequence[Sent]) -> Reading:
        """Guess the token of every row of one session; ``sent`` has one row at least."""


def all_rows(sent: Sequence[Sent]) -> torch.Tensor:
    """float32 ``[rows, hidden_size]``, in the order in which they were sent."""
    return torch.cat([each.rows for each in sent]).float()


def standing(sent: Sequence[Sent], end: int) -> list[int]:
    """Which row, counted as sent, stands at each position from 0 on once the session has been cut back to ``end``.

    Raises ``ValueError`` where rows leave a gap.
    """
    stands: list[int] = []
    number = 0
    for each in sent:
        del stands[each.position :]
        if len(stands) != each.position:
            raise ValueError(f"rows at {each.position} follow {len(stands)}")
        stands += range(number, number + len(each.rows))
        number += len(each.rows)
    return stands[:end]
