"""What crossed the wire, read as a cloud server reads it: the rows of each session, in their order. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from device_agent.auditing.attack import Sent
from split_model.packed_rows import unpack
from split_model.tensor_bytes import from_bytes
from wire.frames import Frame, Tensor, decode, read_prefix
from wire.limits import CLOUD_LINK
from wire.padding import Padding
from wire.parts import CUT_OFF, FIRST, Assembly
from wire.session_messages import Fork, Forward, Keep, Open, Result, Resume, Truncate


@dataclass(frozen=True)
class Passed:
    """One websocket message as it passed.

    Attributes:
        up: whether it went to the cloud.
        at_s: when, on a monotonic clock.
    """

    up: bool
    at_s: float
    data: bytes


@dataclass(frozen=True)
class Recorded:
    """One passage that was answered.

    Attributes:
        prompt, answer: its tokens, and the model's.
        rounds: how many tokens each round chose; the first token of the answer is the prompt's.
        passed: what passed meanwhile.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    rounds: tuple[int, ...]
    passed: tuple[Passed, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens at all positions."""
        return self.prompt + self.answer


@dataclass
class Transcript:
    """One session.

    Attributes:
        session: its number.
        sent: its forwards.
        wants: of each, how many of the last rows were to come back.
        returned: of each that was answered, the rows ``[want, hidden_size]`` that came back; None for none.
        end: where the next row would go.
        prompt_bytes: of all messages up before the first row came back.
    """

    session: int = 0
    sent: list[Sent] = field(default_factory=list)
    wants: list[int] = field(default_factory=list)
    returned: list[torch.Tensor | None] = field(default_factory=list)
    end: int = 0
    prompt_bytes: int | None = None

    @property
    def answers(self) -> dict[int, torch.Tensor]:
        """By the number of the row that was sent, the row that came back for it."""
        found: dict[int, torch.Tensor] = {}
        number = 0
        for each, want, rows in zip(self.sent, self.wants, self.returned, strict=False):
            number += len(each.rows)
            if rows is not None:
                found.update(zip(range(number - want, number), rows, strict=True))
        return found


def transcripts(passed: Iterable[Passed], padding: Padding | None = None) -> dict[int, Transcript]:
    """The sessions that were opened in what passed on one connection, by their numbers.

    padding: how its frames are padded, where they are.

    Raises:
        ConnectionFailed: what passed is no frame.
        ValueError: a session did what the sessions of an audit do not do: it forked, branched or was resumed.
    """
    halves = {up: Assembly(CLOUD_LINK) for up in (True, False)}
    found: dict[int, Transcript] = {}
    up_bytes = 0
    for each in passed:
        up_bytes += len(each.data) if each.up else 0
        frame = _frame(halves[each.up], each, padding)
        if frame is not None:
            _take(found, frame, up_bytes)
    return found


def _frame(half: Assembly, passed: Passed, padding: Padding | None) -> Frame | None:
    kind, number, _ = read_prefix(passed.data)
    if not FIRST <= kind <= CUT_OFF:
        return decode(passed.data, CLOUD_LINK, padding=padding)
    whole = half.take(kind, number, passed.data, passed.at_s)
    return None if whole is None else decode(whole, CLOUD_LINK, padding=padding)


def _take(found: dict[int, Transcript], frame: Frame, up_bytes: int) -> None:
    match frame.message:
        case Open(session=session):
            found[session] = Transcript(session)
        case Forward(session=session, position=position, want=want, parents=None) if session in found:
            rows = _rows(frame.tensors[0])
            found[session].sent.append(Sent(position, rows))
            found[session].wants.append(want)
            found[session].end = position + len(rows)
        case Truncate(session=session, position=position) if session in found:
            found[session].end = min(found[session].end, position)
        case Result(session=session) if session in found:
            found[session].returned.append(_rows(frame.tensors[0]) if frame.tensors else None)
            if frame.tensors and found[session].prompt_bytes is None:
                found[session].prompt_bytes = up_bytes
        case Forward() | Keep() | Fork() | Resume():
            raise ValueError(f"a session of an audit does not {type(frame.message).__name__}")


def _rows(tensor: Tensor) -> torch.Tensor:
    return (unpack if tensor.packed else from_bytes)(tensor.dtype, tensor.shape, tensor.data)
