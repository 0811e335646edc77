"""What a stage receives from the one before it and sends to the one behind it, step by step.

Heads and tables go over the group's links. Hidden states do too, by way of the host's memory, or go over NCCL where
every stage has a GPU of its own. Everything here blocks and belongs on threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cloud_server.cache.pool import Moves
from cloud_server.cache.span import PagedSpan
from cloud_server.stages.step_wire import FIELDS, StepHead, spans_of, table_of
from peers.board import Board
from peers.tensors import Pending, TensorGroup, over_links, over_nccl

_HEAD, _TABLE, _HIDDEN = 1, 2, 3  # tags


@dataclass(frozen=True)
class Place:
    """Where a stage is in its pipeline.

    Attributes:
        address: of its machine, as the other stages reach it.
        device: where the stage computes.
        transport: ``links`` or ``nccl``, in all stages the same.
    """

    rank: int
    stages: int
    address: str
    device: torch.device
    transport: str


class Link:
    """What comes from the stage before and goes to the stage behind. One thread may send while another receives.

    Every method raises ``RuntimeError`` where a stage is gone or silent for too long, ``receive`` also ``BadHead``.

    Args:
        board: of the group that the stages are; all must make their links at about the same time, see ``over_links``.
        hidden_size, dtype: of the rows. They may be sent from the stage's device or from the host's memory; over NCCL
            they are received on the device, over links in the host's memory.
    """

    def __init__(self, board: Board, place: Place, hidden_size: int, dtype: torch.dtype) -> None:
        self._before, self._behind = (place.rank - 1) % place.stages, (place.rank + 1) % place.stages
        self._hidden_size, self._dtype = hidden_size, dtype
        self._links = over_links(board, place.rank, place.stages, place.address)
        self._received_on = torch.device("cpu")
        self._from_before = self._to_behind = self._links
        if place.transport == "nccl":
            self._received_on = place.device
            # NCCL works off one pair of GPUs in order, both directions together: of two stages, each could wait for
            # the other to receive. So the way back from the last stage has a group of its own.
            forth, back = (over_nccl(board, place.rank, place.stages, name) for name in ("forth", "back"))
            self._from_before = forth if place.rank else back
            self._to_behind = forth if self._behind else back
        self._sending: list[tuple[Pending, torch.Tensor]] = []

    def send(self, head: StepHead, spans: Sequence[PagedSpan], hidden: torch.Tensor | None, moves: Moves = ()) -> None:
        """Begin to send a step; returns before it is received, but not before the one before it is.

        The lengths of ``head`` are filled in here. The last stage's spans and moves stay behind.
        """
        table = table_of(spans, moves) if spans and self._behind else None
        head = replace(head, table=0 if table is None else len(table), rows=0 if hidden is None else hidden.shape[0])
        self._finish_sending()
        self._begin(self._links, head.tensor(), _HEAD)
        if table is not None:
            self._begin(self._links, table, _TABLE)
        if head.rows and hidden is not None:
            self._begin(self._to_behind, hidden.to(self._received_on).contiguous(), _HIDDEN)

    def receive(self) -> tuple[StepHead, list[PagedSpan], torch.Tensor | None, Moves]:
        """Wait for the next step: its head; its spans, none on the way back; its hidden states, if it has any; and its
        moves, like its spans."""
        numbers = torch.empty(FIELDS, dtype=torch.int64)
        self._links.receive(numbers, self._before, _HEAD).wait()
        head = StepHead.read(numbers)
        table = torch.empty(head.table, dtype=torch.int64)
        works = [self._links.receive(table, self._before, _TABLE)] if head.table else []
        hidden = None
        if head.has_rows:
            hidden = torch.empty((head.rows, self._hidden_size), dtype=self._dtype, device=self._received_on)
        if head.rows and hidden is not None:
            works.append(self._from_before.receive(hidden, self._before, _HIDDEN))
        for work in works:
            work.wait()
        spans, moves = spans_of(table)
        return head, spans, hidden, moves

    def abort(self) -> None:
        """End all waits, on whatever thread: a stage is gone."""
        for group in {self._links, self._from_before, self._to_behind}:
            group.abort()

    def _begin(self, group: TensorGroup, tensor: torch.Tensor, tag: int) -> None:
        self._sending.append((group.send(tensor, self._behind, tag), tensor))

    def _finish_sending(self) -> None:
        for work, _ in self._sending:
            work.wait()
        self._sending.clear()
