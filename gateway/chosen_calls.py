"""The calls of tools in one choice, as they come. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from gateway.reply_schema import CalledFunction, FunctionPiece, ToolCallMade, ToolCallPiece
from wire.request_messages import CallPiece


@dataclass
class Call:
    """A call as it grows."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The arguments so far."""
        return "".join(self.arguments)


class Calls:
    """All calls of one choice."""

    def __init__(self) -> None:
        self._calls: list[Call] = []

    def add(self, pieces: Iterable[CallPiece]) -> None:
        """Take in what is new; of calls that never began there is nothing to tell."""
        for piece in pieces:
            if piece.at == len(self._calls):
                self._calls.append(Call(piece.id, piece.name))
            if piece.at < len(self._calls) and piece.arguments:
                self._calls[piece.at].arguments.append(piece.arguments)

    def made(self) -> list[ToolCallMade]:
        """Return them as a chat reply has them."""
        return [ToolCallMade(call.id, CalledFunction(call.name, call.text)) for call in self._calls]


def call_pieces(pieces: Sequence[CallPiece]) -> list[ToolCallPiece]:
    """Return what is new as a chunk of a chat has it."""
    return [
        ToolCallPiece(piece.at, FunctionPiece(piece.arguments, piece.name), piece.id, "function")
        if piece.id
        else ToolCallPiece(piece.at, FunctionPiece(piece.arguments, UNSET))
        for piece in pieces
    ]
