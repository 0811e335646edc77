"""Tensors between the members of a group: over its own links, or over NCCL between GPUs.

NCCL's members find each other through the group's board and not through a store of torch's own, which would listen and
ask nobody who he is; but the sockets that NCCL then opens are not authenticated: see ``peers/secret.py`` on where
members belong. Everything here blocks and belongs on threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final, Protocol, cast

import torch
from torch import distributed
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from peers.board import STORED, Board
from peers.collectives import Collectives
from peers.fabric import Fabric
from peers.opening import OPEN_WITHIN_S

SILENT_FOR: Final = timedelta(seconds=120)
"""A member that does nothing, or takes nothing, for this long is lost. Dead ones are noticed at once; this is for one
that hangs, and it must be more than what a member computes at once can take."""


class Pending(Protocol):
    """Something under way."""

    def wait(self) -> object:
        """Until it is done. Raises ``RuntimeError``."""


class TensorGroup(Protocol):
    """All members, by their ranks. Several threads may use it, each with tags of its own.

    Every method raises ``RuntimeError`` where a member is gone or silent for too long, and a wait does.
    """

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> Pending:
        """Begin to send a contiguous tensor, which must stay as it is until ``wait`` is over."""

    def receive(self, tensor: torch.Tensor, rank: int, tag: int) -> Pending:
        """Begin to fill a contiguous tensor of the shape and dtype that ``rank`` sends under this tag."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all members' tensors of this shape, in place, where each calls this in the same order."""

    def abort(self) -> None:
        """End every wait of this process, on any thread. The group cannot be used any more."""


class _OverLinks(Collectives):
    """Of tensors in the host's memory."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self._abort = fabric.lose

    def abort(self) -> None:
        """See ``TensorGroup.abort``."""
        self._abort("it was given up here")


def over_links(board: Board, rank: int, size: int, address: str) -> TensorGroup:
    """A group for tensors in the host's memory, listening at this address of this machine while its members come. All
    must call it within ``OPEN_WITHIN_S``; raises ``RuntimeError`` where they do not."""
    return _OverLinks(Fabric.open(board, rank, size, address))


class BoardStore(Store):  # type: ignore[misc, unused-ignore]
    """The board as torch asks for it."""

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board

    def set(self, key: str, value: bytes | str) -> None:
        self._board.post(STORED + key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._board.get(STORED + key, OPEN_WITHIN_S)

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=OPEN_WITHIN_S)) -> None:
        for key in keys:
            self._board.get(STORED + key, timeout.total_seconds())

    def check(self, keys: list[str]) -> bool:
        return self._board.has([STORED + key for key in keys])


class _Collective(Protocol):
    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> distributed.Work: ...

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> distributed.Work: ...

    def allreduce(self, tensors: list[torch.Tensor]) -> distributed.Work: ...


class _Work:
    """Until what NCCL does is done on the GPU, or took too long."""

    def __init__(self, work: distributed.Work) -> None:
        self._work = work

    def wait(self) -> None:
        """See ``Pending``."""
        self._work.wait(SILENT_FOR)


class _OverNccl:
    """Of tensors on GPUs."""

    def __init__(self, collective: _Collective, abort: Callable[[], object]) -> None:
        self._collective = collective
        self._abort = abort

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> Pending:
        """See ``TensorGroup``."""
        return _Work(self._collective.send([tensor], rank, tag))

    def receive(self, tensor: torch.Tensor, rank: int, tag: int) -> Pending:
        """See ``TensorGroup``."""
        return _Work(self._collective.recv([tensor], rank, tag))

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``TensorGroup``."""
        if tensor.numel():
            _Work(self._collective.allreduce([tensor])).wait()
        return tensor

    def abort(self) -> None:
        """See ``TensorGroup``."""
        with suppress(RuntimeError):
            self._abort()


def over_nccl(board: Board, rank: int, size: int, name: str) -> TensorGroup:
    """A group for tensors on GPUs, of which each member has one. ``name`` tells several of a board apart."""
    # Its watchdog would end the whole process for a member that is gone, where beginning anew is enough.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = SILENT_FOR
    group = distributed.ProcessGroupNCCL(PrefixStore(name, BoardStore(board)), rank, size, options)
    return _OverNccl(cast(_Collective, group), group.abort)
