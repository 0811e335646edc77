"""What a submodel offers whose layers run elsewhere: what is known of them, and how they want their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Pace:
    """How fast a submodel that runs elsewhere is; None where nothing has been measured.

    Attributes:
        step_s: seconds of a step there that had few of this device's rows.
        up_bytes_s, down_bytes_s: bandwidth of the link to it, and from it, in bytes a second.
    """

    step_s: float | None = None
    up_bytes_s: float | None = None
    down_bytes_s: float | None = None


@dataclass(frozen=True)
class TimeSpent:
    """Seconds that passed for a session whose layers run elsewhere: on this device, on the way there and back, waiting
    there, and in steps there."""

    device_s: float = 0.0
    link_s: float = 0.0
    queue_s: float = 0.0
    step_s: float = 0.0

    def __add__(self, more: TimeSpent) -> TimeSpent:
        return TimeSpent(
            self.device_s + more.device_s,
            self.link_s + more.link_s,
            self.queue_s + more.queue_s,
            self.step_s + more.step_s,
        )

    def __sub__(self, less: TimeSpent) -> TimeSpent:
        """What has been spent since it was ``less``."""
        return TimeSpent(
            self.device_s - less.device_s,
            self.link_s - less.link_s,
            self.queue_s - less.queue_s,
            self.step_s - less.step_s,
        )


@dataclass(frozen=True)
class TurnSpent:
    """Where the time of a turn went: until the answer that ended its prompt, and over the ``answers`` behind it."""

    prompt: TimeSpent
    decode: TimeSpent
    answers: int


class RemoteHints(Protocol):
    """What a submodel offers that runs elsewhere."""

    @property
    def chunk(self) -> int | None:
        """Rows in which a prompt is best cut; None where that is all the same, or not known yet."""

    @property
    def first_chunk(self) -> int | None:
        """Most rows of a prompt's first chunk; None while that is not known."""


class SessionHints(Protocol):
    """What a session offers whose layers run elsewhere."""

    @property
    def spent(self) -> TurnSpent | None:
        """Where the time of this turn went so far; None until its prompt is answered."""

    @property
    def pace(self) -> Pace:
        """How fast they are."""

    def drafts_in(self, seconds: float) -> None:
        """One step of drafting takes this device so long (the paper's gamma); of use to whoever runs the layers."""

    def take_advice(self) -> tuple[int, Sequence[int]] | None:
        """A position of this turn, and the sizes of the chunks into which the rows from there on are best cut; None
        where nothing new has been advised since this was last called."""
