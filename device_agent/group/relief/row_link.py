"""What a member says to another at whom its oldest keys and values lie, and what it hears; on the thread that computes.

What is asked is done there in this order, and answered in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

import torch

from device_agent.group.holding.held import SessionCaches
from device_agent.group.messages.row_asks import (
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
from device_agent.group.relief.lodging import RowSizes
from device_agent.group.rows.sending import Tag
from device_agent.group.rows.step_rows import GroupStretch
from device_agent.planning.moves import LinkPace
from peers.collectives import Collectives
from peers.exchange import DONE_WITHIN_S, Exchange
from split_model.partial_attention import Partial, attend_part, visible

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
class _Fetched:
    """Keys and values on their way to queries ``[rows, heads, head_dim]`` that stay here; the first is at ``start``."""

    coming: Coming
    queries: torch.Tensor
    start: int
    window: int | None

    def attended(self) -> Partial:
        """Once they have come."""
        keys, values = self.coming.tensor.transpose(1, 2)
        mask = visible(self.start, len(self.queries), range(keys.shape[1]), self.window)
        return attend_part(self.queries, keys, values, mask)


@dataclass(frozen=True)
class Question:
    """What rows of a step want of keys and values that are away, by the places of their stretches.

    Attributes:
        asked: what queries that have gone there make of them; ``rows``: where each stretch's are among those.
        fetched: of stretches of so many rows that they had better come here.
    """

    asked: Coming | None
    rows: dict[int, slice]
    fetched: dict[int, _Fetched]
    size: int
    since: float
    pace: LinkPace

    def wait(self) -> dict[int, Partial]:
        """Of each stretch that wants any. Raises as ``Coming``."""
        for each in self.fetched.values():
            each.coming.wait()
        came = self.asked.wait() if self.asked is not None else torch.empty((0, 1, 1))
        if self.size and len(came) <= FEW_ROWS:
            self.pace.took(self.size, max(monotonic() - self.since, 1e-9))
        found = {number: Partial(came[rows, :, :-1], came[rows, :, -1]) for number, rows in self.rows.items()}
        return found | {number: each.attended() for number, each in self.fetched.items()}


class RowLink:
    """To one member, in one epoch.

    Args:
        target: its rank.

    Attributes:
        sizes: of what travels.
        pace: of the link, as questions find it.
        fetches: whether keys and values always come here for their use, as the paper has it; else where that is less
            to carry than queries and outputs are, as of a prompt's rows.
    """

    def __init__(
        self, collectives: Collectives, target: int, sizes: RowSizes, pace: LinkPace, fetches: bool = False
    ) -> None:
        self.sizes, self.pace, self.fetches = sizes, pace, fetches
        self._links, self._target = collectives, target
        self._question = sizes.queries(1).nbytes + sizes.outputs(1).nbytes
        self._spoke = monotonic()

    def layer_s(self, positions: Sequence[int]) -> float:
        """Seconds that a layer takes in a step of one row of each session, at these positions."""
        rows = sum(positions) * self.sizes.stored(1).nbytes
        return self.pace.seconds(rows if self.fetches else max(len(positions), 1) * self._question)

    def ask(
        self,
        layer: int,
        window: int | None,
        stretches: Sequence[GroupStretch],
        sessions: Sequence[SessionCaches],
        queries: torch.Tensor,
    ) -> Question:
        """Have the rows whose sessions have rows of a layer away attend to these, as far as they see them.

        queries: ``[rows, heads, head_dim]``, of all rows.
        """
        parts, rows, chosen, fetched = [], {}, [], {}
        end, size, since = 0, 0, monotonic()
        for number, (stretch, session) in enumerate(zip(stretches, sessions, strict=True)):
            away, own = session.away[layer], queries[stretch.rows.start : stretch.rows.stop]
            if not away or (window is not None and stretch.start - window + 1 >= away):
                continue
            if self.fetches or len(own) * self._question > away * self.sizes.stored(1).nbytes:
                coming = self.fetch(session.number, layer, range(away))
                fetched[number] = _Fetched(coming, own, stretch.start, window)
                size += coming.tensor.nbytes
                continue
            parts.append(Looking(session.number, stretch.start, len(own), away))
            chosen.append(own)
            rows[number] = slice(end, end := end + len(own))
        asked: Coming | None = None
        if parts:
            gone = torch.cat(chosen)
            self._say(AttendAsk(layer, window or 0, tuple(parts)))
            self._links.send(gone, self._target, Tag.BROUGHT)
            asked = self._coming(self.sizes.outputs(end))
        return Question(asked, rows, fetched, size + end * self._question, since, self.pace)

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
