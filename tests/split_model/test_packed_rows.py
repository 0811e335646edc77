"""Packed rows are the rows, bit for bit, in fewer bytes; whatever else is to be unpacked is refused."""

from __future__ import annotations

import os
import tracemalloc
import zlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from split_model.packed_rows import pack, shortest, unpack
from split_model.tensor_bytes import DTYPES

FLOATS = ("float32", "bfloat16", "float16")
each_float = pytest.mark.parametrize("name", FLOATS)
shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's memory: NaN equals itself, and 0 is not -0."""
    return tensor.contiguous().view(-1).view(torch.uint8)


@each_float
@given(shape=shapes, seed=st.integers(0, 2**16))
def test_every_bit_comes_back(name: str, shape: tuple[int, ...], seed: int) -> None:
    """Of any bits at all: numbers of any size, infinities and NaN of every kind."""
    torch.manual_seed(seed)
    count = torch.Size(shape).numel() * DTYPES[name].itemsize
    tensor = torch.randint(0, 256, (count,), dtype=torch.uint8).view(DTYPES[name]).view(shape)
    dtype, found, data = pack(tensor)
    assert (dtype, found) == (name, shape)
    assert torch.equal(bits(unpack(dtype, found, data)), bits(tensor))


@each_float
def test_hidden_states_take_less(name: str) -> None:
    """Numbers of about one size lose most of their exponents: in bfloat16 a third of all, at least 15 % else."""
    torch.manual_seed(1)
    rows = torch.randn(64, 256).to(DTYPES[name])
    _, _, data = pack(rows)
    assert len(data) / rows.nbytes < {"bfloat16": 0.7, "float16": 0.86, "float32": 0.85}[name]


def test_a_part_of_a_tensor_is_packed_as_it_is_read() -> None:
    """Row by row, whatever its strides are."""
    whole = torch.randn(8, 16).bfloat16()
    part = whole.t()[2:9]
    assert torch.equal(unpack(*pack(part)), part)


def test_the_shorter_of_both_is_sent() -> None:
    """Packed only where that may be and saves something: not single numbers, not what has no exponents, not noise."""
    rows = torch.randn(8, 64).bfloat16()
    assert shortest(rows, True)[3] and not shortest(rows, False)[3]
    assert not shortest(rows[:1, :1], True)[3]
    assert not shortest(torch.arange(1000), True)[3]
    noise = torch.frombuffer(bytearray(os.urandom(4096)), dtype=torch.bfloat16).view(8, 256)
    name, shape, data, packed = shortest(noise, True)
    assert not packed and len(data) == noise.nbytes and (name, shape) == ("bfloat16", (8, 256))


def test_what_is_no_number_is_not_packed() -> None:
    """Whole numbers have no exponent."""
    with pytest.raises(ValueError, match="int64 cannot be packed"):
        pack(torch.arange(4))
    with pytest.raises(ValueError, match="never packed"):
        unpack("int64", (4,), bytes(8))


@given(st.binary(max_size=200), st.sampled_from(FLOATS), shapes)
def test_anything_else_is_refused(data: bytes, name: str, shape: tuple[int, ...]) -> None:
    """Bytes from anywhere are a tensor of that shape, or a ValueError, and nothing else."""
    try:
        tensor = unpack(name, shape, data)
    except ValueError:
        return
    assert tuple(tensor.shape) == shape


@pytest.mark.parametrize(
    ("change", "said"),
    [("cut", "too few"), ("longer", "are not those of"), ("shape", "are not those of"), ("tail", "are not those of"),
     ("other", "damaged")],
)  # fmt: skip
def test_damage_is_noticed(change: str, said: str) -> None:
    """Too little, too much, of another shape, and what no coder writes."""
    rows = torch.randn(16, 32).bfloat16()
    name, shape, data = pack(rows)
    plain = rows.numel()
    if change == "cut":
        data = data[: plain // 2]
    elif change == "longer":
        data = data + bytes(7)
    elif change == "shape":
        shape = (16, 31)
    elif change == "tail":
        data = data[: len(data) - plain] + b"more" + data[-plain:]
    else:
        data = b"\xff" * 40 + data[-plain:]
    with pytest.raises(ValueError, match=said):
        unpack(name, shape, data)


def test_a_bomb_is_not_unpacked() -> None:
    """Bytes that would be ten million take no more memory than the rows that were announced."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = coder.compress(bytes(10_000_000)) + coder.flush() + bytes(512)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="are not those of"):
            unpack("bfloat16", (16, 32), data)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000
