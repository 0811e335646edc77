"""How stages of a pipeline reach each other: a rendezvous on loopback, then process groups, and no global state.

Heads and tables go over gloo. Hidden states go over gloo too, by way of the host's memory, or over NCCL where every
stage has a GPU of its own. Neither checks who connects, so both ends listen on loopback alone. Everything here blocks
and belongs on threads.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol, cast

import torch
from torch import distributed
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from cloud_server.pool import Moves, PagedSpan
from cloud_server.stage_wire import FIELDS, Head, spans_of, table_of

LOOPBACK = "127.0.0.1"
TRANSPORTS = ("gloo", "nccl")
"""How hidden states can go."""

JOIN_WITHIN = timedelta(seconds=15)
"""Time from the moment all stages have loaded until each is connected to each."""

SILENT_FOR = timedelta(seconds=120)
"""A stage that neither gives nor takes anything for this long is lost. Dead ones are noticed at once; this is for one
that hangs, and it must be more than a step can take."""

_HEAD, _TABLE, _HIDDEN = 1, 2, 3  # tags


@dataclass(frozen=True)
class Place:
    """Where a stage is in its pipeline.

    Attributes:
        generation: which start of the pipeline this is.
        device: where the stage computes.
        transport: one of ``TRANSPORTS``, in all stages the same.
    """

    rank: int
    stages: int
    generation: int
    device: torch.device
    transport: str


def new_store(stages: int) -> TCPStore:
    """The rendezvous of a pipeline, at a free port of loopback (``store.port``)."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        port = int(listener.getsockname()[1])
        # Left to itself, the store would listen on every interface. It owns the descriptor from here on.
        return TCPStore(
            LOOPBACK, port, stages, True, JOIN_WITHIN, wait_for_workers=False, master_listen_fd=listener.detach()
        )


def reach_store(port: int, stages: int) -> TCPStore:
    """The rendezvous that another process has made. Raises ``RuntimeError`` where it is gone."""
    return TCPStore(LOOPBACK, port, stages, False, JOIN_WITHIN)


def stage_device(device: str, rank: int, stages: int) -> torch.device:
    """Where stage ``rank`` computes: ``cuda`` gives each stage a GPU of its own if there are as many, else all one."""
    if device == "cuda":
        return torch.device("cuda", rank if torch.cuda.device_count() >= stages else 0)
    return torch.device(device)


class _Group(Protocol):
    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> distributed.Work: ...

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> distributed.Work: ...

    def abort(self) -> None: ...


def _gloo(store: Store, place: Place) -> _Group:
    options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    options._timeout = JOIN_WITHIN
    return cast(_Group, distributed.ProcessGroupGloo(store, place.rank, place.stages, options))


def _nccl(store: Store, place: Place, name: str) -> _Group:
    # Its watchdog would end the whole process for a stage that is gone, where starting that stage again is enough.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = SILENT_FOR
    return cast(_Group, distributed.ProcessGroupNCCL(PrefixStore(name, store), place.rank, place.stages, options))


class Link:
    """What comes from the stage before and goes to the stage behind. One thread may send while another receives.

    Every method raises ``RuntimeError`` where a stage is gone or silent for too long, ``receive`` also ``BadHead``.

    Args:
        store: as ``new_store`` and ``reach_store`` give it; all stages must join within ``JOIN_WITHIN``.
        hidden_size, dtype: of the rows. They may be sent from the stage's device or from the host's memory; over NCCL
            they are received on the device, over gloo in the host's memory.
    """

    def __init__(self, store: Store, place: Place, hidden_size: int, dtype: torch.dtype) -> None:
        self._before, self._behind = (place.rank - 1) % place.stages, (place.rank + 1) % place.stages
        self._generation = place.generation
        self._hidden_size, self._dtype = hidden_size, dtype
        self._gloo = _gloo(store, place)
        self._received_on = torch.device("cpu")
        self._from_before = self._to_behind = self._gloo
        if place.transport == "nccl":
            self._received_on = place.device
            # NCCL works off one pair of GPUs in order, both directions together: of two stages, each could wait for
            # the other to receive. So the way back from the last stage has a group of its own.
            forth, back = _nccl(store, place, "forth"), _nccl(store, place, "back")
            self._from_before = forth if place.rank else back
            self._to_behind = forth if self._behind else back
        self._sending: list[tuple[distributed.Work, torch.Tensor]] = []

    def send(self, head: Head, spans: Sequence[PagedSpan], hidden: torch.Tensor | None, moves: Moves = ()) -> None:
        """Begin to send a step; returns before it is received, but not before the one before it is.

        Lengths and generation of ``head`` are filled in here. The last stage's spans and moves stay behind.
        """
        table = table_of(spans, moves) if spans and self._behind else None
        head = replace(
            head,
            generation=self._generation,
            table=0 if table is None else len(table),
            rows=0 if hidden is None else hidden.shape[0],
        )
        self._finish_sending()
        self._begin(self._gloo, head.tensor(), _HEAD)
        if table is not None:
            self._begin(self._gloo, table, _TABLE)
        if head.rows and hidden is not None:
            self._begin(self._to_behind, hidden.to(self._received_on).contiguous(), _HIDDEN)

    def receive(self) -> tuple[Head, list[PagedSpan], torch.Tensor | None, Moves]:
        """Wait for the next step: its head; its spans, none on the way back; its hidden states, if it has any; and its
        moves, like its spans."""
        numbers = torch.empty(FIELDS, dtype=torch.int64)
        self._gloo.recv([numbers], self._before, _HEAD).wait(SILENT_FOR)
        head = Head.read(numbers, self._generation)
        table = torch.empty(head.table, dtype=torch.int64)
        works = [self._gloo.recv([table], self._before, _TABLE)] if head.table else []
        hidden = None
        if head.has_rows:
            hidden = torch.empty((head.rows, self._hidden_size), dtype=self._dtype, device=self._received_on)
        if head.rows and hidden is not None:
            works.append(self._from_before.recv([hidden], self._before, _HIDDEN))
        for work in works:
            work.wait(SILENT_FOR)
        spans, moves = spans_of(table)
        return head, spans, hidden, moves

    def abort(self) -> None:
        """Let go of GPUs that wait for a stage which is gone; gloo notices by itself."""
        for group in (self._from_before, self._to_behind):
            if group is not self._gloo:
                group.abort()

    def _begin(self, group: _Group, tensor: torch.Tensor, tag: int) -> None:
        self._sending.append((group.send([tensor], self._behind, tag), tensor))

    def _finish_sending(self) -> None:
        for work, _ in self._sending:
            work.wait(SILENT_FOR)
        self._sending.clear()
