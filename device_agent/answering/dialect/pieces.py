"""What an answer's text is made of. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True)
class Said:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True)
class Thought:
    """More of what is thought before the answer."""

    text: str


@dataclass(frozen=True)
class Begun:
    """A call of a tool begins, one behind the other."""

    id: str
    name: str


@dataclass(frozen=True)
class Argued:
    """More of the arguments of the call that began last."""

    text: str


Piece = Union[Said, Thought, Begun, Argued]


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the same with what goes on joined to what it goes on with."""
    found: list[Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if not isinstance(piece, Begun) and last is not None and type(last) is type(piece):
            assert not isinstance(last, Begun)
            found[-1] = type(piece)(last.text + piece.text)
        else:
            found.append(piece)
    return found
