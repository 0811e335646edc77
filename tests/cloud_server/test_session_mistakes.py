"""Frames of a session that are wrong end that session alone, with a typed error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import torch
from bare_devices import HIDDEN, TOKENS, bystanders, device, news, rows
from clouds import cloud_here, until

from cloud_server.device_rows import APART_BYTES
from split_model.packed_rows import pack, unpack
from split_model.tensor_bytes import from_bytes
from wire.errand import Errand
from wire.errors import Code
from wire.frames import Tensor
from wire.message import Failed
from wire.session_messages import (
    Close,
    Fork,
    Forward,
    Keep,
    Open,
    Result,
    Resume,
    Truncate,
)
from wire.stream import Stream


def resume_as_an_open_one(stream: Stream) -> None:
    """Ask for one session to go on as another that is open."""
    stream.post(Open(3, 5))
    stream.post(Resume(1, TOKENS[stream], 3, 0))


def keep_siblings(stream: Stream) -> None:
    """Keep two nodes that stand at the same position."""
    stream.post(Forward(1, 0, 0, 0, [0, 0]), [rows(2)])
    stream.post(Keep(1, [0, 1]))


def rows_behind_nodes(stream: Stream) -> None:
    """Go on before it is said where."""
    stream.post(Forward(1, 0, 0, 0, [0, 0]), [rows(2)])
    stream.post(Forward(1, 1, 0, 1), [rows(2)])


def fork_what_is_not_computed(stream: Stream) -> None:
    """Fork where the rows are on their way back, and, behind them, where others are still to come."""
    stream.post(Open(2, 50))
    stream.post(Forward(2, 0, 0, 0), [rows(4)])
    stream.post(Close(1))
    stream.post(Fork(1, 2, 5))


def fork_an_open_one(stream: Stream) -> None:
    """Fork one open session as another."""
    stream.post(Open(2, 50))
    stream.post(Forward(2, 0, 0, 0), [rows(4)])
    stream.post(Fork(1, 2, 4))


def fork_of_another_connection(stream: Stream) -> None:
    """Nobody can name what is not its own: bystanders' sessions of this number are open."""
    stream.post(Close(1))
    stream.post(Fork(1, 3, 4))


def fork_as_itself(stream: Stream) -> None:
    """A session as its own fork."""
    stream.post(Forward(1, 0, 0, 0), [rows(4)])
    stream.post(Fork(1, 1, 4))


SESSION_MISTAKES: list[tuple[str, Code, Callable[[Stream], object]]] = [
    ("nan", Code.NOT_FINITE, lambda s: s.post(Forward(1, 0, 0, 1), [rows(2, fill=float("nan"))])),
    ("infinity", Code.NOT_FINITE, lambda s: s.post(Forward(1, 0, 0, 0), [rows(2, fill=float("inf"))])),
    ("wrong hidden size", Code.SHAPE_MISMATCH, lambda s: s.post(Forward(1, 0, 0, 1), [rows(2, hidden=31)])),
    ("wrong dtype", Code.SHAPE_MISMATCH, lambda s: s.post(Forward(1, 0, 0, 1), [rows(2, dtype=torch.bfloat16)])),
    (
        "one dimension",
        Code.SHAPE_MISMATCH,
        lambda s: s.post(Forward(1, 0, 0, 1), [Tensor("float32", (32,), b"x" * 128)]),
    ),
    (
        "rows that cannot be unpacked",
        Code.SHAPE_MISMATCH,
        lambda s: s.post(Forward(1, 0, 0, 1), [Tensor("float32", (2, 32), b"x" * 200, packed=True)]),
    ),
    ("too many rows", Code.SHAPE_MISMATCH, lambda s: s.post(Forward(1, 0, 0, 1), [rows(65)])),
    ("wants more than it sends", Code.SHAPE_MISMATCH, lambda s: s.post(Forward(1, 0, 0, 3), [rows(2)])),
    ("gap", Code.BAD_POSITION, lambda s: s.post(Forward(1, 0, 5, 1), [rows(2)])),
    ("out of order", Code.BAD_POSITION, lambda s: s.post(Forward(1, 1, 0, 1), [rows(2)])),
    ("truncate ahead", Code.BAD_POSITION, lambda s: s.post(Truncate(1, 3))),
    ("node before its parent", Code.BAD_POSITION, lambda s: s.post(Forward(1, 0, 0, 1, [0, 2]), [rows(2)])),
    ("parents of other rows", Code.BAD_POSITION, lambda s: s.post(Forward(1, 0, 0, 1, [0]), [rows(2)])),
    ("kept without nodes", Code.BAD_POSITION, lambda s: s.post(Keep(1, []))),
    ("kept what is no path", Code.BAD_POSITION, keep_siblings),
    ("rows behind nodes", Code.BAD_POSITION, rows_behind_nodes),
    ("nodes beyond its room", Code.TOKEN_LIMIT, lambda s: s.post(Forward(1, 0, 0, 1, list(range(51))), [rows(51)])),
    ("beyond its room", Code.TOKEN_LIMIT, lambda s: s.post(Forward(1, 0, 0, 1), [rows(51)])),
    ("opened twice", Code.DUPLICATE_SESSION, lambda s: s.post(Open(1, 5))),
    (
        "resumed as an open one",
        Code.DUPLICATE_SESSION,
        resume_as_an_open_one,
    ),
    ("forked ahead of its rows", Code.BAD_POSITION, fork_what_is_not_computed),
    ("forked as an open one", Code.DUPLICATE_SESSION, fork_an_open_one),
    ("forked as itself", Code.DUPLICATE_SESSION, fork_as_itself),
    ("forked of somebody else's", Code.UNKNOWN_SESSION, fork_of_another_connection),
]


@pytest.mark.parametrize(
    ("code", "mistake"), [each[1:] for each in SESSION_MISTAKES], ids=[e[0] for e in SESSION_MISTAKES]
)
async def test_a_bad_frame_ends_only_its_session(code: Code, mistake: Callable[[Stream], object], tiny: Path) -> None:
    """It gets a typed error; the same device's other session and everyone else's tokens are as if nothing happened."""
    async with cloud_here(tiny, 1, max_rows=64) as cloud, bystanders(cloud, tiny), device(cloud, tiny) as stream:
        stream.post(Open(1, 50))
        mistake(stream)
        while isinstance(failed := await news(stream), Result):
            pass  # Of what was right before it.
        assert isinstance(failed, Failed) and (failed.code, failed.subject) == (code.value, 1), failed
        assert (max(cloud.server.links), 1) not in cloud.server.engine.ledger.entries
        stream.post(Open(9, 50))
        stream.post(Forward(9, 0, 0, 2), [rows(2)])
        while (result := await news(stream)) and getattr(result, "session", None) != 9:
            pass
        assert isinstance(result, Result)


def packed(count: int) -> Tensor:
    """The same rows as ``rows`` gives, packed."""
    plain = rows(count)
    return Tensor(*pack(from_bytes(plain.dtype, plain.shape, plain.data)), packed=True)


async def test_answers_are_packed_for_who_packs(tiny: Path) -> None:
    """Long forwards are unpacked apart from the event loop and give what the rows as they are give; what is answered
    goes packed, unless it is long or too short, and a short frame in between changes nothing."""
    count = APART_BYTES // (4 * HIDDEN) + 1
    async with cloud_here(tiny, 1, max_rows=4096) as cloud, device(cloud, tiny) as stream:

        async def answer(session: int, sent: Tensor, want: int) -> Tensor:
            stream.post(Open(session, sent.shape[0] + 8))
            stream.post(Forward(session, 0, 0, want), [sent])
            while not isinstance((frame := await stream.receive()).message, Result):
                pass
            return frame.tensors[0]

        plain = await answer(1, rows(count), 40)
        assert not plain.packed
        found = await answer(2, packed(count), 40)
        assert found.packed
        assert torch.equal(
            unpack(found.dtype, found.shape, found.data), from_bytes(plain.dtype, plain.shape, plain.data)
        )
        assert not (await answer(3, rows(1), 1)).packed
        stream.post(Truncate(2, 0))
        stream.post(Forward(2, 1, 0, 40), [packed(count)])
        stream.post(Forward(3, 1, 1, 1), [rows(1)])
        frames = [await stream.receive() for _ in range(2)]
        assert [frame.tensors[0].packed for frame in frames if len(frame.tensors[0].data) > 1024] == [True]
        assert not (await answer(4, packed(count), count)).packed


async def test_a_repeated_forward_is_refused(tiny: Path) -> None:
    """The second copy of a frame is a typed error, never a second set of positions."""
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        stream.post(Open(1, 50))
        for _ in range(2):
            stream.post(Forward(1, 0, 0, 0), [rows(2)])
        answers = [await news(stream)]
        if isinstance(answers[0], Result):
            answers.append(await news(stream))
        assert isinstance(answers[-1], Failed) and answers[-1].code == Code.BAD_POSITION.value


@pytest.mark.parametrize("lost", [False, True], ids=["open", "lost"])
async def test_a_session_is_resumed_by_its_own_token_alone(lost: bool, tiny: Path) -> None:
    """Whoever knows the numbers of somebody else's session, and shows a token that is guessed or its own, does not get
    it, whether its connection is there or lost; who has the token does, with all rows."""
    async with cloud_here(tiny, 1) as cloud, AsyncExitStack() as stack:
        victim = await stack.enter_async_context(device(cloud, tiny))
        token = TOKENS[victim]
        victim.post(Open(1, 50))
        victim.post(Forward(1, 0, 0, 1), [rows(2)])
        assert isinstance(await news(victim), Result)
        if lost:
            await stack.aclose()
            await until(lambda: not cloud.server.links)
        async with device(cloud, tiny) as stranger:
            for session, guess in enumerate(("guess", "", token[:-1], TOKENS[stranger]), 2):
                stranger.post(Resume(session, guess, 1, 2))
                stranger.post(Forward(session, 0, 2, 1), [rows(1)])  # Answered where it has got the session.
                failed = await news(stranger)
                assert isinstance(failed, Failed) and failed.code == Code.UNKNOWN_SESSION.value, (guess, failed)
            stranger.post(Resume(9, token, 1, 2))
            stranger.post(Forward(9, 0, 2, 1), [rows(1)])
            assert isinstance(await news(stranger), Result)


async def test_a_resumed_sessions_old_number_works_for_nothing(tiny: Path) -> None:
    """Nobody names it again, so nothing is remembered of it, however often a device resumes its own."""
    errand = Errand("r-1", "")
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        stream.post(Open(1, 50, errand=errand))
        for number in range(2, 20):
            stream.post(Resume(number, TOKENS[stream], number - 1, 0, errand))
        stream.post(Forward(19, 0, 0, 1), [rows(2)])
        assert isinstance(await news(stream), Result)
        [link] = cloud.server.links.values()
        assert list(link._errands._turns) == [19]


async def test_a_session_that_was_to_be_resumed_and_was_not_is_closed(tiny: Path) -> None:
    """On the same connection: its device has let go of the old number, so nobody would ever close it."""
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        stream.post(Open(1, 50))
        stream.post(Resume(2, TOKENS[stream], 1, 7))
        failed = await news(stream)
        assert isinstance(failed, Failed) and failed.code == Code.BAD_POSITION.value
        await until(lambda: not cloud.server.engine.ledger.entries)


async def test_credit_is_held(tiny: Path) -> None:
    """Rows beyond the window are refused without being kept."""
    async with cloud_here(tiny, 1, window_rows=8, max_rows=64) as cloud, device(cloud, tiny) as stream:
        cloud.server.engine.sessions.work.set = lambda: None  # type: ignore[method-assign]
        stream.post(Open(1, 50))
        stream.post(Forward(1, 0, 0, 0), [rows(5)])
        stream.post(Forward(1, 1, 5, 0), [rows(5)])
        failed = await news(stream)
        assert isinstance(failed, Failed) and failed.code == Code.CREDIT_EXCEEDED.value
