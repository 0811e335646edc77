"""Tensors between the members of a group, over torch's gloo or NCCL, without global state.

The members find each other through the group's board and not through a store of torch's own, which would listen and
ask nobody who he is. What they then open between themselves, gloo's sockets too, is bound to the address given and
neither encrypted nor authenticated: see ``peers/secret.py`` on where members belong. Everything here blocks and belongs
on threads.
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

from peers.board import Board

JOIN_WITHIN: Final = timedelta(seconds=15)
"""Time from the moment the first member wants to be connected to the others until each is to each."""

SILENT_FOR: Final = timedelta(seconds=120)
"""A member from which nothing comes, or that takes nothing, for this long is lost. Dead ones are noticed at once; this
is for one that hangs, and it must be more than what a member computes at once can take."""

_NEVER_SENT: Final = 2**31 - 1
"""A tag."""


class _BoardStore(Store):  # type: ignore[misc, unused-ignore]
    """The board as torch asks for it."""

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board

    def set(self, key: str, value: bytes | str) -> None:
        self._board.post(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._board.get(key, JOIN_WITHIN.total_seconds())

    def wait(self, keys: list[str], timeout: timedelta = JOIN_WITHIN) -> None:
        for key in keys:
            self._board.get(key, timeout.total_seconds())

    def check(self, keys: list[str]) -> bool:
        return self._board.has(keys)


class _Collective(Protocol):
    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> distributed.Work: ...

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> distributed.Work: ...

    def allreduce(self, tensors: list[torch.Tensor]) -> distributed.Work: ...


class TensorGroup:
    """All members, by their ranks. Several threads may use it, each with tags of its own.

    Every method raises ``RuntimeError`` where a member is gone or silent for too long, and a wait does.
    """

    def __init__(self, collective: _Collective, abort: Callable[[], object]) -> None:
        """abort: ends all waits on ``collective``, in its own way; may raise ``RuntimeError``."""
        self._collective = collective
        self._abort = abort

    def send(self, tensor: torch.Tensor, rank: int, tag: int) -> distributed.Work:
        """Begin to send a contiguous tensor, which must stay as it is until ``wait`` is over."""
        return self._collective.send([tensor], rank, tag)

    def receive(self, tensor: torch.Tensor, rank: int, tag: int) -> distributed.Work:
        """Begin to fill a contiguous tensor of the shape and dtype that ``rank`` sends under this tag."""
        return self._collective.recv([tensor], rank, tag)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all members' tensors of this shape, in place, where each calls this in the same order."""
        if tensor.numel():
            wait(self._collective.allreduce([tensor]))
        return tensor

    def abort(self) -> None:
        """End every wait of this process, on any thread. The group cannot be used any more."""
        with suppress(RuntimeError):
            self._abort()


def wait(work: distributed.Work) -> None:
    """Until it is done. Raises ``RuntimeError``."""
    work.wait(SILENT_FOR)


def over_gloo(board: Board, rank: int, size: int, address: str) -> TensorGroup:
    """A group for tensors in the host's memory, listening at this address of this machine. All members must call it
    within ``JOIN_WITHIN``; raises ``RuntimeError`` where they do not."""
    options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = JOIN_WITHIN
    group = distributed.ProcessGroupGloo(_BoardStore(board), rank, size, options)
    group.set_timeout(SILENT_FOR)
    collective = cast(_Collective, group)

    def abort() -> None:
        # Gloo's own does nothing; but a wait that takes too long closes all connections, so one is made. One for each
        # of the others: with a member that is gone already there is no wait.
        for other in range(size):
            with suppress(RuntimeError):
                if other != rank:
                    collective.recv([torch.empty(1)], other, _NEVER_SENT).wait(timedelta(milliseconds=1))

    return TensorGroup(collective, abort)


def over_nccl(board: Board, rank: int, size: int, name: str) -> TensorGroup:
    """A group for tensors on GPUs, of which each member has one. ``name`` tells several of a board apart."""
    # Its watchdog would end the whole process for a member that is gone, where beginning anew is enough.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    options = distributed.ProcessGroupNCCL.Options()
    options._timeout = SILENT_FOR
    group = distributed.ProcessGroupNCCL(PrefixStore(name, _BoardStore(board)), rank, size, options)
    return TensorGroup(cast(_Collective, group), group.abort)
