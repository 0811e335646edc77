"""The cloud server against real devices and hostile ones, over real websockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import torch
from clouds import Cloud, chain_over, cloud_here, device_hello, greedy, remote_middle, until
from oracle import oracle_tokens, prompt_for
from tiny_models import build_tiny
from websockets.asyncio.client import connect

from device_agent.local import Compute
from split_model.tensor_bytes import to_bytes
from wire.connection import Role
from wire.errors import Code, ConnectionFailed
from wire.frames import Tensor, encode
from wire.limits import CLOUD_LINK
from wire.messages import Advice, Close, CloudWelcome, Drain, Failed, Forward, Message, Open, Result, Truncate
from wire.stream import Stream, dial

HIDDEN = 32


@pytest.fixture
def tiny(tiny_folder: Path) -> Path:
    """A tiny Llama."""
    path = tiny_folder / "llama"
    return path if path.exists() else build_tiny("llama", path)


@asynccontextmanager
async def device(cloud: Cloud, path: Path, **changes: Any) -> AsyncIterator[Stream]:
    """A device that has been welcomed and may now misbehave."""
    async with dial(cloud.url + "/device", Role.DEVICE, CLOUD_LINK) as stream:
        stream.post(msgspec.structs.replace(device_hello(path, 1, 0), **changes))
        assert isinstance((await stream.receive()).message, CloudWelcome)
        yield stream


async def news(stream: Stream) -> Message:
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


SESSION_MISTAKES: list[tuple[str, Code, Callable[[Stream], None]]] = [
    ("nan", Code.NOT_FINITE, lambda s: s.post(Forward(1, 0, 0, 1), [rows(2, fill=float("nan"))])),
    ("infinity", Code.NOT_FINITE, lambda s: s.post(Forward(1, 0, 0, 0), [rows(2, fill=float("inf"))])),
    ("wrong hidden size", Code.SHAPE_MISMATCH, lambda s: s.post(Forward(1, 0, 0, 1), [rows(2, hidden=31)])),
    ("wrong dtype", Code.SHAPE_MISMATCH, lambda s: s.post(Forward(1, 0, 0, 1), [rows(2, dtype=torch.bfloat16)])),
    (
        "one dimension",
        Code.SHAPE_MISMATCH,
        lambda s: s.post(Forward(1, 0, 0, 1), [Tensor("float32", (32,), b"x" * 128)]),
    ),
    ("too many rows", Code.SHAPE_MISMATCH, lambda s: s.post(Forward(1, 0, 0, 1), [rows(65)])),
    ("wants more than it sends", Code.SHAPE_MISMATCH, lambda s: s.post(Forward(1, 0, 0, 3), [rows(2)])),
    ("gap", Code.BAD_POSITION, lambda s: s.post(Forward(1, 0, 5, 1), [rows(2)])),
    ("out of order", Code.BAD_POSITION, lambda s: s.post(Forward(1, 1, 0, 1), [rows(2)])),
    ("truncate ahead", Code.BAD_POSITION, lambda s: s.post(Truncate(1, 3))),
    ("beyond its room", Code.TOKEN_LIMIT, lambda s: s.post(Forward(1, 0, 0, 1), [rows(51)])),
    ("opened twice", Code.DUPLICATE_SESSION, lambda s: s.post(Open(1, 5))),
]


@pytest.mark.parametrize(
    ("code", "mistake"), [each[1:] for each in SESSION_MISTAKES], ids=[e[0] for e in SESSION_MISTAKES]
)
async def test_a_bad_frame_ends_only_its_session(code: Code, mistake: Callable[[Stream], None], tiny: Path) -> None:
    """It gets a typed error; the same device's other session and everyone else's tokens are as if nothing happened."""
    async with cloud_here(tiny, 1, max_rows=64) as cloud, bystanders(cloud, tiny), device(cloud, tiny) as stream:
        stream.post(Open(1, 50))
        mistake(stream)
        failed = await news(stream)
        assert isinstance(failed, Failed) and (failed.code, failed.subject) == (code.value, 1), failed
        stream.post(Open(2, 50))
        stream.post(Forward(2, 0, 0, 2), [rows(2)])
        assert isinstance(await news(stream), Result)


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
        cloud.server.engine._wake.set = lambda: None  # type: ignore[method-assign]
        stream.post(Open(1, 50))
        stream.post(Forward(1, 0, 0, 0), [rows(5)])
        stream.post(Forward(1, 1, 5, 0), [rows(5)])
        failed = await news(stream)
        assert isinstance(failed, Failed) and failed.code == Code.CREDIT_EXCEEDED.value


async def test_admission_is_refused_with_a_time_to_come_back(tiny: Path) -> None:
    """Sessions beyond the limits get session_limit and retry_after; a session too long gets token_limit."""
    async with cloud_here(tiny, 1, max_device_sessions=2, max_positions=100) as cloud, device(cloud, tiny) as stream:
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
    attacks = [b"", b"garbage", b"\x80\x04K\x01.", encode(Open(1, 9)), hello[:-3], hello + b"x", bytes(9 * 2**20)]
    after_hello = [forward[:-1], forward + b"\0", encode(CloudWelcome("c", 1, 1, 1, 1), (), 2), hello]
    async with cloud_here(tiny, 1) as cloud, bystanders(cloud, tiny):
        for attack in [[each] for each in attacks] + [[hello, encode(Open(1, 9), (), 1), each] for each in after_hello]:
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
        assert cloud.server.engine.waiting_rows == 0


async def test_browsers_and_silent_crowds_are_turned_away(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A websocket with an Origin is a page's; more silent connections than allowed are closed, a device still fits."""
    monkeypatch.setattr("cloud_server.app.MAX_GREETING", 3)
    async with cloud_here(tiny, 1) as cloud:
        with pytest.raises(Exception, match="403"):
            await connect(cloud.url + "/device", origin="https://evil.example")  # type: ignore[arg-type]
        silent = [await connect(cloud.url + "/device") for _ in range(3)]
        with pytest.raises(Exception, match="403"):
            await connect(cloud.url + "/device")
        await silent.pop().close()
        await until(lambda: cloud.server._greeting < 3)
        async with device(cloud, tiny):
            pass
        for each in silent:
            await each.close()


async def test_draining(tiny: Path) -> None:
    """Unready, new sessions and devices refused, devices told, and done when the last session closes."""
    async with (
        cloud_here(tiny, 1, drain_s=10.0, cloud_token="s") as cloud,
        device(cloud, tiny, credential="s") as stream,
    ):
        http = cloud.url.replace("ws", "http", 1)
        stream.post(Open(1, 50))
        stream.post(Forward(1, 0, 0, 0), [rows(2)])
        await news(stream)
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.post(http + "/drain")).status_code == 401
            drained = asyncio.create_task(client.post(http + "/drain", headers={"Authorization": "Bearer s"}))
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
            broken.setattr("cloud_server.runner.PagedBatch", lambda *_: 1 / 0)
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
        await socket.close()


async def test_operators_doors(tiny: Path) -> None:
    """/state and /drain are for whoever has the token, and for no web page."""
    async with cloud_here(tiny, 1, cloud_token="s") as cloud, httpx.AsyncClient(trust_env=False) as client:
        http = cloud.url.replace("ws", "http", 1)
        assert (await client.get(http + "/state")).status_code == 401
        headers = {"Authorization": "Bearer s"}
        assert (await client.get(http + "/state", headers=headers)).status_code == 200
        page = await client.post(http + "/drain", headers={**headers, "Origin": "https://evil.example"})
        assert page.status_code == 403
        assert (await client.get(http + "/health")).status_code == 200
