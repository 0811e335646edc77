"""Tensors as bytes and back without a copy."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from split_model.tensor_bytes import DTYPES, from_bytes, to_bytes

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(st.sampled_from(sorted(DTYPES)), shapes)
def test_round_trip(name: str, shape: tuple[int, ...]) -> None:
    """Dtype, shape and every bit come back, from writable and read-only bytes."""
    tensor = (torch.randn(shape) * 100).to(DTYPES[name])
    found_name, found_shape, view = to_bytes(tensor)
    assert (found_name, found_shape, len(view)) == (name, shape, tensor.nbytes)
    for buffer in (view, bytes(view), bytearray(view)):
        back = from_bytes(name, shape, buffer)
        assert back.dtype == tensor.dtype and torch.equal(back, tensor)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_no_copy_either_way(name: str) -> None:
    """The bytes are the tensor's memory, and the tensor is the bytes' memory."""
    tensor = torch.zeros((3, 4), dtype=DTYPES[name])
    _, shape, view = to_bytes(tensor)
    tensor[0, 0] = 1
    assert bytes(view) != bytes(len(view))
    buffer = bytearray(view)
    back = from_bytes(name, shape, buffer)
    buffer[:] = bytes(len(buffer))
    assert not back.any()


def test_strided_and_inference_tensors_are_sent_too() -> None:
    """A transposed view is copied once; results of inference mode need no special care."""
    with torch.inference_mode():
        tensor = torch.arange(12, dtype=torch.float32).view(3, 4).t()
    _, shape, view = to_bytes(tensor)
    assert torch.equal(from_bytes("float32", shape, view), tensor)


@pytest.mark.parametrize(
    ("name", "shape", "length"),
    [
        ("float32", (2, 2), 15),
        ("float32", (2, 2), 17),
        ("bfloat16", (2, -1), 4),
        ("bfloat16", (2, True), 4),
        ("float64", (1,), 8),
        ("int64", (1 << 40,), 8),
    ],
)
def test_sizes_that_do_not_fit_are_refused(name: str, shape: tuple[int, ...], length: int) -> None:
    """Unknown dtypes, odd shapes and wrong lengths are ValueErrors before anything is made."""
    with pytest.raises(ValueError):
        from_bytes(name, shape, bytes(length))


def test_other_dtypes_are_refused() -> None:
    """A dtype that has no name on the wire is a ValueError."""
    with pytest.raises(ValueError, match="float64"):
        to_bytes(torch.zeros(2, dtype=torch.float64))
