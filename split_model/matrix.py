"""One weight matrix in the form that multiplies fastest where it lies."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch.nn import functional

from split_model.checkpoint import Checkpoint
from split_model.few_rows import FewRows, most_rows
from split_model.weight_parts import WeightPart

TILE_ROWS = 16
"""Packed bfloat16 products have up to this many rows, or a multiple of them: so many are one tile of a CPU's matrix
unit, and oneDNN compiles a kernel, which takes milliseconds, for every number of rows that it has not seen. One for
float32 takes a third of a millisecond."""

LEAST_ROWS = 4
"""Packed float32 products of fewer rows are filled up to so many: on some CPUs they take longer, on others an eighth
less. To try which it is would round rows differently in one process than in the next."""


class Matrix:
    """weight [out, in] and perhaps bias [out], called with rows [rows, in]; gives [rows, out], all of one dtype.

    A float32 or bfloat16 matrix on an x86 CPU is packed by oneDNN once, in its kernels' own order. One row is then
    multiplied up to 1.8 times as fast, more 1.2 to 3.5 times; few rows of bfloat16 as fast as `FewRows` reads the same
    bytes.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, pack: bool = True) -> None:
        """Packs `weight` where that pays; who keeps a reference to it has it in memory twice, or says `pack=False`."""
        self.bias = bias
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        """Bytes of weight and bias."""
        self.device = weight.device
        self._weight = weight
        self._packed_product: Callable[..., torch.Tensor] | None = None
        self._few_rows: FewRows | None = None
        self._least = self._multiple = 1
        if pack and weight.numel() and packs(weight.dtype, weight.device):
            with torch.inference_mode():
                self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
                if weight.dtype == torch.bfloat16:
                    self._few_rows, self._multiple = FewRows.of(self._weight, weight, bias), TILE_ROWS
                else:
                    self._least = LEAST_ROWS
            self._packed_product = torch.ops.mkldnn._linear_pointwise.default

    @classmethod
    def copy_of(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Matrix:
        """Of a `weight` in memory that will be another's: packed, which is a copy, or copied, and not in turn."""
        packed = bool(weight.numel()) and packs(weight.dtype, weight.device)
        return cls(weight if packed else weight.clone(), bias)

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        parts: Sequence[WeightPart],
        bias_parts: Sequence[WeightPart | None],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        pack: bool = True,
    ) -> Matrix:
        """Parts stacked by rows, and their biases likewise, where there are any.

        pack: as of `Matrix`.

        Raises BadCheckpoint where a tensor is missing or has another shape than the config says.
        """
        bias = load_bias(checkpoint, bias_parts, dtype, device)
        return cls(read_stacked(checkpoint, parts, dtype, device, pack), bias, pack)

    @property
    def is_plain(self) -> bool:
        """Whether it is not packed, so that its elements lie in memory as they are."""
        return self._packed_product is None

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements, of what they are multiplied with, and of the products."""
        return self._weight.dtype

    @property
    def weight(self) -> torch.Tensor:
        """The elements, [out, in], of a matrix that is not packed."""
        assert self.is_plain
        return self._weight

    def elements(self) -> torch.Tensor:
        """[out, in]: of a packed matrix a copy, which takes about as long to make as one row is to multiply."""
        return self._weight if self.is_plain else self._weight.to_dense()

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        if self._packed_product is None:
            return functional.linear(rows, self._weight, self.bias)
        count = rows.shape[0]
        if self._few_rows is not None and 0 < count <= most_rows():
            return self._few_rows(rows)
        missing = max(self._least - count, 0) if count <= TILE_ROWS else -count % self._multiple
        if missing:
            rows = functional.pad(rows, (0, 0, 0, missing))
        product = self._packed_product(rows, self._weight, self.bias, "none", [], "")
        return product[:count] if missing else product


@lru_cache(maxsize=2)
def can_pack(dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether this torch and this CPU have oneDNN's packed product of that dtype, bfloat16 or float32."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    if not all(hasattr(torch.ops.mkldnn, name) for name in names):
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packs(dtype: torch.dtype, device: torch.device | str) -> bool:
    """Whether `Matrix` packs weights of that kind, unless it is told not to."""
    packed = dtype in (torch.float32, torch.bfloat16) and torch.device(device).type == "cpu"
    return packed and can_pack(dtype)


def load_bias(
    checkpoint: Checkpoint,
    parts: Sequence[WeightPart | None],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> torch.Tensor | None:
    """Those parts that there are, one after the other: [out]; None where there are none. Raises BadCheckpoint."""
    present = [part for part in parts if part is not None]
    return read_stacked(checkpoint, present, dtype, device) if present else None


def read_stacked(
    checkpoint: Checkpoint,
    parts: Sequence[WeightPart],
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    pack: bool = True,
) -> torch.Tensor:
    """Parts stacked by rows in one tensor: [out, in], or [out] for biases and norms. Raises BadCheckpoint.

    pack: whether a `Matrix` will pack it, where it can. On another device it is read block by block, straight there.
    """
    for part in parts:
        checkpoint.check(part)
    heights = [part.shape[0] for part in parts]
    shape = (sum(heights), *parts[0].shape[1:])
    with torch.inference_mode():
        out = empty_for_products(shape, dtype, device, pack)
        for part, rows in zip(parts, out.split_with_sizes(heights), strict=True):
            checkpoint.read_into(part, rows)
        return out


def read_table(
    checkpoint: Checkpoint, part: WeightPart, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """A tensor that is looked up by rows, each of which is in one piece: [rows, size]. Raises BadCheckpoint."""
    checkpoint.check(part)
    table = torch.empty(part.shape, dtype=dtype, device=device)
    checkpoint.read_into(part, table)
    return table


def empty_for_products(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str, pack: bool = True
) -> torch.Tensor:
    """Room for weights, [out, in] or [out], laid out as few rows are multiplied fastest where they are.

    pack: whether a `Matrix` will pack them, where it can; it reads them fastest as they lie in files.
    """
    if len(shape) == 2 and lies_turned(dtype, device) and not (pack and packs(dtype, device)):
        return torch.empty(shape[::-1], dtype=dtype).t()
    return torch.empty(shape, dtype=dtype, device=device)


def lies_turned(dtype: torch.dtype, device: torch.device | str) -> bool:
    """Whether a matrix of that kind that is not packed lies in memory as [in, out].

    A float32 product of few rows on a CPU then runs up to 1.7 times faster; half-precision kernels want it the other
    way round.
    """
    return dtype == torch.float32 and torch.device(device).type == "cpu"
