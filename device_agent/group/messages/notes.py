"""What a member and its portal tell each other beside any plan: typed, bounded. Pure."""

from __future__ import annotations

from typing import Annotated, Final, Union

import msgspec

from device_agent.planning.profile import DeviceProfile

MOST_S: Final = 1e9
"""No note says more seconds."""

_Text = Annotated[str, msgspec.Meta(max_length=256)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_S)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class _Note(msgspec.Struct, frozen=True, array_like=True, tag_field="note", forbid_unknown_fields=True):
    """Base of all."""


class Card(_Note, frozen=True, tag=1):
    """A member says, as soon as it is there, what model it has: ``digest``, see ``split_model.hub.identity``, and the
    only ``dtype`` that it computes in, "" for any. Nobody plans with a member that has said nothing."""

    digest: _Text
    dtype: _Text = ""


class StepsDone(_Note, frozen=True, tag=2):
    """A member has computed ``steps`` since its group's ``epoch`` began, in so many seconds of its own: without those
    in which it waited for others, or for its disk. From that it has read weights for ``reading_s``, and waited for them
    for ``waited_s``; ``relief``: see ``Relieving.level``."""

    epoch: _Count
    steps: _Count
    seconds: _Seconds
    reading_s: _Seconds = 0.0
    waited_s: _Seconds = 0.0
    relief: _Count = 0

    @property
    def step_ms(self) -> float:
        """What a step has taken on average; 0 where there was none."""
        return round(self.seconds / self.steps * 1e3, 3) if self.steps else 0.0


class Trial(_Note, frozen=True, tag=3):
    """From the portal: compute something for a moment, and say how it went. From a member: its ``speed``, in any unit
    that stays the same."""

    speed: _Seconds = 0.0


class Measure(_Note, frozen=True, tag=4):
    """From the portal: measure your device in this ``dtype``; ``again``: whatever is kept."""

    dtype: _Text
    again: bool = False


class Device(_Note, frozen=True, tag=5):
    """A member's device, as it was measured."""

    profile: DeviceProfile

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for times that nobody has measured: plans divide by them, and add them up."""
        for part, table in self.profile.seconds.items():
            if not all(0 < seconds <= MOST_S for seconds in table.seconds):
                raise ValueError(f"{self.profile.name} says that {part!r} takes no time, or more than {MOST_S:g} s")


Note = Union[Card, StepsDone, Trial, Measure, Device]

_decoder = msgspec.msgpack.Decoder(Note)


def written(note: Note) -> bytes:
    """As ``read`` takes it."""
    return msgspec.msgpack.encode(note)


def read(data: bytes) -> Note:
    """Raises ``ValueError`` for what is no note."""
    note: Note = _decoder.decode(data)
    return note
