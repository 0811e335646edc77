"""Where a process computes, and what crosses between there and the host's memory.

A GPU works on by itself: whoever asks it for a number waits until it has done all that it was given. So rows are made,
drafted and chosen where the layers are, and cross to the host together, with ``fetched``; what goes the other way goes
through ``put``, which waits for nothing. On the CPU both do next to nothing.

Where host and GPU share one memory (a Jetson), a tensor is still either the one's or the other's: torch cannot hand the
pages of a file, or of a CPU tensor, to the GPU as they are. Weights are read into the GPU's memory block by block, so
they are there once and never whole in a second place; rows that cross are copied, a few kilobytes a round.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

AUTO = "auto"
ROOM = 2.0
"""A GPU has room for weights where so many times their bytes are free: drafters, keys and values are there too."""

CONTEXT_BYTES = 512 << 20
"""What CUDA itself takes of a GPU beside them: its context, kernels, and the libraries' workspaces."""

Mark = torch.cuda.Event | None

_NAME = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")


class DeviceLost(Exception):
    """What computes is gone for good, or never ends a step: only a new process can compute again."""


def choose_device(name: str, weight_bytes: int) -> torch.device:
    """What ``--device`` means on this machine.

    Args:
        name: ``cpu``, ``cuda`` (the first GPU), ``cuda:N``, or ``auto``: the GPU with most room, where one has room for
            the weights, else the CPU.
        weight_bytes: of the weights that will be loaded there.

    Raises:
        ValueError: there is no such device here; the message says what to do.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"--device {name!r} is none of cpu, cuda, cuda:0, cuda:1 …, auto")
    if name == "cpu":
        return torch.device("cpu")
    there = torch.cuda.is_available()
    if name == AUTO:
        free = [_free_bytes(each) for each in range(torch.cuda.device_count())] if there else []
        if max(free, default=0) < ROOM * weight_bytes + CONTEXT_BYTES:
            return torch.device("cpu")
        return torch.device("cuda", free.index(max(free)))
    if not there:
        built = torch.version.cuda is not None
        why = "no GPU can be used here; see nvidia-smi" if built else "this PyTorch was built without CUDA; install one"
        raise ValueError(f"--device {name}: {why}, or say --device cpu")
    found = torch.device(name)
    if (found.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ValueError(f"--device {name}: there is no such GPU; the last one here is cuda:{last}")
    return torch.device("cuda", found.index or 0)


def _free_bytes(number: int) -> int:
    """Of a GPU; 0 where it cannot be used, as one that another process has for itself alone."""
    try:
        return int(torch.cuda.mem_get_info(number)[0])
    except RuntimeError:
        return 0


def put(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """A tensor of the host on ``device``; itself where it is there. Nothing on the device is waited for."""
    return tensor.to(device, non_blocking=True)


def on_host(*tensors: torch.Tensor) -> list[Any]:
    """The numbers of tensors of one device, each as ``tolist`` gives them, with one copy from there."""
    return [each.tolist() for each in (tensors if tensors[0].is_cpu else fetched(*tensors))]


def fetched(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of one device in the host's memory: packed there and copied once; themselves if on the CPU."""
    if tensors[0].is_cpu:
        return tensors
    # The widest numbers first, so that each tensor begins where its own may.
    order = sorted(range(len(tensors)), key=lambda each: -tensors[each].itemsize)
    packed = torch.cat([tensors[each].reshape(-1).view(torch.uint8) for each in order]).cpu()
    found, begin = list(tensors), 0
    for each in order:
        tensor = tensors[each]
        found[each] = packed[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        begin += tensor.nbytes
    return tuple(found)


def joined_rows(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of several tensors of one device, one after the other; of a single one the tensor itself."""
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))


class CopyStream:
    """Copies from the host to one device beside what it computes, in order. Elsewhere than with CUDA nothing goes on by
    itself: each copy is done when it was asked for, and there is nothing to wait for.

    A *mark* is a place in the order of what a device was given; None: whatever is there, is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """uint8 [nbytes], which copies can be made from without a further one on the way."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._stream is not None)

    def computed(self) -> Mark:
        """What the device was given to compute until now."""
        return None if self._stream is None else torch.cuda.current_stream(self._device).record_event()

    def copy(self, source: torch.Tensor, target: torch.Tensor, behind: Mark = None) -> Mark:
        """From `host_memory` to the device, once it has come to `behind`; when it is done. Nobody waits for it here."""
        if self._stream is None:
            target.copy_(source)
            return None
        if behind is not None:
            self._stream.wait_event(behind)
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        done: Mark = self._stream.record_event()
        return done

    def compute_behind(self, mark: Mark) -> None:
        """What the device is given to compute from now on comes after that."""
        if mark is not None:
            torch.cuda.current_stream(self._device).wait_event(mark)

    @staticmethod
    def wait(mark: Mark) -> None:
        """Until the device has come to it."""
        if mark is not None:
            mark.synchronize()


def wait_for(device: torch.device) -> None:
    """Wait until it has computed what it was given: a GPU says only then that it could not. Raises ``DeviceLost``."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise DeviceLost(f"{device} is lost ({reason})") from error
