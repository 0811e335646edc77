"""Tensors as bytes and back, without a copy: what crosses a wire or a file."""

from __future__ import annotations

import math
import warnings

import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def to_bytes(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], memoryview]:
    """Dtype name, shape and bytes (row-major, little endian).

    The bytes are a view of a contiguous CPU tensor's own memory, else of a copy; the view keeps it alive.
    Raises ValueError for a dtype that is not in DTYPES.
    """
    name = _NAMES.get(tensor.dtype)
    if name is None:
        raise ValueError(f"dtype {tensor.dtype} cannot be sent; use one of {', '.join(DTYPES)}")
    flat = tensor.detach().contiguous().cpu().view(-1).view(torch.uint8)
    return name, tuple(tensor.shape), flat.numpy().data


def from_bytes(dtype_name: str, shape: tuple[int, ...], buffer: bytes | bytearray | memoryview) -> torch.Tensor:
    """The tensor whose memory `buffer` is. Treat it as read-only where the buffer is.

    Raises ValueError for an unknown dtype, a bad shape or a length that does not fit them.
    """
    dtype = DTYPES.get(dtype_name)
    if dtype is None:
        raise ValueError(f"dtype {dtype_name!r} is not one of {', '.join(DTYPES)}")
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"shape {shape!r} is not made of whole numbers from 0")
    view = memoryview(buffer).cast("B")
    wanted = math.prod(shape) * dtype.itemsize
    if len(view) != wanted:
        raise ValueError(f"{len(view)} bytes are not the {wanted} of {dtype_name} {list(shape)}")
    if wanted == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(view, dtype=dtype).view(shape)


def _warn_once_now() -> None:
    """torch warns once in a process that nothing keeps a tensor from writing to read-only bytes; we know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)


_warn_once_now()
