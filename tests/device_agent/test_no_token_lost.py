"""Whatever happens to a cloud server or the way to it, the tokens are transformers', as long as one is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import Cloud, chain_over, cloud_here, device_hello, greedy, remote_middle, until
from oracle import oracle_tokens, prompt_for
from submodel_conformance import rows

from device_agent.cloud.link import CloudLink
from device_agent.cloud.recovery import MAX_ATTACHES
from device_agent.cloud.remote import RemoteSubmodel
from device_agent.sharing.compute import Compute
from wire.errors import Code, SessionFailed
from wire.frames import Tensor
from wire.messages import AnyMessage
from wire.outbox import Outgoing
from wire.session_messages import Advice, Close, Forward, LinkState, Open, Park, Resume, Timing

PROMPT, TOKENS, CHUNK = 50, 10, 10


class Spy:
    """Sees every message that a device sends to one cloud server, and may do something after the n-th forward."""

    def __init__(self, link: CloudLink, monkeypatch: pytest.MonkeyPatch) -> None:
        self.link = link
        self.seen: list[AnyMessage] = []
        self.rows: list[int] = []
        """Rows of each forward."""
        self.at: dict[int, Callable[[], Any]] = {}
        post = link.post

        def spied(message: AnyMessage, tensors: Any = (), left: Any = None) -> Outgoing:
            entry = post(message, tensors, left)
            self.seen.append(message)
            if isinstance(message, Forward):
                tensor: Tensor = tensors[0]
                self.rows.append(tensor.shape[0])
                self.at.pop(len(self.rows), lambda: None)()
            return entry

        monkeypatch.setattr(link, "post", spied)

    def count(self, kind: type) -> int:
        """Messages of one kind."""
        return sum(isinstance(message, kind) for message in self.seen)

    def cut(self) -> None:
        """Break the connection off, as a network does."""
        assert self.link.stream is not None
        self.link.stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]

    def cut_for_good(self) -> None:
        """The same, and nobody answers there any more."""
        self.link.url = "ws://127.0.0.1:9/device"
        self.cut()


@asynccontextmanager
async def answering(
    tiny: Path, remote: RemoteSubmodel, prompt: tuple[int, ...], tokens: int = TOKENS
) -> AsyncIterator[asyncio.Task[list[int]]]:
    """A greedy answer over these clouds."""
    compute = Compute()
    chain = chain_over(tiny, 1, 1, remote, compute, CHUNK)
    task = asyncio.create_task(greedy(chain, list(prompt), tokens))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        compute.stop()


def nothing_left(cloud: Cloud) -> bool:
    """No session is open or kept."""
    return not cloud.server.engine.ledger.entries


@pytest.mark.parametrize("forward", [1, 2, 4, 5, 6, 7, 10, 14])
async def test_a_lost_connection_is_resumed(tiny: Path, forward: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut at any frame of prefill or decode: the session goes on where it was, at most the rows on their way are sent
    again, and whoever waits notices nothing."""
    prompt = prompt_for(tiny, PROMPT)
    async with (
        cloud_here(tiny, 1, 1, resume_s=2.0) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote,
        answering(tiny, remote, prompt) as answer,
    ):
        spy = Spy(remote.clouds.links[0], monkeypatch)
        spy.at[forward] = spy.cut
        assert await answer == oracle_tokens(tiny, prompt, TOKENS)
        assert not spy.at, "it was cut"
        assert spy.count(Open) + spy.count(Resume) == 2
        if forward > PROMPT // CHUNK:
            assert spy.count(Resume) == 1, "all rows but one were answered"
            assert sum(spy.rows) == PROMPT + TOKENS - 1 + 1
        probe = remote.open(1)
        await probe.forward(rows(1, 32, 0), 1)
        probe.close()
        await until(lambda: nothing_left(cloud))


async def test_cut_again_and_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every third frame, replays included: more losses than attaches are allowed for other reasons."""
    prompt = prompt_for(tiny, PROMPT, seed=1)
    async with (
        cloud_here(tiny, 1, 1) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote,
        answering(tiny, remote, prompt) as answer,
    ):
        spy = Spy(remote.clouds.links[0], monkeypatch)
        spy.at = dict.fromkeys(range(9, 30, 3), spy.cut)
        assert await answer == oracle_tokens(tiny, prompt, TOKENS)
        assert spy.count(Resume) >= MAX_ATTACHES


@pytest.mark.parametrize("forward", [1, 3, 5, 6, 9])
async def test_another_cloud_takes_over(tiny: Path, forward: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """When one goes for good, mid-prefill or mid-decode, the history is replayed to the next, as that can take it."""
    prompt = prompt_for(tiny, PROMPT, seed=2)
    async with (
        cloud_here(tiny, 1, 1) as first,
        cloud_here(tiny, 1, 1, max_rows=7, window_rows=16) as second,
        remote_middle([first.url, second.url], device_hello(tiny, 1, 1)) as remote,
        answering(tiny, remote, prompt) as answer,
    ):
        before, after = Spy(remote.clouds.links[0], monkeypatch), Spy(remote.clouds.links[1], monkeypatch)
        before.at[forward] = before.cut_for_good
        assert await answer == oracle_tokens(tiny, prompt, TOKENS)
        (opened,) = [message for message in after.seen if isinstance(message, Open)]
        if forward in (1, 9):
            assert opened.replayed is (forward == 9), "what has been answered once is a replay"
        assert max(after.rows) <= 7
        assert remote.connected
        await until(lambda: nothing_left(second))


async def test_a_restarted_cloud_gets_everything_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows nothing of the session: the resume is refused, and a replay follows by itself."""
    prompt = prompt_for(tiny, PROMPT, seed=3)
    async with (
        cloud_here(tiny, 1, 1) as first,
        cloud_here(tiny, 1, 1) as second,
        remote_middle(first.url, device_hello(tiny, 1, 1)) as remote,
        answering(tiny, remote, prompt) as answer,
    ):
        spy = Spy(remote.clouds.links[0], monkeypatch)

        def restart() -> None:
            spy.link.url = second.url + "/device"
            spy.cut()

        spy.at[8] = restart
        assert await answer == oracle_tokens(tiny, prompt, TOKENS)
        assert (spy.count(Resume), spy.count(Open)) == (1, 2)


ENDS = [
    SessionFailed(Code.PREEMPTED, "why", retry_after_s=0.02),
    SessionFailed(Code.EVICTED, "why"),
    SessionFailed(Code.STAGE_LOST, "why", retry_after_s=0.02),
    SessionFailed(Code.INTERNAL, "why"),
]


@pytest.mark.parametrize("failure", ENDS, ids=lambda failure: failure.code.value)
@pytest.mark.parametrize("forward", [2, 8])
async def test_a_session_that_the_cloud_gives_up_is_replayed(
    tiny: Path, failure: SessionFailed, forward: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same cloud, under a new number; a late answer to the old one is nobody's."""
    prompt = prompt_for(tiny, PROMPT, seed=4)
    async with (
        cloud_here(tiny, 1, 1) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote,
        answering(tiny, remote, prompt) as answer,
    ):
        spy = Spy(remote.clouds.links[0], monkeypatch)
        engine = cloud.server.engine

        async def give_up() -> None:
            await until(lambda: engine.ledger.entries)
            engine.sessions.end(next(iter(engine.ledger.entries)), failure)

        tasks = []
        spy.at[forward] = lambda: tasks.append(asyncio.create_task(give_up()))
        assert await answer == oracle_tokens(tiny, prompt, TOKENS)
        await asyncio.gather(*tasks)
        assert [message.session for message in spy.seen if isinstance(message, Open)] == [1, 2]


async def test_rows_that_bring_every_step_down_fail_in_the_end(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the cloud's own error, after a few attaches and not for ever."""
    async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote:
        spy = Spy(remote.clouds.links[0], monkeypatch)

        async def broken(*_: Any) -> None:
            raise RuntimeError("poison")

        monkeypatch.setattr(cloud.server.engine._runner, "run", broken)
        session = remote.open(4)
        with pytest.raises(SessionFailed) as failed:
            await session.forward(rows(1, 32, 0), 1)
        assert failed.value.code is Code.INTERNAL
        assert spy.count(Open) == MAX_ATTACHES
        session.close()


async def test_a_cloud_that_does_not_answer_is_left_for_another(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session there is closed, so that it holds nothing when it wakes up."""
    prompt = prompt_for(tiny, PROMPT, seed=5)
    async with (
        cloud_here(tiny, 1, 1) as first,
        cloud_here(tiny, 1, 1) as second,
        remote_middle([first.url, second.url], device_hello(tiny, 1, 1), reply_within_s=2.0) as remote,
        answering(tiny, remote, prompt) as answer,
    ):
        monkeypatch.setattr("device_agent.cloud.keeping.LOOK_EVERY_S", 0.05)
        monkeypatch.setattr(first.server.engine.sessions.scheduler, "add", lambda *work: None)
        assert await answer == oracle_tokens(tiny, prompt, TOKENS)
        await until(lambda: nothing_left(first) and nothing_left(second))


@pytest.mark.parametrize("both", [True, False])
async def test_a_draining_cloud_is_left(tiny: Path, both: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open sessions move, new ones go elsewhere; where there is no other cloud, open ones stay and finish."""
    prompt = prompt_for(tiny, PROMPT, seed=6)
    async with cloud_here(tiny, 1, 1) as first, cloud_here(tiny, 1, 1) as second:
        urls = [first.url, second.url] if both else [first.url]
        async with (
            remote_middle(urls, device_hello(tiny, 1, 1)) as remote,
            answering(tiny, remote, prompt, 3 * TOKENS) as answer,
        ):
            spy, draining = Spy(remote.clouds.links[0], monkeypatch), list[asyncio.Task[int]]()
            spy.at[8] = lambda: draining.append(asyncio.create_task(first.server.drain()))
            assert await answer == oracle_tokens(tiny, prompt, 3 * TOKENS)
            assert spy.link.draining and remote.connected is both
            assert (len(spy.rows) < PROMPT // CHUNK + 3 * TOKENS - 1) is both
            assert await draining[0] == 0
            if both:
                session = remote.open(4)
                await session.forward(rows(1, 32, 0), 1)
                assert not nothing_left(second)
                session.close()
            else:
                with pytest.raises(SessionFailed) as refused:
                    remote.open(4)
                assert refused.value.code is Code.DRAINING


async def test_a_full_cloud_is_waited_for(tiny: Path) -> None:
    """A session that finds no room gets it when another ends."""
    async with (
        cloud_here(tiny, 1, 1, max_device_sessions=1) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote,
    ):
        first, second = remote.open(4), remote.open(4)
        await first.forward(rows(2, 32, 0), 2)
        waiting = second.forward(rows(2, 32, 0), 2)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        first.close()
        assert (await waiting).shape == (2, 32)
        second.close()


async def test_nobody_comes_back(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time to recover, whoever waits is told that the cloud is lost."""
    async with (
        cloud_here(tiny, 1, 1) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1), recover_within_s=0.3) as remote,
    ):
        spy = Spy(remote.clouds.links[0], monkeypatch)
        session = remote.open(4)
        await session.forward(rows(1, 32, 0), 1)
        spy.cut_for_good()
        await until(lambda: not remote.connected)
        with pytest.raises(SessionFailed) as failed:
            await session.forward(rows(1, 32, 0), 1)
        assert failed.value.code is Code.UPSTREAM_LOST
        session.close()


async def test_closing_ends_every_kind_of_wait(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no cloud is there, while rows are replayed, and after: no task is left, and nothing in the cloud."""
    async with (
        cloud_here(tiny, 1, 1, window_rows=4, max_rows=4, resume_s=1.0) as cloud,
        remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote,
    ):
        spy = Spy(remote.clouds.links[0], monkeypatch)
        tasks = asyncio.all_tasks()
        lost = remote.open(40)
        for _ in range(5):
            await lost.forward(rows(4, 32, 0), 0)
        url = spy.link.url
        spy.cut_for_good()
        await until(lambda: not remote.connected)
        waits = lost.forward(rows(1, 32, 0), 1)
        await asyncio.sleep(0.05)
        lost.close()
        with pytest.raises(SessionFailed) as closed:
            await waits
        assert closed.value.code is Code.CANCELLED
        spy.link.url = url
        await until(lambda: remote.connected)

        replaying = remote.open(40)
        for _ in range(5):
            await replaying.forward(rows(4, 32, 0), 0)
        engine = cloud.server.engine
        engine.sessions.end(max(engine.ledger.entries), SessionFailed(Code.EVICTED, "why"))
        await until(lambda: not spy.link.sessions)
        seen = len(spy.rows)
        with monkeypatch.context() as silent:
            silent.setattr(engine.sessions.scheduler, "add", lambda *work: None)
            waits = replaying.forward(rows(1, 32, 0), 1)
            await until(lambda: len(spy.rows) > seen)
            replaying.close()
        with pytest.raises(SessionFailed):
            await waits
        await until(lambda: nothing_left(cloud) and not spy.link.sessions)
        await until(lambda: len(asyncio.all_tasks()) <= len(tasks) + 2)  # The new connection has its own few.


async def test_a_parked_session_sends_only_what_is_new(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept, it goes on where it was; given up meanwhile, or its connection lost, it is replayed; the rows are those
    of a session that never stopped."""
    hidden = rows(40, 32, 1)
    async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote:
        spy = Spy(remote.clouds.links[0], monkeypatch)
        whole = remote.open(40, 40, 40)
        wanted = await whole.forward(hidden, 40)
        whole.close()
        session = remote.open(40, 20, 25)
        await session.forward(hidden[:20], 20)
        engine = cloud.server.engine
        begin = 16
        for event in ("kept", "evicted", "lost"):
            session.park()
            await until(lambda: any(entry.state.value == "parked" for entry in engine.ledger.entries.values()))
            if event == "evicted":
                engine.sessions.end(max(engine.ledger.entries), SessionFailed(Code.EVICTED, "why"))
                await until(lambda: not spy.link.sessions)
            elif event == "lost":
                spy.cut()
                await until(lambda: not spy.link.sessions)
                await until(lambda: remote.connected)
            spy.rows.clear()
            session.truncate(begin)
            session.expect(6, begin + 6)
            got = await session.forward(hidden[begin : begin + 6], 6)
            torch.testing.assert_close(got, wanted[begin : begin + 6], atol=1e-5, rtol=0)
            assert sum(spy.rows) == (begin + 6 if event == "evicted" else 6)
            begin += 6
        assert (spy.count(Park), spy.count(Open), spy.count(Resume)) == (3, 3, 1)
        session.close()
        assert spy.count(Close) == 2


async def test_the_cloud_hears_times_and_its_advice_is_heard(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TTFT once, TBT for each answer after it, within about a second, and bandwidth once known; chunk sizes for the
    connection and for a session arrive where prompts are cut."""
    async with cloud_here(tiny, 1, 1) as cloud, remote_middle(cloud.url, device_hello(tiny, 1, 1)) as remote:
        spy = Spy(remote.clouds.links[0], monkeypatch)
        session = remote.open(1000, 500, 503)
        for begin in range(0, 500, 250):
            await session.forward(rows(250, 32, begin), 1)
        for _ in range(3):
            await session.forward(rows(1, 32, 0), 1)

        def told() -> list[list[int]]:
            times = [message for message in spy.seen if isinstance(message, Timing)]
            return [[us for one in times for us in one.ttft_us], [us for one in times for us in one.tbt_us]]

        await until(lambda: sum(map(len, told())) >= 4)
        ttft_us, tbt_us = told()
        assert len(ttft_us) == 1 and len(tbt_us) == 3 and min(ttft_us + tbt_us) > 0
        assert all(message.up_bytes_s > 0 for message in spy.seen if isinstance(message, LinkState))
        stream = next(iter(cloud.server.links.values())).stream
        stream.post(Advice([33, 22]))
        stream.post(Advice([5, 6], 1, 490))
        stream.post(Advice([7], 99, 0))
        await until(lambda: (remote.chunk, remote.first_chunk) == (33, 22))
        probe = remote.open(1)
        await probe.forward(rows(1, 32, 0), 1)  # Answered behind all of it.
        assert session.take_advice() == (490, [5, 6]) and session.take_advice() is None
        session.close()
