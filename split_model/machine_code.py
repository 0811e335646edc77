"""The few x86-64 instructions of a product of few rows, as bytes, and memory that a CPU will run them from.

No general assembler: every operand is of the kind that `split_model.few_rows` needs. Names and encodings are those of
Intel's manual, volume 2. Addresses are a register and a distance; vectors are the 512-bit registers 0 to 31.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from enum import IntEnum

import numpy as np

_RUNNABLE: list[np.ndarray] = []
"""All code that may still be called: its memory goes when nobody refers to it."""


class Register(IntEnum):
    """General registers by their numbers; those that a function is called with, and those that it may change."""

    RAX = 0
    RCX = 1
    RDX = 2
    RSI = 6
    RDI = 7
    R8 = 8
    R9 = 9
    R10 = 10


# Of an EVEX prefix: which table an operation is in, and what would be a prefix byte of its own.
_0F, _0F38 = 1, 2
_NONE, _66, _F3 = 0, 1, 2
_HALF, _WHOLE = 1, 2  # 256 and 512 bits


class Code:
    """Instructions, one behind the other."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def finished(self) -> bytes:
        return bytes(self._bytes)

    def label(self) -> int:
        """Where the next instruction stands, for `jump_unless_zero`."""
        return len(self._bytes)

    # Each instruction by its name in the manual.

    def copy(self, to: Register, source: Register) -> None:
        """mov"""
        self._bytes += bytes((0x48 | (source >> 3) << 2 | to >> 3, 0x89, 0xC0 | (source & 7) << 3 | to & 7))

    def put(self, to: Register, number: int) -> None:
        """mov of a number below 2^31"""
        self._bytes += bytes((0x48 | to >> 3, 0xC7, 0xC0 | to & 7)) + _distance(number)

    def advance(self, register: Register, number: int) -> None:
        """add"""
        self._bytes += bytes((0x48 | register >> 3, 0x81, 0xC0 | register & 7)) + _distance(number)

    def count_down(self, register: Register) -> None:
        """dec"""
        self._bytes += bytes((0x48 | register >> 3, 0xFF, 0xC8 | register & 7))

    def jump_unless_zero(self, label: int) -> None:
        """jnz, behind `count_down`"""
        self._bytes += b"\x0f\x85" + _distance(label - len(self._bytes) - 6)

    def end(self) -> None:
        """vzeroupper, ret"""
        self._bytes += b"\xc5\xf8\x77\xc3"

    def clear(self, vector: int) -> None:
        """vpxord of a vector with itself"""
        self._between(_0F, _66, 0xEF, vector, vector, vector)

    def load(self, vector: int, base: Register, distance: int) -> None:
        """vmovups of 64 bytes"""
        self._at(_0F, _NONE, 0x10, vector, 0, base, distance)

    def load_everywhere(self, vector: int, base: Register, distance: int) -> None:
        """vpbroadcastd: 4 bytes, sixteen times"""
        self._at(_0F38, _66, 0x58, vector, 0, base, distance)

    def add_products(self, sums: int, left: int, right: int) -> None:
        """vdpbf16ps: the products of pairs of bfloat16, added to sixteen float32"""
        self._between(_0F38, _F3, 0x52, sums, left, right)

    def add(self, sums: int, base: Register, distance: int) -> None:
        """vaddps: sixteen float32 of memory, added"""
        self._at(_0F, _NONE, 0x58, sums, sums, base, distance)

    def round_to_bfloat16(self, vector: int, sums: int) -> None:
        """vcvtneps2bf16: sixteen float32 to the lower half of a vector"""
        self._between(_0F38, _F3, 0x72, vector, 0, sums)

    def store_half(self, vector: int, base: Register, distance: int) -> None:
        """vmovups of the 32 bytes of a lower half"""
        self._at(_0F, _NONE, 0x11, vector, 0, base, distance, _HALF)

    def _between(self, table: int, prefix: int, operation: int, to: int, first: int, second: int) -> None:
        self._evex(table, prefix, _WHOLE, to, first, second & 8, second & 16)
        self._bytes += bytes((operation, 0xC0 | (to & 7) << 3 | second & 7))

    def _at(
        self,
        table: int,
        prefix: int,
        operation: int,
        vector: int,
        first: int,
        base: Register,
        distance: int,
        size: int = _WHOLE,
    ) -> None:
        self._evex(table, prefix, size, vector, first, base & 8, 0)
        self._bytes += bytes((operation, 0x80 | (vector & 7) << 3 | base & 7)) + _distance(distance)

    def _evex(self, table: int, prefix: int, size: int, to: int, first: int, low_bit: int, high_bit: int) -> None:
        """The prefix of a vector's instruction, in which the upper bits of register numbers stand inverted."""
        upper = (to & 8 == 0) << 7 | (not high_bit) << 6 | (not low_bit) << 5 | (to & 16 == 0) << 4
        self._bytes += bytes((0x62, upper | table, (~first & 15) << 3 | 4 | prefix, size << 5 | (first & 16 == 0) << 3))


def _distance(number: int) -> bytes:
    return number.to_bytes(4, "little", signed=True)


def callable_code(code: bytes, arguments: int) -> Callable[..., None]:
    """A function of so many numbers and addresses, of no result, that stays in memory as long as this process.

    The memory can never be written to where it can be run. Raises OSError where the system allows no such memory.
    """
    file = os.memfd_create("product")
    try:
        os.write(file, code)
        memory = mmap.mmap(file, len(code), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    finally:
        os.close(file)
    held = np.frombuffer(memory, np.uint8)
    _RUNNABLE.append(held)
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(held.ctypes.data)
