"""The calls of tools in one choice, as they come. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    def add(self, piece: CallPiece | None) -> None:
        """Take in what is new, if anything is; of a call that never began there is nothing to tell."""
        if piece is None:
            return
        if piece.at == len(self._calls):
            self._calls.append(Call(piece.id, piece.name))
        if piece.at < len(self._calls):
            self._calls[piece.at].arguments.append(piece.arguments)

    def made(self) -> list[ToolCallMade]:
        """Return them as a chat reply has them."""
        return [ToolCallMade(call.id, CalledFunction(call.name, call.text)) for call in self._calls]


def call_piece(piece: CallPiece) -> ToolCallPiece:
    """Return what is new as a chunk of a chat has it."""
    if piece.id:
        return ToolCallPiece(piece.at, FunctionPiece(piece.arguments, piece.name), piece.id, "function")
    return ToolCallPiece(piece.at, FunctionPiece(piece.arguments))
