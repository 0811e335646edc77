"""What a member says to another at whom its oldest keys and values lie, and what it hears; on the thread that computes.

What is asked is done there in this order, and answered in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

import torch

from device_agent.group.held import SessionCaches
from device_agent.group.lodging import RowSizes
from device_agent.group.moves import Tag
from device_agent.group.row_asks import (
    AttendAsk,
    ByeAsk,
    CutAsk,
    FetchAsk,
    FreeAsk,
    Looking,
    PulseAsk,
    RowAsk,
    StoreAsk,
    written,
)
from device_agent.group.step_rows import GroupStretch
from device_agent.planning.moves import LinkPace
from peers.collectives import Collectives
from peers.exchange import DONE_WITHIN_S, Exchange
from split_model.partial_attention import Partial

PULSE_EVERY_S: Final = 20.0
"""The other hears so often of a member that has nothing to ask."""

FEW_ROWS: Final = 16
"""Questions of more say more of the other's computing than of the link."""


@dataclass(frozen=True)
class Coming:
    """What has been asked for, and where it comes to. Waits raise ``PeerLost``, ``EpochOver``."""

    exchange: Exchange
    tensor: torch.Tensor
    since: float

    def wait(self) -> torch.Tensor:
        """Until it is there."""
        self.exchange.wait()
        return self.tensor

    @property
    def there(self) -> bool:
        """Whether it is, without waiting; one that takes too long ends the life."""
        if not self.exchange.done and monotonic() - self.since > DONE_WITHIN_S:
            self.exchange.wait(0.0)
        return self.exchange.done


@dataclass(frozen=True)
class Question:
    """Queries on their way to keys and values, and back as what these make of them.

    Attributes:
        asked: which rows' they are, in their order.
        parts: where each stretch's are among those, by its place in the step.
    """

    coming: Coming
    parts: dict[int, slice]
    size: int
    pace: LinkPace

    def wait(self) -> dict[int, Partial]:
        """Of each stretch that asked."""
        came = self.coming.wait()
        if len(came) <= FEW_ROWS:
            self.pace.took(self.size, max(monotonic() - self.coming.since, 1e-9))
        return {number: Partial(came[rows, :, :-1], came[rows, :, -1]) for number, rows in self.parts.items()}


class RowLink:
    """To one member, in one epoch.

    Args:
        target: its rank.

    Attributes:
        sizes: of what travels.
        pace: of the link, as questions find it.
    """

    def __init__(self, collectives: Collectives, target: int, sizes: RowSizes, pace: LinkPace) -> None:
        self.sizes, self.pace = sizes, pace
        self._links, self._target = collectives, target
        self._spoke = monotonic()

    def question_s(self, rows: int) -> float:
        """Seconds that a question of so many rows takes."""
        return self.pace.seconds(rows * (self.sizes.queries(1).nbytes + self.sizes.outputs(1).nbytes))

    def attend(
        self,
        layer: int,
        window: int | None,
        stretches: Sequence[GroupStretch],
        sessions: Sequence[SessionCaches],
        queries: torch.Tensor,
    ) -> Question | None:
        """Have the rows whose sessions have rows of a layer away attend to these. None: no row sees any.

        queries: ``[rows, heads, head_dim]``, of all rows.
        """
        parts, places, chosen, end = [], {}, [], 0
        for number, (stretch, session) in enumerate(zip(stretches, sessions, strict=True)):
            away, rows = session.away[layer], stretch.rows
            if away and (window is None or stretch.start - window + 1 < away):
                parts.append(Looking(session.number, stretch.start, len(rows), away))
                chosen.append(queries[rows.start : rows.stop])
                places[number] = slice(end, end := end + len(rows))
        if not parts:
            return None
        asked = torch.cat(chosen)
        self._say(AttendAsk(layer, window or 0, tuple(parts)))
        self._links.send(asked, self._target, Tag.BROUGHT)
        coming = self._coming(self.sizes.outputs(end))
        return Question(coming, places, asked.nbytes + coming.tensor.nbytes, self.pace)

    def store(self, session: int, layer: int, start: int, rows: torch.Tensor) -> Coming:
        """Keys and values go there, ``[2, rows, kv_heads, head_dim]``. What comes is one byte: 1 where they are
        there, 0 where there is no room."""
        self._say(StoreAsk(session, layer, start, rows.shape[1]))
        self._links.send(rows, self._target, Tag.BROUGHT)
        return self._coming(torch.empty(1, dtype=torch.uint8))

    def fetch(self, session: int, layer: int, rows: range) -> Coming:
        """Copies of keys and values that are there."""
        self._say(FetchAsk(session, layer, rows.start, len(rows)))
        return self._coming(self.sizes.stored(len(rows)))

    def cut(self, session: int, layer: int, position: int) -> None:
        """Those from there on are not wanted any more."""
        self._say(CutAsk(session, layer, position))

    def free(self, session: int) -> None:
        """Nothing of a session is."""
        self._say(FreeAsk(session))

    def pulse(self) -> None:
        """Say that this member lives, where it has said nothing for long."""
        if monotonic() - self._spoke >= PULSE_EVERY_S:
            self._say(PulseAsk())

    def end(self) -> None:
        """Nothing will be asked any more."""
        self._say(ByeAsk())

    def _coming(self, tensor: torch.Tensor) -> Coming:
        return Coming(self._links.receive(tensor, self._target, Tag.ANSWER), tensor, monotonic())

    def _say(self, ask: RowAsk) -> None:
        self._spoke = monotonic()
        self._links.send(written(ask), self._target, Tag.ASK)
