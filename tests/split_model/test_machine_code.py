"""Instructions as bytes, against those that the GNU assembler makes of them; and code that runs."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from typing import Any

import pytest

from split_model.machine_code import Code, Register, callable_code

R = Register
ASSEMBLED: list[tuple[str, Callable[[Code], None], str]] = [
    ("mov rax, rdi", lambda code: code.copy(R.RAX, R.RDI), "48 89 f8"),
    ("mov r9, rsi", lambda code: code.copy(R.R9, R.RSI), "49 89 f1"),
    ("mov r10, 0x200", lambda code: code.put(R.R10, 0x200), "49 c7 c2 00 02 00 00"),
    ("add rdi, 0x20000", lambda code: code.advance(R.RDI, 0x20000), "48 81 c7 00 00 02 00"),
    ("add r8, 0x100", lambda code: code.advance(R.R8, 0x100), "49 81 c0 00 01 00 00"),
    ("dec r10", lambda code: code.count_down(R.R10), "49 ff ca"),
    ("dec rcx", lambda code: code.count_down(R.RCX), "48 ff c9"),
    ("jne to itself", lambda code: code.jump_unless_zero(0), "0f 85 fa ff ff ff"),
    ("vzeroupper, ret", lambda code: code.end(), "c5 f8 77 c3"),
    ("vpxord zmm0", lambda code: code.clear(0), "62 f1 7d 48 ef c0"),
    ("vpxord zmm23", lambda code: code.clear(23), "62 a1 45 40 ef ff"),
    ("vmovups zmm28, [rax+0x40]", lambda code: code.load(28, R.RAX, 0x40), "62 61 7c 48 10 a0 40 00 00 00"),
    ("vmovups zmm7, [r9+0x40]", lambda code: code.load(7, R.R9, 0x40), "62 d1 7c 48 10 b9 40 00 00 00"),
    (
        "vpbroadcastd zmm27, [r9+0x800]",
        lambda code: code.load_everywhere(27, R.R9, 0x800),
        "62 42 7d 48 58 99 00 08 00 00",
    ),
    ("vdpbf16ps zmm0, zmm28, zmm27", lambda code: code.add_products(0, 28, 27), "62 92 1e 40 52 c3"),
    ("vdpbf16ps zmm15, zmm31, zmm8", lambda code: code.add_products(15, 31, 8), "62 52 06 40 52 f8"),
    ("vdpbf16ps zmm16, zmm1, zmm2", lambda code: code.add_products(16, 1, 2), "62 e2 76 48 52 c2"),
    ("vaddps zmm17, [r8+0x40]", lambda code: code.add(17, R.R8, 0x40), "62 c1 74 40 58 88 40 00 00 00"),
    ("vcvtneps2bf16 ymm27, zmm9", lambda code: code.round_to_bfloat16(27, 9), "62 42 7e 48 72 d9"),
    ("vcvtneps2bf16 ymm3, zmm22", lambda code: code.round_to_bfloat16(3, 22), "62 b2 7e 48 72 de"),
    ("vmovups [rdx+0xc20], ymm27", lambda code: code.store_half(27, R.RDX, 0xC20), "62 61 7c 28 11 9a 20 0c 00 00"),
]


@pytest.mark.parametrize(("write", "wanted"), [each[1:] for each in ASSEMBLED], ids=[each[0] for each in ASSEMBLED])
def test_instructions_are_the_assemblers(write: Callable[[Code], None], wanted: str) -> None:
    """Register numbers below and above 8 and 16 are in every place where they are used."""
    code = Code()
    write(code)
    assert code.finished().hex(" ") == wanted


@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="code for another system or CPU"
)
def test_code_runs_and_nobody_can_change_it() -> None:
    """A loop that counts down ends; the memory that it is in can be read and run only."""
    code = Code()
    again = code.label()
    code.count_down(Register.RDI)
    code.jump_unless_zero(again)
    code.end()
    run: Any = callable_code(code.finished(), 1)
    run(1000)
    address = ctypes.cast(run, ctypes.c_void_p).value
    assert address is not None
    with open("/proc/self/maps") as maps:
        [rights] = [line.split()[1] for line in maps if _covers(line, address)]
    assert rights == "r-xp"


def _covers(line: str, address: int) -> bool:
    first, last = (int(end, 16) for end in line.split()[0].split("-"))
    return first <= address < last
