"""Products of few rows that this package writes the instructions of, against the product in float64 and oneDNN's."""

from __future__ import annotations

import pytest
import torch

from split_model.few_rows import MOST_ROWS, FewRows, can_run
from split_model.matrix import Matrix, can_pack

NEEDS_CPU = pytest.mark.skipif(not (can_pack() and can_run()), reason="this CPU has no bfloat16 products in 512 bits")


def made(columns: int, depth: int, with_bias: bool = False) -> tuple[FewRows, torch.Tensor, torch.Tensor | None]:
    """A matrix of random weights, with these and its bias."""
    generator = torch.Generator().manual_seed(columns + depth)
    weight = torch.randn(columns, depth, generator=generator).bfloat16()
    bias = torch.randn(columns, generator=generator).bfloat16() if with_bias else None
    few = FewRows.of(torch.ops.mkldnn._reorder_linear_weight(weight, None), weight, bias)
    assert few is not None
    return few, weight, bias


@NEEDS_CPU
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("size", [(64, 32), (128, 96), (1536, 1024), (192, 4096)])
def test_few_rows_are_the_product(size: tuple[int, int], with_bias: bool) -> None:
    """Every number of rows, with and without a bias, within bfloat16's rounding of the product in float64."""
    few, weight, bias = made(*size, with_bias)
    for count in range(1, MOST_ROWS + 1):
        rows = torch.randn(count, size[1], generator=torch.Generator().manual_seed(count)).bfloat16()
        exact = torch.nn.functional.linear(rows.double(), weight.double(), None if bias is None else bias.double())
        found = few(rows)
        assert found.dtype == torch.bfloat16 and found.shape == exact.shape
        allowed = torch.finfo(torch.bfloat16).eps * (exact.abs() + 0.01 * size[1] ** 0.5)
        assert ((found.double() - exact).abs() <= allowed).all()


@NEEDS_CPU
def test_a_row_has_the_same_product_whatever_is_beside_it() -> None:
    """Bit for bit: a draft's rows, verified at once, are those that would be computed one by one."""
    few, _, _ = made(256, 512, with_bias=True)
    rows = torch.randn(MOST_ROWS, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    alone = torch.cat([few(row[None]) for row in rows])
    for count in range(1, MOST_ROWS + 1):
        assert torch.equal(few(rows[:count]), alone[:count])


@NEEDS_CPU
def test_rows_of_any_strides_are_multiplied() -> None:
    """Rows that are a part of wider ones, or lie column by column, count as they are read."""
    few, _, _ = made(64, 32)
    wide = torch.randn(3, 80, generator=torch.Generator().manual_seed(0)).bfloat16()
    for rows in (wide[:, 7:39], wide[:, 7:39].t().contiguous().t(), wide[::2, :32]):
        assert torch.equal(few(rows), few(rows.clone(memory_format=torch.contiguous_format)))


@NEEDS_CPU
@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros(1, 32),
        torch.zeros(1, 64, dtype=torch.bfloat16),
        torch.zeros(0, 32, dtype=torch.bfloat16),
        torch.zeros(MOST_ROWS + 1, 32, dtype=torch.bfloat16),
        torch.zeros(1, 1, 32, dtype=torch.bfloat16),
    ],
    ids=["float32", "too wide", "none", "too many", "three dimensions"],
)
def test_other_rows_are_refused(rows: torch.Tensor) -> None:
    """Nothing is read beyond the rows' own memory."""
    few, _, _ = made(64, 32)
    with pytest.raises(ValueError, match="they must be"):
        few(rows)


@NEEDS_CPU
@pytest.mark.parametrize("size", [(96, 64), (64, 48), (1, 1)])
def test_sizes_that_are_packed_otherwise_are_left_to_onednn(size: tuple[int, int]) -> None:
    """Blocks that would not be full are none of ours; the matrix multiplies all the same."""
    weight = torch.randn(size).bfloat16()
    assert FewRows.of(torch.ops.mkldnn._reorder_linear_weight(weight, None), weight, None) is None
    assert Matrix(weight)(torch.ones(1, size[1]).bfloat16()).shape == (1, size[0])


@NEEDS_CPU
def test_weights_that_lie_otherwise_are_noticed() -> None:
    """Of a torch that packs in another order the bytes are not those wanted, and oneDNN multiplies."""
    weight = torch.randn(128, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    other = torch.ops.mkldnn._reorder_linear_weight(weight.roll(1, 1), None)
    assert FewRows.of(other, weight, None) is None


@NEEDS_CPU
@pytest.mark.parametrize(("threads", "most"), [(1, MOST_ROWS), (2, 4), (3, 0)])
def test_a_matrix_leaves_more_rows_to_onednn(threads: int, most: int) -> None:
    """Up to so many rows its products are these, of more they are oneDNN's: fewer, where oneDNN has more threads."""
    few, weight, _ = made(192, 4096)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    rows = torch.randn(MOST_ROWS, 4096, generator=torch.Generator().manual_seed(1)).bfloat16()
    matrix = Matrix(weight)
    torch.set_num_threads(threads)
    for count in range(1, MOST_ROWS + 1):
        some = rows[:count]
        theirs = torch.ops.mkldnn._linear_pointwise(some, packed, None, "none", [], "")
        assert torch.equal(matrix(some), few(some) if count <= most else theirs)
