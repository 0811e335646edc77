"""Keys and values of another member that lie here: kept, attended to and given back as it asks, on a thread of its own.

The owner may ask while this member computes its own part of a step, or waits for somebody's rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from device_agent.group.messages.heads import MAX_POSITIONS
from device_agent.group.messages.row_asks import (
    ASK_BYTES,
    AttendAsk,
    BadRowAsk,
    ByeAsk,
    CutAsk,
    FetchAsk,
    FreeAsk,
    RowAsk,
    StoreAsk,
    read,
)
from device_agent.group.rows.sending import Tag
from device_agent.planning.transfers import COPY_BYTES
from peers.board import PeerLost
from peers.collectives import Collectives
from peers.fabric import EpochOver
from split_model.kv_cache import KVCache
from split_model.partial_attention import attend_part, visible

ASKED_WITHIN_S: Final = 300.0
"""An owner that lives says so much more often, but for the time that a step takes."""

LEAVES_WITHIN_S: Final = 30.0
"""When a life ends, the owner has so long to come to the end of its last step."""

GONE_WITHIN_S: Final = 120.0
"""Rows that this member needs the room of are taken back by their owner in this time, or it hangs."""


@dataclass(frozen=True)
class RowSizes:
    """Of keys and values that travel."""

    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    def stored(self, rows: int) -> torch.Tensor:
        """Room for keys and values ``[2, rows, kv_heads, head_dim]``."""
        return torch.empty((2, rows, self.kv_heads, self.head_dim), dtype=self.dtype)

    def queries(self, rows: int) -> torch.Tensor:
        """Room for ``[rows, heads, head_dim]``."""
        return torch.empty((rows, self.heads, self.head_dim), dtype=self.dtype)

    def outputs(self, rows: int) -> torch.Tensor:
        """Room for ``[rows, heads, head_dim + 1]``: outputs, and behind each its ``lse``, see ``Partial``."""
        return torch.empty((rows, self.heads, self.head_dim + 1))


class Lodging:
    """Of one owner, in one epoch. What is asked is done on the thread; the rest is for the one that computes.

    Args:
        owner: its rank.
        lose: ends the life, with the reason.
    """

    def __init__(self, collectives: Collectives, owner: int, sizes: RowSizes, lose: Callable[[str], object]) -> None:
        self._links, self._owner, self._sizes, self._lose = collectives, owner, sizes, lose
        self._held: dict[tuple[int, int], KVCache] = {}
        self._changed = threading.Condition()
        """Guards the counts."""
        self._rows = self._most = 0
        self._over = False
        self._thread = threading.Thread(target=self._serve, name="lodging", daemon=True)
        self._thread.start()

    @property
    def rows(self) -> int:
        """Of one layer each, that are here."""
        return self._rows

    def freeze(self, most: int) -> int:
        """Take no more for now, and wait until no more than so many rows are here; returns how many are. Raises
        ``PeerLost`` where their owner does not take them back in time."""
        with self._changed:
            self._most = 0
            self._changed.wait_for(lambda: self._over or self._rows <= most, GONE_WITHIN_S)
            if self._rows > most:
                why = f"member {self._owner} has not taken back keys and values within {GONE_WITHIN_S:g} s"
                self._lose(why)
                raise PeerLost(why, self._owner)
            return self._rows

    def admit(self, most: int) -> None:
        """So many may be here from now on."""
        with self._changed:
            self._most = most

    def end(self) -> None:
        """The life ends in order: wait until the owner has nothing more to ask, for some time."""
        self._thread.join(LEAVES_WITHIN_S)

    @torch.inference_mode()
    def _serve(self) -> None:
        try:
            while not isinstance(ask := self._next(), ByeAsk):
                self._do(ask)
        except (PeerLost, EpochOver):
            pass
        except Exception as error:  # Whatever it is, the owner would wait for ever.
            self._lose(f"what was asked about keys and values cannot be done: {type(error).__name__}: {error}")
        finally:
            self._held.clear()
            with self._changed:
                self._over, self._rows = True, 0
                self._changed.notify_all()

    def _next(self) -> RowAsk:
        came = torch.empty(ASK_BYTES, dtype=torch.uint8)
        self._links.receive(came, self._owner, Tag.ASK).wait(ASKED_WITHIN_S)
        return read(came)

    def _do(self, ask: RowAsk) -> None:
        if isinstance(ask, StoreAsk):
            self._store(ask)
        elif isinstance(ask, FetchAsk):
            keys, values = self._of(ask.session, ask.layer, ask.start + ask.rows)
            found = [each.narrow(1, ask.start, ask.rows).transpose(0, 1) for each in (keys, values)]
            self._answer(torch.stack(found))
        elif isinstance(ask, AttendAsk):
            self._attend(ask)
        elif isinstance(ask, CutAsk):
            self._cut(ask.session, ask.layer, ask.position)
        elif isinstance(ask, FreeAsk):
            for session, layer in [key for key in self._held if key[0] == ask.session]:
                self._cut(session, layer, 0)

    def _store(self, ask: StoreAsk) -> None:
        if self._sizes.stored(1).nbytes * ask.rows > COPY_BYTES and ask.rows > 1:
            raise BadRowAsk(f"{ask.rows} rows are more than one copy has")
        came = self._sizes.stored(ask.rows)
        self._links.receive(came, self._owner, Tag.BROUGHT).wait()
        with self._changed:  # What is counted here is stored, before anybody else counts.
            if self._rows + ask.rows > self._most:
                self._answer(torch.zeros(1, dtype=torch.uint8))
                return
            self._rows += ask.rows
        key, sizes = (ask.session, ask.layer), self._sizes
        cache = self._held.get(key)
        if cache is None:
            cache = KVCache(1, sizes.kv_heads, sizes.head_dim, sizes.dtype, MAX_POSITIONS)
        if ask.start != cache.length:
            raise BadRowAsk(f"{ask} does not go on from the {cache.length} rows that are here")
        cache.reserve(ask.rows, spare=0)
        cache.append(0, came[0], came[1])
        cache.advance(ask.rows)
        self._held[key] = cache
        self._answer(torch.ones(1, dtype=torch.uint8))

    def _cut(self, session: int, layer: int, position: int) -> None:
        cache = self._held.get((session, layer))
        if cache is None or cache.length <= position:
            return
        gone = cache.length - position
        cache.truncate(position)
        cache.shrink(position, position)
        if not position:
            del self._held[session, layer]
        with self._changed:
            self._rows -= gone
            self._changed.notify_all()

    def _attend(self, ask: AttendAsk) -> None:
        queries, outputs = self._sizes.queries(ask.rows), self._sizes.outputs(ask.rows)
        self._links.receive(queries, self._owner, Tag.BROUGHT).wait()
        begin = 0
        for part in ask.parts:
            keys, values = self._of(part.session, ask.layer, part.seen)
            rows = slice(begin, begin + part.rows)
            mask = visible(part.position, part.rows, range(part.seen), ask.window or None)
            found = attend_part(queries[rows], keys.narrow(1, 0, part.seen), values.narrow(1, 0, part.seen), mask)
            outputs[rows, :, :-1], outputs[rows, :, -1] = found.out, found.lse
            begin = rows.stop
        self._answer(outputs)

    def _of(self, session: int, layer: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        cache = self._held.get((session, layer))
        if cache is None or cache.length < rows:
            raise BadRowAsk(f"{rows} rows of session {session} in layer {layer} are not here")
        return cache.read(0)

    def _answer(self, tensor: torch.Tensor) -> None:
        self._links.send(tensor, self._owner, Tag.ANSWER)
