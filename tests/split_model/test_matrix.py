"""Matrices in every form against the plain product."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
from tiny_models import build_tiny
from torch.nn import functional

from split_model.checkpoint import Checkpoint
from split_model.matrix import Matrix, can_pack
from split_model.weight_parts import layer_parts

NEEDS_PACKING = pytest.mark.skipif(not can_pack(), reason="this CPU or torch has no packed bfloat16 product")


@pytest.mark.parametrize("rows", [0, 1, 5, 64])
@pytest.mark.parametrize("size", [(96, 64), (33, 7), (1, 1), (0, 8), (8, 0)])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_matrix_is_the_plain_product(dtype: torch.dtype, with_bias: bool, size: tuple[int, int], rows: int) -> None:
    """Within its rounding of the product in float64; float16, which is never packed, bit for bit. Empty sizes too."""
    generator = torch.Generator().manual_seed(rows)
    weight, x = (torch.randn(shape, generator=generator).to(dtype) for shape in (size, (rows, size[1])))
    bias = torch.randn(size[0], generator=generator).to(dtype) if with_bias else None
    plain = functional.linear(x, weight, bias)
    exact = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    found = Matrix(weight.clone(), bias)(x)
    assert found.dtype == dtype and found.shape == plain.shape
    if dtype == torch.float16:
        assert torch.equal(found, plain)
    # Sums are float32 in every dtype.
    summed = torch.finfo(torch.float32).eps * size[1]
    assert ((found.double() - exact).abs() <= torch.finfo(dtype).eps * exact.abs() + 2 * summed).all()


@NEEDS_PACKING
@pytest.mark.parametrize("with_bias", [False, True])
def test_any_number_of_rows_is_multiplied_alike(with_bias: bool) -> None:
    """Rows a packed product adds to fill a tile are not in its result, and change none that is: as many rows as were
    given, each within bfloat16's rounding of the product in float64."""
    generator = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(shape, generator=generator).bfloat16() for shape in ((96, 64), (96,)))
    matrix = Matrix(weight.clone(), bias if with_bias else None)
    for count in (*range(1, 41), 100, 129):
        x = torch.randn(count, 64, generator=generator).bfloat16()
        exact = functional.linear(x.double(), weight.double(), bias.double() if with_bias else None)
        found = matrix(x)
        assert found.shape == (count, 96) and found.dtype == torch.bfloat16
        assert ((found.double() - exact).abs() <= torch.finfo(torch.bfloat16).eps * (exact.abs() + 0.08)).all()


@pytest.mark.skipif(not can_pack(torch.float32), reason="this CPU or torch has no packed float32 product")
@pytest.mark.parametrize("with_bias", [False, True])
def test_packed_float32_is_the_product_too(with_bias: bool) -> None:
    """Of any number of rows, of a weight that lies either way, within float32's rounding of the product in float64."""
    generator = torch.Generator().manual_seed(0)
    weight, bias = (torch.randn(shape, generator=generator) for shape in ((96, 64), (96,)))
    for lying in (weight.clone(), weight.t().contiguous().t()):
        matrix = Matrix(lying, bias if with_bias else None)
        for count in (*range(20), 71, 284):
            x = torch.randn(count, 64, generator=generator)
            exact = functional.linear(x.double(), weight.double(), bias.double() if with_bias else None)
            found = matrix(x)
            assert found.shape == (count, 96) and found.dtype == torch.float32
            torch.testing.assert_close(found.double(), exact, atol=5e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [(96, 64), (33, 7)])
def test_elements_are_those_that_were_given(dtype: torch.dtype, size: tuple[int, int]) -> None:
    """To the last bit, packed or not, whichever way they lay."""
    weight = torch.randn(size, generator=torch.Generator().manual_seed(1)).to(dtype)
    for lying in (weight.clone(), weight.t().contiguous().t()):
        assert torch.equal(Matrix(lying).elements(), weight)
        assert torch.equal(Matrix(lying, pack=False).elements(), weight)


@NEEDS_PACKING
def test_a_packed_matrix_is_in_memory_once() -> None:
    """The plain weight is gone once it is packed, and the bytes counted are still its own."""
    weight = torch.randn(48, 32).bfloat16()
    plain = weakref.ref(weight)
    matrix = Matrix(weight, torch.zeros(48, dtype=torch.bfloat16))
    del weight
    assert plain() is None
    assert matrix.nbytes == 2 * (48 * 32 + 48)


def test_a_matrix_that_is_not_to_be_packed_shares_its_weight() -> None:
    """What is also somebody else's stays one tensor: a change of it shows."""
    weight = torch.ones(4, 8).bfloat16()
    matrix = Matrix(weight, pack=False)
    weight.zero_()
    assert not matrix(torch.ones(2, 8).bfloat16()).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loaded_parts_are_stacked_with_their_biases(dtype: torch.dtype, tmp_path: Path) -> None:
    """The product with a stack of parts is the parts' products side by side."""
    checkpoint = Checkpoint.open(build_tiny("llama-biases", tmp_path))
    parts = layer_parts(checkpoint.spec, 1)
    assert parts.gate is not None and parts.gate_bias is not None and parts.up_bias is not None
    matrix = Matrix.load(checkpoint, [parts.gate, parts.up], [parts.gate_bias, parts.up_bias], dtype)
    x = torch.randn(3, checkpoint.spec.hidden_size, generator=torch.Generator().manual_seed(0)).to(dtype)
    names = ((parts.gate, parts.gate_bias), (parts.up, parts.up_bias))
    wanted = [
        functional.linear(x, checkpoint.read(weight.name, dtype=dtype), checkpoint.read(bias.name, dtype=dtype))
        for weight, bias in names
    ]
    torch.testing.assert_close(
        matrix(x), torch.cat(wanted, 1), rtol=0.02, atol=1e-5 if dtype == torch.float32 else 0.02
    )
    assert Matrix.load(checkpoint, [parts.output], [None], dtype).bias is None
