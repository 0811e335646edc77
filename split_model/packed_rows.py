"""Hidden states in fewer bytes, every bit of them kept: what a slow link carries in place of the rows as they are.

The exponents of hidden states are alike, signs and mantissas are not. So each number is turned left by one bit, which
puts its exponent alone (bfloat16, float32) or with three bits of its mantissa (float16) into its highest byte; these
bytes are Huffman-coded together (DEFLATE without its search for repetitions, which finds none here), and all others
follow as they are. In bfloat16 a third of the bytes is saved, at some 100 MB/s of rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from math import prod
from typing import Any, Final

import numpy as np
import torch

from split_model.tensor_bytes import DTYPES, to_bytes

_WORDS: Final[Mapping[str, np.dtype[Any]]] = {
    "bfloat16": np.dtype("<u2"),
    "float16": np.dtype("<u2"),
    "float32": np.dtype("<u4"),
}


def pack(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """Dtype name, shape and packed bytes of a tensor of floating-point numbers, at least one.

    Raises ValueError for any other dtype.
    """
    name, shape, view = to_bytes(tensor)
    if name not in _WORDS:
        raise ValueError(f"{name} cannot be packed; one of {', '.join(_WORDS)} can")
    words = np.frombuffer(view, _WORDS[name])
    turned = (words << 1) | (words >> (8 * words.itemsize - 1))
    planes = turned.view(np.uint8).reshape(-1, words.itemsize)
    coder = zlib.compressobj(level=1, wbits=-zlib.MAX_WBITS, strategy=zlib.Z_HUFFMAN_ONLY)
    coded = coder.compress(planes[:, -1].tobytes()) + coder.flush()
    return name, shape, coded + planes[:, :-1].tobytes()


def shortest(tensor: torch.Tensor, may_pack: bool) -> tuple[str, tuple[int, ...], bytes | memoryview, bool]:
    """Dtype name, shape and bytes of a tensor, and whether they are packed: where they may be and it makes them fewer.

    Raises ValueError for a dtype that cannot be sent.
    """
    if may_pack and tensor.is_floating_point():
        name, shape, packed = pack(tensor)
        if len(packed) < tensor.nbytes:
            return name, shape, packed, True
    return *to_bytes(tensor), False


def unpack(dtype_name: str, shape: tuple[int, ...], packed: bytes | bytearray | memoryview) -> torch.Tensor:
    """The tensor that was packed. It takes a few times the memory of that, whatever ``packed`` holds.

    Raises ValueError where ``packed`` is not what ``pack`` makes of a tensor of this dtype and shape.
    """
    if dtype_name not in _WORDS:
        raise ValueError(f"{dtype_name!r} is never packed")
    kind, count = _WORDS[dtype_name], prod(shape)
    plain = count * (kind.itemsize - 1)
    view = memoryview(packed).cast("B")
    if count < 1 or len(view) <= plain:
        raise ValueError(f"{len(view)} packed bytes are too few for {dtype_name} {list(shape)}")
    decoder = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        # One byte more than there may be, so that more is noticed.
        highest = decoder.decompress(view[: len(view) - plain], count + 1)
    except zlib.error as error:
        raise ValueError(f"the packed bytes are damaged: {error}") from None
    if len(highest) != count or not decoder.eof or decoder.unused_data:
        raise ValueError(f"the packed bytes are not those of {dtype_name} {list(shape)}")
    planes = np.empty((count, kind.itemsize), np.uint8)
    planes[:, :-1] = np.frombuffer(view[len(view) - plain :], np.uint8).reshape(count, -1)
    planes[:, -1] = np.frombuffer(highest, np.uint8)
    turned = planes.reshape(-1).view(kind)
    words = (turned >> 1) | (turned << (8 * kind.itemsize - 1))
    return torch.from_numpy(words.view(np.uint8)).view(DTYPES[dtype_name]).view(shape)
