"""Tensors as bytes and back, without a copy: what crosses a wire or a file; and rows looked at and joined as bytes.

The last is for an event loop's thread: torch would do it in parallel, which makes a team of threads for that thread as
well. See ``split_model.load_apart`` for what a second team costs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy
import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int64": torch.int64,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_BFLOAT16_EXPONENT = 0x7F80


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


def finite(rows: torch.Tensor) -> bool:
    """Whether `rows` (float32, bfloat16 or float16) hold neither NaN nor infinity."""
    if rows.dtype is torch.bfloat16:  # NumPy does not know it: all ones in the exponent are NaN or infinity.
        exponents = rows.view(torch.int16).numpy() & _BFLOAT16_EXPONENT
        return not bool((exponents == _BFLOAT16_EXPONENT).any())
    return bool(numpy.isfinite(rows.numpy()).all())


def joined(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """`pieces`, each [rows, hidden] and at least one, one after the other; a single one as it is."""
    if len(pieces) == 1:
        return pieces[0]
    whole = pieces[0].new_empty((sum(len(piece) for piece in pieces), pieces[0].shape[1]))
    target, begin = whole.view(torch.uint8).numpy(), 0
    for piece in pieces:
        end = begin + len(piece)
        target[begin:end] = piece.view(torch.uint8).numpy()
        begin = end
    return whole


def _warn_once_now() -> None:
    """torch warns once in a process that nothing keeps a tensor from writing to read-only bytes; we know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)


_warn_once_now()
