"""What lengths and times of messages say, to an onlooker who can read none of them (TLS hides neither). Pure.

He knows the model's size, so how many bytes a row has, and how much packing saves of it on average. Rows that go up
before the first row comes down are the prompt. Then every message with rows that comes down ends a round: so many rows
were drafted, and one more was chosen. A short message up between two rounds takes back what was not accepted; how much
of it, its length does not say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from wire.frames import encode
from wire.limits import PART_BYTES
from wire.session_messages import Truncate

FRAME_BYTES: Final = range(20, 90)
"""What a frame has beside its rows: prefix, message, description."""

POSITIONS: Final = (0, 2**7, 2**8, 2**16)
"""One of each length that a position has in a message."""

FIRST_PART, FURTHER_PART = PART_BYTES + 16, PART_BYTES + 12
"""Messages of long frames whose next part follows."""


@dataclass(frozen=True)
class Length:
    """One message, or all parts of one frame: which way it went, when, and its bytes."""

    up: bool
    at_s: float
    bytes: int


@dataclass(frozen=True)
class RowSize:
    """Bytes of a row, and the share of them that is left on average where rows are packed."""

    bytes: int
    packed: float

    def rows(self, length: int) -> int:
        """How many rows a frame of so many bytes seems to have; 0 where it is short."""
        if length < self.bytes * self.packed / 2:
            return 0
        count = (length - FRAME_BYTES.start) // self.bytes
        if count and length - count * self.bytes in FRAME_BYTES:
            return count
        return max(1, round(length / (self.bytes * self.packed)))


@dataclass(frozen=True)
class Inferred:
    """What an onlooker takes a session for.

    Attributes:
        prompt: its tokens.
        rounds: the tokens that each round chose; the first token of all is the prompt's.
        round_s: seconds from each round to the next.
    """

    prompt: int
    rounds: tuple[int, ...]
    round_s: tuple[float, ...]

    @property
    def answer(self) -> int:
        """Tokens of the answer."""
        return 1 + sum(self.rounds)


def inferred(messages: Sequence[Length], row: RowSize, session: int = 1) -> Inferred:
    """What the messages of one session say, from its first to its last.

    session: its number, which an onlooker knows who has counted those before it.
    """
    prompt, rounds, ends = 0, list[int](), list[float]()
    began, judged, taken_back = False, 0, _taken_back(session)
    for each in _frames(messages):
        rows = row.rows(each.bytes)
        if not began:
            prompt += rows if each.up else 0
            began = bool(rows) and not each.up
            if began:
                ends.append(each.at_s)
        elif rows and not each.up:
            rounds.append(rows)
            ends.append(each.at_s)
            judged = len(rounds)
        elif each.up and each.bytes in taken_back and judged:
            # Of the drafted tokens one at least was wrong; any number before it may have been right.
            rounds[judged - 1] = 1 + (rounds[judged - 1] - 2) // 2 if rounds[judged - 1] > 1 else 1
            judged = 0
    times = tuple(later - earlier for earlier, later in pairwise(ends))
    return Inferred(prompt, tuple(rounds), times)


def _taken_back(session: int) -> Collection[int]:
    """Bytes of a message that takes rows of a session back: it says the session's number and a position."""
    return {len(encode(Truncate(session, position))) for position in POSITIONS}


def _frames(messages: Sequence[Length]) -> Iterator[Length]:
    """Parts of a long frame as one. Others may pass between them; the onlooker takes what follows on its way."""
    half: dict[bool, Length] = {}
    for each in messages:
        before = half.pop(each.up, None)
        begins, goes_on = each.bytes == FIRST_PART, each.bytes == FURTHER_PART
        length = Length(each.up, each.at_s, each.bytes + (before.bytes - 12 if before is not None else 0))
        if begins or (goes_on and before is not None):
            half[each.up] = length
        else:
            yield length
    yield from half.values()
