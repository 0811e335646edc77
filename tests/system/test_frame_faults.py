"""A network that replays, doubles, swaps, cuts and loses messages: exactly-once effect or a typed error, never a wrong
token.

Seeded proxies between devices and one cloud. A seed that fails is run alone with ``-k`` and its number in the list.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from clouds import Cloud, chain_over, cloud_here, device_hello, greedy, until
from fault_proxy import KINDS, FaultProxy, Faults
from faults.judging import GOES_ON
from faults.notes import note
from oracle import oracle_tokens, prompt_for
from tiny_models import build_tiny
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from device_agent.cloud.recovery import MAX_LOSSES
from device_agent.cloud.remote import RemoteSubmodel
from device_agent.sharing.compute import Compute
from wire.errors import Code, ConnectionFailed, SessionFailed
from wire.parts import Assembly

TOKENS = 24
LENGTHS = (3, 20, 45)
"""Of the prompts of the sessions of one device: one chunk, some, many."""
CHUNK = 8
BATCH = 20
"""Seeds at once, each a device of its own: most of their time is waiting for the other side to find out."""
FAULTS = Faults(rate=0.04, most=4)
CONNECTED_WITHIN_S = 60.0


async def ask_through_faults(clouds: Sequence[Cloud], path: Path, seed: int, compute: Compute) -> Counter[str]:
    """One device with several sessions at once, on networks with this seed; what happened and how answers ended."""
    async with AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(FaultProxy(cloud.url, FAULTS, seed + number * 10**6))
            for number, cloud in enumerate(clouds)
        ]
        remote = RemoteSubmodel([each.url for each in proxies], device_hello(path, 1, 1), reply_within_s=20.0)
        running = asyncio.create_task(remote.run())
        try:
            await until(lambda: remote.connected, CONNECTED_WITHIN_S)
            chain = chain_over(path, 1, 1, remote, compute, CHUNK)
            prompts = [prompt_for(path, length, seed=length) for length in LENGTHS]
            ended = await asyncio.gather(
                *(greedy(chain, list(prompt), TOKENS) for prompt in prompts), return_exceptions=True
            )
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        happened = sum((proxy.happened for proxy in proxies), Counter[str]())
    losses = happened.total() - happened["delay"]
    for prompt, answer in zip(prompts, ended, strict=True):
        if isinstance(answer, BaseException):
            assert isinstance(answer, (SessionFailed, ConnectionFailed)), (seed, answer)
            # Nobody gives up whose networks broke fewer times than a device puts up with in a row.
            assert answer.code is not Code.UPSTREAM_LOST or losses >= MAX_LOSSES, (seed, answer, losses)
            happened[f"failed: {answer.code.value}"] += 1
        else:
            assert answer == oracle_tokens(path, prompt, TOKENS), (seed, "a wrong token")
            happened["answered"] += 1
    return happened


async def check_seeds(path: Path, seeds: range, clouds: int = 1, kv_mb: int = 8) -> Counter[str]:
    """All seeds, some at once, against the same clouds, which have nothing left in their books in the end."""
    compute = Compute()
    happened: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        here = [
            await stack.enter_async_context(cloud_here(path, 1, 1, resume_s=3.0, page_positions=4, kv_mb=kv_mb))
            for _ in range(clouds)
        ]
        for begin in range(0, len(seeds), BATCH):
            batch = seeds[begin : begin + BATCH]
            for each in await asyncio.gather(*(ask_through_faults(here, path, seed, compute) for seed in batch)):
                happened += each
            for cloud in here:
                await check_empty(cloud)
        for cloud in here:
            preempted = cloud.server.engine.metrics.registry.get_sample_value("trilby_cloud_num_preemptions_total")
            happened["preempted"] += int(preempted or 0)
    compute.stop()
    return happened


async def check_empty(cloud: Cloud) -> None:
    """A cloud whose devices are gone: it keeps their sessions for a reconnect that will not come, and not for long."""
    engine = cloud.server.engine
    engine.ledger.pages.check()
    await until(lambda: not engine.ledger.entries)
    engine.ledger.pages.check()
    assert engine.ledger.pages.used == 0 and engine.sessions.scheduler.waiting_rows == 0
    assert engine.alive


def check_counts(happened: Counter[str], seeds: int, answered: float = 0.99) -> None:
    """Faults of every kind did happen, and nearly everything was answered all the same: this share of it."""
    print(dict(happened))
    said = ", ".join(f"{count} {kind}" for kind, count in sorted(happened.items()) if kind in KINDS)
    note("plain", f"{seeds} networks: {said}", GOES_ON, compared=happened["answered"] * TOKENS)
    assert all(happened[kind] for kind in KINDS), happened
    assert happened["answered"] >= answered * seeds * len(LENGTHS), happened


async def test_20_seeds(tiny: Path) -> None:
    """Twenty bad networks."""
    check_counts(await check_seeds(tiny, range(20)), 20)


@pytest.mark.slow
async def test_20_seeds_in_parts(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty bad networks that meet parts of frames: what is longer than two rows leaves in several."""
    cut = Counter[str]()
    take = Assembly.take

    def counted(assembly: Assembly, kind: int, frame: int, data: bytes, now: float) -> bytes | None:
        whole = take(assembly, kind, frame, data, now)
        cut["parts"] += 1
        cut["frames"] += whole is not None
        return whole

    monkeypatch.setattr(Assembly, "take", counted)
    for module in ("wire.parts", "wire.outbox"):
        monkeypatch.setattr(f"{module}.PART_BYTES", 256)
    monkeypatch.setattr("wire.outbox.SHORT_FRAME_BYTES", 128)
    check_counts(await check_seeds(tiny, range(20, 40)), 20)
    assert cut["parts"] > 2 * cut["frames"] > 200, cut


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_500_seeds(tiny: Path) -> None:
    """Five hundred bad networks, none of them among the twenty."""
    check_counts(await check_seeds(tiny, range(1000, 1500)), 500)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_faults_and_no_room(tiny_folder: Path) -> None:
    """Bad networks to two clouds that have pages for a tenth of what is asked of them: also then.

    Two networks break up to eight times, and whoever waits for room meanwhile is answered nothing in between: a few
    have lost ``MAX_LOSSES`` connections in a row then.
    """
    path = build_tiny("llama", tiny_folder / "wide", num_key_value_heads=4, head_dim=64)
    happened = await check_seeds(path, range(2000, 2100), clouds=2, kv_mb=1)
    check_counts(happened, 100, answered=0.95)
    assert happened["preempted"]


async def through(faults: Faults, messages: list[bytes]) -> tuple[list[bytes], Counter[str], list[float]]:
    """What arrives of messages sent through a proxy, the faults it counts, and when each message arrived."""
    clock = asyncio.get_running_loop().time
    arrived: list[bytes] = []
    times: list[float] = []
    over = asyncio.Event()

    async def keep(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                arrived.append(await connection.recv(decode=False))
                times.append(clock())
        over.set()

    async with serve(keep, "127.0.0.1", 0, compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        async with FaultProxy(f"ws://127.0.0.1:{port}", faults, seed=1) as proxy:
            with suppress(ConnectionClosed):
                async with connect(proxy.url, compression=None, proxy=None) as socket:
                    for message in messages:
                        await socket.send(message)
            await asyncio.wait_for(over.wait(), 30)
            return arrived, proxy.happened, times


MESSAGES = [bytes([each]) * (each + 1) for each in range(20)]


async def test_the_proxy_without_faults_changes_nothing() -> None:
    """Every message once, in order."""
    arrived, happened, _ = await through(Faults(), MESSAGES)
    assert arrived == MESSAGES and not happened


@pytest.mark.parametrize("kind", KINDS)
async def test_the_proxy_does_what_it_says(kind: str) -> None:
    """Each kind of fault has its effect, and is counted."""
    arrived, happened, _ = await through(Faults(rate=0.3, most=3, kinds=(kind,), freeze_s=0.02), MESSAGES)
    assert 0 < happened[kind] <= 3 and set(happened) == {kind}
    count = happened[kind]
    if kind in ("replay", "duplicate"):
        assert len(arrived) == len(MESSAGES) + count and set(arrived) == set(MESSAGES)
    elif kind == "reorder":
        assert sorted(arrived) == sorted(MESSAGES) and arrived != MESSAGES
    elif kind == "truncate":
        assert len(arrived) == len(MESSAGES)
        assert sum(len(a) < len(b) for a, b in zip(arrived, MESSAGES, strict=True)) == count
    elif kind == "drop":
        assert len(arrived) == len(MESSAGES) - count
    elif kind in ("cut", "half_open"):
        assert len(arrived) < len(MESSAGES) and arrived == MESSAGES[: len(arrived)]
    else:
        assert arrived == MESSAGES


async def test_the_same_seed_does_the_same() -> None:
    """What happens to messages depends on the seed, not on time."""
    faults = Faults(rate=0.3, kinds=("drop", "duplicate", "truncate"))
    first, second = await through(faults, MESSAGES), await through(faults, MESSAGES)
    assert first[:2] == second[:2]


async def test_bandwidth() -> None:
    """A throttled way takes as long as its bytes."""
    arrived, _, times = await through(Faults(bytes_s=10_000), [b"x" * 500] * 9)
    assert len(arrived) == 9 and times[-1] - times[0] >= 0.4
