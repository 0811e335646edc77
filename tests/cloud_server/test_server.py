"""The cloud server against real devices and hostile ones, over real websockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import httpx
import msgspec
import pytest
import structlog
import torch
from clouds import Cloud, chain_over, cloud_here, device_hello, greedy, remote_middle, until
from oracle import oracle_tokens, prompt_for
from structlog.typing import EventDict
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from cloud_server.app import measured
from cloud_server.device_link import TIMINGS, DeviceLink
from cloud_server.device_rows import APART_BYTES
from cloud_server.engine.entries import SessionState
from cloud_server.engine.ledger import Ledger
from cloud_server.schedule.chunk_model import Conditions
from cloud_server.schedule.chunk_search import schedule
from device_agent.sharing.compute import Compute
from split_model.packed_rows import pack, unpack
from split_model.tensor_bytes import from_bytes, to_bytes
from wire.connection import Role
from wire.doorstep import MAX_GREETING_OF_ADDRESS
from wire.errors import REPLAYABLE, Code, ConnectionFailed
from wire.frames import Frame, Tensor, encode
from wire.limits import CLOUD_LINK, GREETING_BYTES
from wire.message import Drain, Failed
from wire.messages import AnyMessage
from wire.session_messages import (
    Advice,
    Close,
    CloudWelcome,
    Fork,
    Forward,
    Keep,
    LinkState,
    Open,
    Result,
    Resume,
    Timing,
    Truncate,
)
from wire.stream import Stream, dial

HIDDEN = 32

TOKENS: WeakKeyDictionary[Stream, str] = WeakKeyDictionary()
"""What each device may resume its sessions with."""


@asynccontextmanager
async def device(cloud: Cloud, path: Path, **changes: Any) -> AsyncIterator[Stream]:
    """A device that has been welcomed and may now misbehave."""
    async with dial(cloud.url + "/device", Role.DEVICE, CLOUD_LINK) as stream:
        stream.post(msgspec.structs.replace(device_hello(path, 1, 0), **changes))
        welcome = (await stream.receive()).message
        assert isinstance(welcome, CloudWelcome)
        TOKENS[stream] = welcome.resume_token
        yield stream


async def news(stream: Stream) -> AnyMessage:
    """The next message that is not advice on chunk sizes."""
    while isinstance(message := (await stream.receive()).message, Advice):
        pass
    return message


def rows(count: int, hidden: int = HIDDEN, dtype: torch.dtype = torch.float32, fill: float | None = None) -> Tensor:
    """Hidden states for a frame."""
    values = torch.randn(count, hidden, generator=torch.Generator().manual_seed(0)).to(dtype)
    if fill is not None:
        values[0, 0] = fill
    return Tensor(*to_bytes(values))


@asynccontextmanager
async def bystanders(cloud: Cloud, tiny: Path) -> AsyncIterator[None]:
    """Three honest sessions that decode throughout the block; their tokens must be transformers'."""
    compute = Compute()
    async with remote_middle(cloud.url, device_hello(tiny, 1, 0)) as middle:
        chain = chain_over(tiny, 1, 0, middle, compute, 16)
        prompts = [prompt_for(tiny, 10 + each, seed=each) for each in range(3)]
        answers = [asyncio.create_task(greedy(chain, list(prompt), 60)) for prompt in prompts]
        yield
        for prompt, answer in zip(prompts, await asyncio.gather(*answers), strict=True):
            assert answer == oracle_tokens(tiny, prompt, 60)
    compute.stop()


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


async def test_credit_is_held(tiny: Path) -> None:
    """Rows beyond the window are refused without being kept."""
    async with cloud_here(tiny, 1, window_rows=8, max_rows=64) as cloud, device(cloud, tiny) as stream:
        cloud.server.engine.sessions.work.set = lambda: None  # type: ignore[method-assign]
        stream.post(Open(1, 50))
        stream.post(Forward(1, 0, 0, 0), [rows(5)])
        stream.post(Forward(1, 1, 5, 0), [rows(5)])
        failed = await news(stream)
        assert isinstance(failed, Failed) and failed.code == Code.CREDIT_EXCEEDED.value


async def test_admission_is_refused_with_a_time_to_come_back(tiny: Path) -> None:
    """Sessions beyond the limits get session_limit and retry_after; a session too long gets token_limit."""
    async with cloud_here(tiny, 1, max_device_sessions=2, max_model_len=100) as cloud, device(cloud, tiny) as stream:
        for session in (1, 2, 3):
            stream.post(Open(session, 50))
        failed = await news(stream)
        assert isinstance(failed, Failed)
        assert (failed.code, failed.subject, failed.retry_after_s) == (Code.SESSION_LIMIT.value, 3, 1.0)
        stream.post(Close(1))
        stream.post(Open(4, 101))
        failed = await news(stream)
        assert isinstance(failed, Failed) and (failed.code, failed.subject) == (Code.TOKEN_LIMIT.value, 4)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"digest": "sha256:other"}, Code.DIGEST_MISMATCH),
        ({"model": "other"}, Code.MODEL_MISMATCH),
        ({"first_layer": 2}, Code.SPLIT_MISMATCH),
        ({"dtype": "bfloat16"}, Code.DTYPE_MISMATCH),
        ({"credential": "guess"}, Code.UNAUTHORIZED),
    ],
)
async def test_a_device_that_does_not_fit_is_refused(change: dict[str, object], code: Code, tiny: Path) -> None:
    """The hello is answered with the reason, and the device's log has it."""
    async with cloud_here(tiny, 1, cloud_token="secret") as cloud:
        with pytest.raises(ConnectionFailed) as failed:
            async with device(cloud, tiny, **{"credential": "secret", **change}):
                pass
        assert failed.value.code is code
        async with device(cloud, tiny, credential="secret"):
            pass


async def test_frames_that_break_the_protocol_end_only_their_connection(tiny: Path) -> None:
    """Random bytes, cut frames and forbidden messages close that socket; bystanders go on and nothing leaks."""
    hello = encode(device_hello(tiny, 1, 0))
    forward = encode(Forward(1, 0, 0, 1), [rows(2)], 2)
    attacks: list[bytes | bytearray] = [
        b"",
        b"garbage",
        b"\x80\x04K\x01.",
        encode(Open(1, 9)),
        hello[:-3],
        hello + b"x",
        bytes(9 * 2**20),
    ]
    welcome, end = encode(CloudWelcome("c", 1, 1, 1, 1), (), 2), encode(Failed("internal", "why", 9), (), 2)
    after_hello = [forward[:-1], forward + b"\0", welcome, hello, end]
    async with cloud_here(tiny, 1) as cloud, bystanders(cloud, tiny):
        opened: list[bytes | bytearray] = [hello, encode(Open(1, 9), (), 1)]
        two_hellos = [hello, encode(device_hello(tiny, 1, 0), (), 1)]
        for attack in [[each] for each in attacks] + [[*opened, each] for each in after_hello] + [two_hellos]:
            async with connect(cloud.url + "/device", compression=None, max_size=None) as socket:
                try:
                    for each in attack:
                        await socket.send(each)
                    async for _ in socket:
                        pass
                except ConnectionError:
                    pass
                except Exception as error:
                    assert "Closed" in type(error).__name__
                assert socket.close_code in (1002, 1007, 1009), (attack, socket.close_code)
        await until(lambda: len(cloud.server.links) == 1)


async def test_a_vanished_device_frees_everything(tiny: Path) -> None:
    """A socket that just dies takes its sessions with it, once nobody has come back for them in time."""
    async with cloud_here(tiny, 1, resume_s=1.0) as cloud:
        async with AsyncExitStack() as stack:
            stream = await stack.enter_async_context(device(cloud, tiny))
            for session in range(5):
                stream.post(Open(session, 100))
                stream.post(Forward(session, 0, 0, 0), [rows(20)])
            await news(stream)
            stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]
            await until(lambda: not cloud.server.engine.ledger.entries)
        assert cloud.server.engine.ledger.pages.used == 0
        assert cloud.server.engine.sessions.scheduler.waiting_rows == 0


async def test_browsers_are_turned_away(tiny: Path) -> None:
    """A websocket with an Origin is a page's."""
    async with cloud_here(tiny, 1) as cloud:
        with pytest.raises(Exception, match="403"):
            await connect(cloud.url + "/device", origin="https://evil.example")  # type: ignore[arg-type]


async def test_a_silent_crowd_keeps_no_device_out(tiny: Path) -> None:
    """A hundred sockets that say nothing: the oldest of them go, and a device is served at once."""
    clock = asyncio.get_running_loop().time
    async with cloud_here(tiny, 1) as cloud:
        silent = [await connect(cloud.url + "/device", close_timeout=0.1) for _ in range(100)]
        began = clock()
        async with device(cloud, tiny):
            assert clock() - began < 10
        await until(lambda: len(cloud.server._doorstep) <= MAX_GREETING_OF_ADDRESS)
        assert silent[-1].state is State.OPEN
        await until(lambda: sum(each.state is State.OPEN for each in silent) <= MAX_GREETING_OF_ADDRESS)
        await asyncio.gather(*(each.close() for each in silent))


async def test_megabytes_before_the_hello_are_not_decoded(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are they taken in: no websocket message is longer than a part of a frame."""
    decoded: list[int] = []
    async with cloud_here(tiny, 1) as cloud:
        monkeypatch.setattr("wire.frames._DECODER", SimpleNamespace(decode=lambda data: decoded.append(len(data))))
        for size, code in ((6 * 2**20, 1009), (GREETING_BYTES + 1, 1009), (GREETING_BYTES, 1002)):
            message = encode(Forward(1, 0, 0, 1), [Tensor("bfloat16", (size // 2 - 18,), bytes(size - 36))])
            message += bytes(size - len(message))
            async with connect(cloud.url + "/device", compression=None) as socket:
                with suppress(ConnectionClosed):  # The server may close before all of it is sent.
                    await socket.send(message)
                await socket.wait_closed()
                assert socket.close_code == code, size
    assert not decoded


async def test_no_more_devices_than_allowed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is told to come back, and is served once another has gone; a stranger learns nothing of it."""
    async with cloud_here(tiny, 1, cloud_token="s") as cloud, device(cloud, tiny, credential="s"):
        monkeypatch.setattr("cloud_server.server.MAX_DEVICES", 2)
        async with device(cloud, tiny, credential="s"):
            for credential, code, close_code in (("s", Code.OVERLOADED, 1013), ("", Code.UNAUTHORIZED, 4401)):
                with pytest.raises(ConnectionFailed) as refused:
                    async with device(cloud, tiny, credential=credential):
                        pass
                assert (refused.value.code, refused.value.close_code) == (code, close_code)
        await until(lambda: len(cloud.server.links) == 1)
        async with device(cloud, tiny, credential="s"):
            pass


async def test_nobody_is_let_in_before_the_layers_run(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is connected counts as one that can answer, so it is told to come back while layers are started."""
    async with cloud_here(tiny, 1) as cloud:
        with monkeypatch.context() as starting:
            starting.setattr(cloud.server.engine.sessions, "lost", True)
            with pytest.raises(ConnectionFailed, match="being started") as refused:
                async with device(cloud, tiny):
                    pass
            assert refused.value.code is Code.OVERLOADED
        async with device(cloud, tiny):
            pass


@pytest.fixture
async def turns() -> AsyncIterator[Callable[[], int]]:
    """How often the event loop has let everybody go on so far."""
    count = 0

    async def tick() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    yield lambda: count
    ticking.cancel()


async def test_many_frames_of_one_device_hold_nobody_up(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, turns: Callable[[], int]
) -> None:
    """However many have come already, others have their turn after every bit of work."""
    handled: Counter[int] = Counter()
    handle = DeviceLink._handle

    async def counted(link: DeviceLink, frame: Frame) -> None:
        handled[turns()] += 1
        await handle(link, frame)

    monkeypatch.setattr(DeviceLink, "_handle", counted)
    monkeypatch.setattr("cloud_server.device_link.TURN_S", 0.0)
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        for session in range(300):
            stream.post(Open(session, 6000, prompt=5000))
            stream.post(Close(session))
        await until(lambda: handled.total() == 600)
    assert max(handled.values()) == 1


async def test_what_advice_goes_by(tiny: Path) -> None:
    """What steps take as it is known, and the rows of others where there are others."""
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        engine, load = cloud.server.engine, cloud.server.engine.pace.load
        load.observe(7, 0.1)
        alone = engine.conditions(1e6)
        assert (alone.g(7), alone.mu) == (0.1, 0.0)
        for session in range(2):
            stream.post(Open(session, 200, prompt=100))
        await until(lambda: engine.ledger.count(SessionState.OPEN) == 2)
        beside = engine.conditions(1e6)
        assert (beside.g(7), beside.mu) == (0.1, 7.0)


async def test_all_devices_are_advised_a_little_at_a_time(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, turns: Callable[[], int]
) -> None:
    """When conditions change for everybody, others have their turn between two schedules; sessions are counted once."""
    scheduled: Counter[int] = Counter()
    counts = []
    count = Ledger.count

    def counted(conditions: Conditions, prompt: int) -> list[int]:
        scheduled[turns()] += 1
        return schedule(conditions, prompt)

    def count_counted(ledger: Ledger, state: SessionState) -> int:
        counts.append(ledger)
        return count(ledger, state)

    monkeypatch.setattr("cloud_server.server.LOOK_EVERY_S", 60.0)
    monkeypatch.setattr("cloud_server.server.TURN_S", 0.0)
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as one, device(cloud, tiny) as other:
        for stream in (one, other):
            for session in range(4):
                stream.post(Open(session, 2000, prompt=1500))
            stream.post(LinkState(10**5, 0))
        await until(lambda: all(link.measured.up_bytes_s for link in cloud.server.links.values()))
        monkeypatch.setattr("cloud_server.schedule.chunk_advice.schedule", counted)
        monkeypatch.setattr(Ledger, "count", count_counted)
        await cloud.server.look_again()
        assert scheduled.total() == 8
        assert max(scheduled.values()) == 1 and len(counts) == 1


async def test_a_device_cannot_fill_the_metrics(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the times that a device reports faster than devices do, some are left out; later ones count again."""
    monkeypatch.setattr("cloud_server.server.LOOK_EVERY_S", 60.0)

    def counted() -> int:
        (line,) = (each for each in measured(cloud.server).decode().splitlines() if "latency_seconds_count" in each)
        return int(float(line.split()[-1]))

    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        for _ in range(10 * TIMINGS):
            stream.post(Timing([], [1000, 2000]))
        stream.post(LinkState(10**6, 0))
        (link,) = cloud.server.links.values()
        await until(lambda: link.measured.up_bytes_s)
        assert counted() == 2 * TIMINGS
        await cloud.server.look_again()
        stream.post(Timing([], [1000]))
        await until(lambda: counted() == 2 * TIMINGS + 1)


async def test_logs_are_not_for_devices_to_fill(tiny: Path) -> None:
    """At the usual level strangers and frames that are refused leave no line, and nobody's own words are written."""
    told: list[dict[str, Any]] = []

    def keep(logger: object, method: str, event: EventDict) -> EventDict:
        told.append({**event, "level": method})
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep], cache_logger_on_first_use=False)
    try:
        async with cloud_here(tiny, 1, cloud_token="s") as cloud:
            with pytest.raises(ConnectionFailed):
                async with device(cloud, tiny, credential="guess"):
                    pass
            async with device(cloud, tiny, credential="s") as stream:
                for session in range(5):
                    stream.post(Truncate(session, 3))
                    assert isinstance(await news(stream), Failed)
                stream.post(Open(9, 8))
                stream.post(Forward(9, 0, 0, 0), [rows(2, fill=float("nan"))])
                assert isinstance(await news(stream), Failed)
                stream.post(Failed("internal", "words of a stranger"))
                await until(lambda: not cloud.server.links)
    finally:
        structlog.configure(**before)
    events = [each["event"] for each in told if each["level"] != "debug"]
    assert events == ["warmed up", "device connected", "device gone"]
    assert "words of a stranger" not in str(told) and "session ended" in str(told)


async def test_draining(tiny: Path) -> None:
    """Unready, new sessions and devices refused, devices told, and done when the last session closes."""
    async with (
        cloud_here(tiny, 1, drain_within_s=10.0, cloud_token="s", operator_token="boss") as cloud,
        device(cloud, tiny, credential="s") as stream,
    ):
        http = cloud.url.replace("ws", "http", 1)
        stream.post(Open(1, 50))
        stream.post(Forward(1, 0, 0, 0), [rows(2)])
        await news(stream)
        async with httpx.AsyncClient(trust_env=False) as client:
            devices_own = {"Authorization": "Bearer s"}
            assert (await client.post(http + "/drain")).status_code == 401
            assert (await client.post(http + "/drain", headers=devices_own)).status_code == 401
            drained = asyncio.create_task(client.post(http + "/drain", headers={"Authorization": "Bearer boss"}))
            assert isinstance(await news(stream), Drain)
            assert (await client.get(http + "/health")).status_code == 503
            stream.post(Open(2, 50))
            failed = await news(stream)
            assert isinstance(failed, Failed) and failed.code == Code.DRAINING.value
            with pytest.raises(ConnectionFailed) as refused:
                async with device(cloud, tiny, credential="s"):
                    pass
            assert refused.value.code is Code.DRAINING
            stream.post(Forward(1, 1, 2, 1), [rows(1)])
            assert isinstance(await news(stream), Result)
            assert not drained.done()
            stream.post(Close(1))
            assert (await drained).json() == {"sessions_left": 0}


async def test_state_and_metrics(tiny: Path) -> None:
    """People and Prometheus see the same counts."""
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        http = cloud.url.replace("ws", "http", 1)
        stream.post(Open(1, 50))
        stream.post(Forward(1, 0, 0, 1), [rows(7)])
        await news(stream)
        async with httpx.AsyncClient(trust_env=False) as client:
            state = (await client.get(http + "/state")).json()
            metrics = (await client.get(http + "/metrics")).text
        session = {"connection": 1, "session": 1, "state": "open", "position": 7, "pages": 1}
        assert state["sessions"] == [session] and state["pages"]["used"] == 1
        assert state["layers"] == [1, 4] and state["devices"][0]["name"] == "test device"
        assert (
            "trilby_cloud_num_requests_running 1.0" in metrics
            and "trilby_cloud_iteration_tokens_total_sum 7.0" in metrics
        )


async def test_bytes_of_all_devices_are_counted(tiny: Path) -> None:
    """Those of devices that are there and of those that have gone, whenever somebody looks."""

    def counted() -> list[float]:
        server = cloud.server
        measured(server)
        return [next(iter(each.collect())).samples[0].value
                for each in (server.engine.metrics.received_bytes, server.engine.metrics.sent_bytes)]  # fmt: skip

    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as first:
        async with device(cloud, tiny, name="other device") as second:
            streams = [first, second]
            for number, stream in enumerate(streams):
                stream.post(Open(1, 50))
                stream.post(Forward(1, 0, 0, 3), [rows(5 + number)])
                await news(stream)
                counted()
        await until(lambda: len(cloud.server.links) == 1)
        received, sent = counted()
        assert received >= sum(stream.sent_bytes for stream in streams) > (5 + 6) * HIDDEN * 4
        assert sent >= sum(stream.received_bytes for stream in streams) > (3 + 3) * HIDDEN * 4
        assert received + sent < sum(stream.sent_bytes + stream.received_bytes for stream in streams) + 200


async def test_truncate_forward_and_close_at_once_leave_the_engine_running(tiny: Path) -> None:
    """Whatever a session asks for while a step runs, even under a number that is closed and opened again."""
    async with cloud_here(tiny, 1) as cloud, bystanders(cloud, tiny), device(cloud, tiny) as stream:
        for _ in range(60):
            stream.post(Open(1, 64))
            stream.post(Forward(1, 0, 0, 0), [rows(64)])
            stream.post(Truncate(1, 0))
            stream.post(Forward(1, 1, 0, 0), [rows(64)])
            stream.post(Close(1))
            await asyncio.sleep(0.002)
        stream.post(Open(2, 8))
        stream.post(Forward(2, 0, 0, 1), [rows(2)])
        while not isinstance((message := await news(stream)), Result) or message.session != 2:
            pass
        assert cloud.server.engine.alive


async def test_a_step_that_breaks_ends_its_sessions_only(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error nobody foresaw is internal for those in the step; the next step runs, and /health stays fine."""
    async with cloud_here(tiny, 1) as cloud, device(cloud, tiny) as stream:
        with monkeypatch.context() as broken:
            broken.setattr("cloud_server.stages.layer_step.PagedBatch", lambda *_: 1 / 0)
            stream.post(Open(1, 8))
            stream.post(Forward(1, 0, 0, 1), [rows(2)])
            failed = await news(stream)
        assert isinstance(failed, Failed) and failed.code == Code.INTERNAL.value
        stream.post(Open(2, 8))
        stream.post(Forward(2, 0, 0, 1), [rows(2)])
        assert isinstance(await news(stream), Result)
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(cloud.url.replace("ws", "http", 1) + "/health")).status_code == 200


async def test_a_device_that_does_not_read_harms_nobody(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers pile up to the limit, its connection ends, and the engine goes on for the others."""
    monkeypatch.setattr("wire.stream.MAX_QUEUED_BYTES", 20_000)
    hello = encode(device_hello(tiny, 1, 0))
    async with cloud_here(tiny, 1) as cloud, bystanders(cloud, tiny):
        socket = await connect(cloud.url + "/device", compression=None, max_queue=1)
        await socket.send(hello)
        await until(lambda: len(cloud.server.links) == 2)
        link = next(link for link in cloud.server.links.values() if link.connection == max(cloud.server.links))
        link.stream._transport.send = lambda data: asyncio.sleep(60)  # type: ignore[method-assign]
        for session in range(1, 20):
            await socket.send(encode(Open(session, 64), (), 2 * session - 1))
            await socket.send(encode(Forward(session, 0, 0, 64), [rows(64)], 2 * session))
        await until(lambda: len(cloud.server.links) == 1)
        assert cloud.server.engine.alive
        socket.transport.abort()  # A close would wait for what nobody reads.


async def test_answers_that_a_slow_device_does_not_fetch_end_their_session(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those for which there is no room any more; its connection and its other sessions go on."""
    async with cloud_here(tiny, 1) as cloud, bystanders(cloud, tiny), device(cloud, tiny) as stream:
        link = cloud.server.links[max(cloud.server.links)]
        there = link.stream
        may_leave, send = asyncio.Event(), there._transport.send

        async def slow(data: bytearray) -> None:
            await may_leave.wait()
            await send(data)

        monkeypatch.setattr(there._transport, "send", slow)
        monkeypatch.setattr(there._out, "takes", lambda size, party: there.queued_bytes + size <= 100_000)
        for session in (1, 2, 3):
            stream.post(Open(session, 600))
            stream.post(Forward(session, 0, 0, 500), [rows(500)])
        await until(lambda: link._ended)
        may_leave.set()
        told = [await news(stream) for _ in range(3)]
        assert {type(each) for each in told} == {Failed, Result}
        failed = next(each for each in told if isinstance(each, Failed))
        assert failed.code == Code.PREEMPTED.value and Code.PREEMPTED in REPLAYABLE
        left = next(each for each in told if isinstance(each, Result))
        stream.post(Forward(left.session, 1, 500, 1), [rows(1)])
        assert isinstance(await news(stream), Result)


async def test_operators_doors(tiny: Path) -> None:
    """/state and /drain are for whoever has the operators' token, and for no device and no web page."""
    async with (
        cloud_here(tiny, 1, cloud_token="s", operator_token="boss") as cloud,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        http = cloud.url.replace("ws", "http", 1)
        for headers in ({}, {"Authorization": "Bearer s"}):
            assert (await client.get(http + "/state", headers=headers)).status_code == 401
        headers = {"Authorization": "Bearer boss"}
        assert (await client.get(http + "/state", headers=headers)).status_code == 200
        page = await client.post(http + "/drain", headers={**headers, "Origin": "https://evil.example"})
        assert page.status_code == 403
        assert (await client.get(http + "/health")).status_code == 200
