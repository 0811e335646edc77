"""What steps of an interleaved pipeline take, and what each device does meanwhile. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["compute", "link", "read"]


@dataclass(frozen=True)
class Event:
    """Something that a device does for a while.

    Attributes:
        node: the members by their numbers, then the portal where it is none.
        kind: a link's node is the sender.
        begin, end: seconds.
        what: the layers, or the unit that is read.
        micro_batch: -1 for a read.
    """

    node: int
    kind: Kind
    begin: float
    end: float
    what: str
    micro_batch: int


@dataclass(frozen=True)
class Played:
    """Steps of a pipeline.

    Attributes:
        seconds: of one step, once they repeat; of the only one, where one was played.
        busy: seconds of a step that each node computes.
        read_bytes: of a step, by member.
        reading: seconds of a step that each member's disk reads.
        waited: seconds of the last step that each member computes nothing because a unit is not there.
        sent: bytes of the last step, by layer and node; a link behind the last layer belongs to it.
        bound: with these layers, reads and micro-batches no order takes less: rows pass all layers and links, each
            device computes all that it must, and each disk reads all that it must.
        events: of the last step; times are from its begin on, and negative for what was read before.
    """

    seconds: float
    busy: tuple[float, ...]
    read_bytes: tuple[int, ...]
    reading: tuple[float, ...]
    waited: tuple[float, ...]
    sent: tuple[tuple[float, ...], ...]
    bound: float
    events: tuple[Event, ...]

    @property
    def hidden(self) -> float:
        """The share of all reading that nobody waited for; 1 where nothing is read."""
        total = sum(self.reading)
        return 1 - min(sum(self.waited) / total, 1.0) if total else 1.0
