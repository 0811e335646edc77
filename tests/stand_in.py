"""A device that is not the CPU, for machines without one: ``stand:0``, whose tensors are the CPU's in disguise.

torch takes it for a backend of its own kind (PrivateUse1, its kernels in Python): tensors say that they are there,
factories make them there, and whoever mixes them with the CPU's gets an error, as on a GPU. Only a copy goes from one
to the other, and a number without a dimension may come along from the host. Each kernel is the CPU's own, so what
comes out is the same to the last bit. ``watched`` says what crosses to the host, and so what a GPU would be waited for.

What it has not of a GPU: work that goes on by itself, other roundings, graphs, a memory of its own. Nor
``torch.tensor(…, device=…)`` and lists as indices, which torch makes inside itself: ``torch.tensor(…).to(device)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import library
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "stand"
_COPIES = ("aten::copy_", "aten::_copy_from")
_WAITS = ("aten::nonzero", "aten::masked_select", "aten::equal", "aten::_unique2")
"""Operations whose result has a size, or is a number, that the host has to be told."""


@dataclass
class Crossings:
    """The shapes of what was copied from one memory to the other, or waited for, in order."""

    to_host: list[tuple[int, ...]] = field(default_factory=list)
    to_device: list[tuple[int, ...]] = field(default_factory=list)


_watched: list[Crossings] = []


@contextmanager
def watched() -> Iterator[Crossings]:
    """The crossings of all threads while this lasts."""
    found = Crossings()
    _watched.append(found)
    try:
        yield found
    finally:
        _watched.remove(found)


class _There(torch.Tensor):
    """A tensor of the device. ``held`` is the CPU's with its numbers: views of one are views of the other."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> _There:
        with torch.inference_mode(False):  # torch takes a view in one mode of a tensor in another for a mistake.
            made: _There = torch.Tensor._make_wrapper_subclass(
                cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=DEVICE
            )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, *args, **(kwargs or {}))

    def tolist(self) -> Any:
        """torch refuses it of a subclass; of a GPU's tensor it copies, as this does."""
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{NAME}:{self.held!r}"


def _run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """An operation that has to do with the device, by the CPU's kernel."""
    name: str = operation._schema.name
    if name in _COPIES:
        return _copied(operation, *args, **kwargs)
    given: list[torch.Tensor] = []
    held = [_here(each, given) for each in args]
    named = {key: _here(each, given) for key, each in kwargs.items()}
    for each in given:
        if not isinstance(each, _There) and each.dim():
            raise RuntimeError(f"{name}: a tensor {list(each.shape)} of the CPU among those of {DEVICE}")
    out = operation(*held, **named)
    if given and _goes_to_cpu(args, kwargs):
        _note("to_host", given[0])
        return out.clone()
    if name in _WAITS or (given and isinstance(out, bool | int | float)):
        _note("to_host", given[0])
    return _there(out, given)


def _goes_to_cpu(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(each, torch.device) and each.type == "cpu" for each in (*args, *kwargs.values()))


def _here(value: Any, given: list[torch.Tensor]) -> Any:
    """An argument as the CPU's kernel takes it; the tensors in it are added to those ``given``."""
    if isinstance(value, torch.Tensor):
        given.append(value)
        return value.held if isinstance(value, _There) else value
    if isinstance(value, list | tuple):
        return [_here(each, given) for each in value]
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def _there(value: Any, given: Sequence[torch.Tensor]) -> Any:
    """A result as the device gives it: what was written to in place is the tensor that was given."""
    if isinstance(value, torch.Tensor):
        for each in given:
            if isinstance(each, _There) and each.held is value:
                return each
        return _There(value)
    if isinstance(value, list | tuple):
        found = [_there(each, given) for each in value]
        return found if isinstance(value, list) else tuple(found)
    return value


def _copied(operation: Any, first: torch.Tensor, second: torch.Tensor, *more: Any, **kwargs: Any) -> torch.Tensor:
    """``copy_(to, from)`` or ``_copy_from(from, to)``, one of which is there at least."""
    source, target = (second, first) if operation._schema.name == "aten::copy_" else (first, second)
    if isinstance(source, _There) != isinstance(target, _There):
        _note("to_host" if isinstance(source, _There) else "to_device", source)
    held = target.held if isinstance(target, _There) else target
    held.copy_(source.held if isinstance(source, _There) else source)
    return target


def _note(way: str, tensor: torch.Tensor) -> None:
    for each in _watched:
        getattr(each, way).append(tuple(tensor.shape))


class _Module:
    """What ``torch.stand`` says: there are no such devices to care for, when random states are kept, say."""

    __name__ = f"torch.{NAME}"  # transformers asks for it, in whatever runs in one process with this.

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
_KERNELS = library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
_KERNELS.fallback(_run, "PrivateUse1")  # type: ignore[no-untyped-call]

DEVICE = torch.device(NAME, 0)
