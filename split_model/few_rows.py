"""Products of few rows with a bfloat16 matrix, as fast as memory gives its weights.

oneDNN's kernel asks for some of the weights ahead of time, and where rows are few that disturbs what the CPU fetches
ahead by itself: it reads memory half as fast as a plain loop over the same bytes. This module writes that loop, in the
CPU's own instructions and while the program runs, as oneDNN and FBGEMM do within torch, so that nobody needs a
compiler. It reads the very bytes that oneDNN has packed, so each matrix is in memory once.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import torch

from split_model.machine_code import Code, Register, callable_code

MOST_ROWS = 16
"""More rows than these are bound by the products themselves, which oneDNN computes as fast."""

_MOST_BY_THREADS = {1: MOST_ROWS, 2: 4}
"""The loop runs on one thread, which of so few rows beats oneDNN on so many."""

COLUMNS, DEEP = 64, 32
"""oneDNN packs the weights of so many columns of a product into one block, the inputs of each so many at a time."""

_AT_ONCE = 6
"""So many rows have all their sums in registers, beside what is multiplied. More come in turns within a block of
columns, which is in the cache from the second turn on."""

_VECTORS, _VECTOR_BYTES = 4, 64
_FLAGS = {"avx512f", "avx512vl", "avx512_bf16"}


class FewRows:
    """The product with one matrix that oneDNN has packed. `of` makes it, and looks at what was packed."""

    def __init__(self, packed: torch.Tensor, size: tuple[int, int], bias: torch.Tensor | None) -> None:
        """size: [out, in] of the weight. bias: [out]."""
        self._packed = packed
        self._columns, self._depth = size
        self._weights = int(torch.ops.mkldnn.data_ptr(packed))
        self._bias = None if bias is None else bias.float().contiguous()
        self._bias_at = 0 if self._bias is None else self._bias.data_ptr()

    @classmethod
    def of(cls, packed: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> FewRows | None:
        """packed: what oneDNN has made of `weight` [out, in], bfloat16.

        None where this machine cannot run it, or where oneDNN packs otherwise than is read here.
        """
        if not can_run() or not _is_blocked(packed, weight):
            return None
        return cls(packed, (weight.shape[0], weight.shape[1]), bias)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [1 to MOST_ROWS, in], bfloat16 -> [rows, out], bfloat16, summed in float32 in the order of the inputs:
        a row's product is the same whatever rows are beside it.

        Raises ValueError for other rows.
        """
        count = rows.shape[0]
        if rows.shape != (count, self._depth) or not 0 < count <= MOST_ROWS or rows.dtype != torch.bfloat16:
            wanted = f"bfloat16 [1 to {MOST_ROWS}, {self._depth}]"
            raise ValueError(f"rows are {rows.dtype} {list(rows.shape)}; they must be {wanted}")
        rows = rows.contiguous()
        product = rows.new_empty((count, self._columns))
        run = _program(count, self._depth, self._columns, self._bias is not None)
        run(self._weights, rows.data_ptr(), product.data_ptr(), self._columns // COLUMNS, self._bias_at)
        return product


def most_rows() -> int:
    """Up to how many rows `FewRows` is faster than oneDNN, with as many threads as torch uses now."""
    return _MOST_BY_THREADS.get(torch.get_num_threads(), 0)


def can_run() -> bool:
    """Whether this CPU has the instructions, and the system lets a process run what it has written itself."""
    return not why_not()


@lru_cache(maxsize=1)
def why_not() -> str:
    """Why that is not so, in words; empty where it is."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return "only Linux on x86-64 has them"
    if not all(hasattr(torch.ops.mkldnn, name) for name in ("data_ptr", "_nbytes")):
        return "this PyTorch does not tell where its packed matrices lie"
    try:
        flags = [line.split() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")]
        if not flags or not all(_FLAGS.issubset(each) for each in flags):
            lacking = sorted(_FLAGS.difference(*flags[:1]))
            return f"this processor has no {', '.join(lacking)}"
        _program(1, DEEP, COLUMNS, False)
    except OSError as error:
        return f"this system does not run what a process has written ({error.strerror})"
    return ""


def _is_blocked(packed: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the weights lie as [out / 64, in / 2, 64, 2]: their first and their last block are compared."""
    columns, depth = weight.shape
    if columns % COLUMNS or depth % DEEP or torch.ops.mkldnn._nbytes(packed) != weight.nbytes:
        return False
    memory = (ctypes.c_char * weight.nbytes).from_address(torch.ops.mkldnn.data_ptr(packed))
    blocks = torch.frombuffer(memory, dtype=torch.int16).view(-1, COLUMNS * depth)
    for block, rows in ((blocks[0], weight[:COLUMNS]), (blocks[-1], weight[-COLUMNS:])):
        wanted = rows.reshape(COLUMNS, depth // 2, 2).transpose(0, 1).flatten()
        if not torch.equal(block, wanted.view(torch.int16)):
            return False
    return True


@cache
def _program(rows: int, depth: int, columns: int, with_bias: bool) -> Callable[..., None]:
    return callable_code(product_code(rows, depth, columns, with_bias), 5)


def product_code(rows: int, depth: int, columns: int, with_bias: bool) -> bytes:
    """A function of the addresses of weights, rows and product, how many blocks of columns, and the bias's address.

    Each block is multiplied with some rows after the others: it comes from memory once.
    """
    weights, inputs, product, blocks, bias = Register.RDI, Register.RSI, Register.RDX, Register.RCX, Register.R8
    weight, pair, left = Register.RAX, Register.R9, Register.R10
    loaded, given = range(28, 32), 27
    pair_bytes = _VECTORS * _VECTOR_BYTES
    code = Code()
    next_block = code.label()
    for first in range(0, rows, _AT_ONCE):
        some = range(first, min(rows, first + _AT_ONCE))
        sums = {(row, part): _VECTORS * (row - first) + part for row in some for part in range(_VECTORS)}
        for each in sums.values():
            code.clear(each)
        code.copy(weight, weights)
        code.copy(pair, inputs)
        code.put(left, depth // 2)
        next_pair = code.label()
        for part in range(_VECTORS):
            code.load(loaded[part], weight, part * _VECTOR_BYTES)
        for row in some:
            code.load_everywhere(given, pair, row * depth * 2)
            for part in range(_VECTORS):
                code.add_products(sums[row, part], loaded[part], given)
        code.advance(weight, pair_bytes)
        code.advance(pair, 4)
        code.count_down(left)
        code.jump_unless_zero(next_pair)
        for (row, part), each in sums.items():
            if with_bias:
                code.add(each, bias, part * _VECTOR_BYTES)
            code.round_to_bfloat16(given, each)
            code.store_half(given, product, row * columns * 2 + part * _VECTOR_BYTES // 2)
    code.advance(weights, depth // 2 * pair_bytes)
    code.advance(product, COLUMNS * 2)
    code.advance(bias, COLUMNS * 4)
    code.count_down(blocks)
    code.jump_unless_zero(next_block)
    code.end()
    return code.finished()
