"""Limits hold exactly: in one gateway's memory, and in redis for several, by the same arithmetic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis_here import RedisServer

from gateway.errors import RequestError
from gateway.limits.bucket import PERIOD_S, Bucket
from gateway.limits.limiter import AT_ONCE, Grant, Limiter, MemoryStore
from gateway.limits.limits import Limits, Standing
from gateway.limits.redis_limits import KEPT_S, SETTLE, TAKE, RedisStore, read_taken
from gateway.registry import line as line_module
from gateway.registry.line import RedisLine
from gateway.registry.names import GATEWAY, LIMIT

CALLERS = 200


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A redis of this file's own."""
    with RedisServer() as running:
        yield running


@asynccontextmanager
async def limiters(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[list[Limiter]]:
    """One limiter, or two that share a redis."""
    if kind == "memory":
        yield [Limiter(MemoryStore())]
        return
    server: RedisServer = request.getfixturevalue("server")
    server.client.flushall()
    request.getfixturevalue("monkeypatch").setattr(line_module, "ANSWER_WITHIN_S", 30.0)
    lines = [RedisLine(server.url) for _ in range(2)]
    for at, line in enumerate(lines):
        await line.open()
        end = asyncio.get_running_loop().time() + 30
        while not line.up:
            assert asyncio.get_running_loop().time() < end
            await asyncio.sleep(0.01)
        server.client.set(f"{GATEWAY}{at}", "alive")
    try:
        yield [Limiter(RedisStore(line, str(at), MemoryStore())) for at, line in enumerate(lines)]
    finally:
        for line in lines:
            await line.close()


KINDS = pytest.mark.parametrize("kind", ["memory", "redis"])


async def tried(limiter: Limiter, limits: Limits, tokens: int = 0) -> Grant | None:
    """Leave, or None where it was refused."""
    try:
        return await limiter.admit("tenant", limits, tokens)
    except RequestError as refused:
        assert refused.status == 429 and refused.code == "rate_limit_exceeded"
        return None


@KINDS
@pytest.mark.parametrize(
    ("limits", "tokens", "most"),
    [(Limits(requests=60), 0, 60), (Limits(tokens=1000), 16, 62), (Limits(concurrent=7), 0, 7)],
)
async def test_callers_at_once_get_the_limit_and_no_more(
    kind: str, limits: Limits, tokens: int, most: int, request: pytest.FixtureRequest
) -> None:
    """Of 200 at the same moment, over two gateways where there are two."""
    async with limiters(kind, request) as all_of_them:
        asked = [tried(all_of_them[at % len(all_of_them)], limits, tokens) for at in range(CALLERS)]
        granted = [grant for grant in await asyncio.gather(*asked) if grant is not None]
        assert len(granted) == most
        for grant in granted:
            grant.close()
        assert not any(limiter.open for limiter in all_of_them)


@KINDS
async def test_who_ends_makes_room_for_who_comes(kind: str, request: pytest.FixtureRequest) -> None:
    """At another gateway too."""
    async with limiters(kind, request) as all_of_them:
        first, last = all_of_them[0], all_of_them[-1]
        one = await tried(first, Limits(concurrent=1))
        assert one is not None and await tried(last, Limits(concurrent=1)) is None
        one.close()
        one.close()
        assert await _granted_soon(last, Limits(concurrent=1), 0) is not None


@KINDS
@pytest.mark.parametrize("tokens", [0, 50])
async def test_a_request_that_nobody_took_is_given_back(kind: str, tokens: int, request: pytest.FixtureRequest) -> None:
    """With its tokens, once; what another gateway is asked instead counts there."""
    async with limiters(kind, request) as all_of_them:
        limits = Limits(requests=2, tokens=100 if tokens else 0)
        for _ in range(5):
            grant = await _granted_soon(all_of_them[0], limits, tokens)
            grant.tokens = 0
            grant.close(counts=False)
            grant.close()
        await _granted_soon(all_of_them[-1], limits, tokens)
        await _granted_soon(all_of_them[0], limits, tokens)
        assert await tried(all_of_them[-1], limits, 0) is None


@KINDS
async def test_what_was_reserved_is_settled(kind: str, request: pytest.FixtureRequest) -> None:
    """Tokens that were not used are there again; those used beyond count, over the limit even."""
    async with limiters(kind, request) as all_of_them:
        first, last = all_of_them[0], all_of_them[-1]
        limits = Limits(tokens=100)
        one = await tried(first, limits, 80)
        assert one is not None and one.headers["x-ratelimit-remaining-tokens"] == "20"
        assert await tried(last, limits, 30) is None
        one.tokens = 10
        one.close()
        two = await _granted_soon(last, limits, 90)
        assert two.headers["x-ratelimit-remaining-tokens"] == "0"
        two.tokens = 400
        two.close()
        await _refused_soon(first, limits, 1)


@KINDS
async def test_all_or_nothing(kind: str, request: pytest.FixtureRequest) -> None:
    """A request that is refused for one limit takes nothing of another."""
    async with limiters(kind, request) as all_of_them:
        limits = Limits(requests=2, tokens=100)
        for _ in range(5):
            assert await tried(all_of_them[0], limits, 101) is None
        assert await tried(all_of_them[0], limits, 50) is not None
        assert await tried(all_of_them[-1], limits, 60) is None
        assert await tried(all_of_them[-1], limits, 50) is not None


async def spoken(grants: list[Grant]) -> int:
    """The tokens that come of answers of unsaid length until each is ended by the limit, one after the other; each is
    closed then."""
    costs, open_ = [0] * len(grants), set(range(len(grants)))
    while open_:
        for at in list(open_):
            costs[at] += 1
            if not grants[at].spend(costs[at]):
                open_.remove(at)
            if (asking := grants[at]._asking) is not None:
                await asking
    for grant, cost in zip(grants, costs, strict=True):
        grant.tokens = cost
        grant.close()
    return sum(costs)


@KINDS
async def test_answers_that_go_on_take_all_there_is_and_no_more(kind: str, request: pytest.FixtureRequest) -> None:
    """Over two gateways where there are two; what they leave is there for the next."""
    async with limiters(kind, request) as all_of_them:
        limits, grants = Limits(tokens=1500), list[Grant]()
        for at in range(4):
            grant = await all_of_them[at % len(all_of_them)].admit("tenant", limits, 256, unsaid=True)
            assert grant is not None
            grants.append(grant)
        came = await spoken(grants)
        assert 1500 - 4 * AT_ONCE <= came <= 1500
        left = 1500 - came
        assert await _granted_soon(all_of_them[-1], limits, left) is not None
        assert await tried(all_of_them[0], limits, 1) is None


@KINDS
async def test_what_was_taken_beside_goes_back(kind: str, request: pytest.FixtureRequest) -> None:
    """All that an answer did not use; also where it ended while more was being asked for."""
    async with limiters(kind, request) as all_of_them:
        first, limits = all_of_them[0], Limits(tokens=1000)
        for waits in (True, False):
            grant = await first.admit("tenant", limits, 256, unsaid=True)
            assert grant is not None and grant.spend(250) and grant._asking is not None
            asking = grant._asking
            if waits:
                await asking
                assert await tried(all_of_them[-1], limits, 1000 - 2 * 256 + 1) is None
            grant.tokens = 250 if waits else 50
            grant.close()
            await asking
        assert not first.open
        await _granted_soon(all_of_them[-1], limits, 700)
        assert await tried(first, limits, 1) is None


async def test_what_is_not_limited_is_not_asked_for() -> None:
    """An answer under other limits goes on for as long as it likes."""
    grant = await Limiter(MemoryStore()).admit("tenant", Limits(requests=1), 256, unsaid=True)
    assert grant is not None and grant.spend(10**6) and grant._asking is None


async def test_an_answer_that_said_its_length_is_not_ended_before_it() -> None:
    """Of what it has reserved it uses all; beyond that it takes what there is."""
    limiter = Limiter(MemoryStore())
    grant = await limiter.admit("tenant", Limits(tokens=120), 100)
    assert grant is not None
    assert grant.spend(100) and grant._asking is None
    assert grant.spend(101)
    await asyncio.sleep(0)
    assert [grant.spend(cost) for cost in (110, 120, 121)] == [True, True, False]


async def test_one_that_has_died_holds_nothing_open(request: pytest.FixtureRequest, server: RedisServer) -> None:
    """What a gateway had open counts as long as it is heard of."""
    async with limiters("redis", request) as (first, last):
        assert await tried(first, Limits(concurrent=1)) is not None
        assert await tried(last, Limits(concurrent=1)) is None
        server.client.delete(f"{GATEWAY}0")
        assert await tried(last, Limits(concurrent=1)) is not None


async def test_what_ends_while_redis_is_gone_is_not_open_for_ever(
    request: pytest.FixtureRequest, server: RedisServer
) -> None:
    """One gateway cannot say that a request is over: it does once it can, and others let the tenant in again."""
    async with limiters("redis", request) as (first, last):
        grant, store = await tried(first, Limits(concurrent=1)), first._store
        assert grant is not None and isinstance(store, RedisStore)
        store._line.up = False
        grant.close()
        store._line.up = True
        assert await tried(last, Limits(concurrent=1)) is None
        store.restate_all(first.open)
        assert await _granted_soon(last, Limits(concurrent=1), 0) is not None


async def test_who_is_refused_is_not_counted_as_open(request: pytest.FixtureRequest) -> None:
    """Nor who gave up: while they wait for redis others end, or are granted, and say that they are open here. All other
    gateways would refuse the tenant for as long as that stands there."""
    async with limiters("redis", request) as (first, last):
        store, one = first._store, Limits(concurrent=1)
        assert isinstance(store, RedisStore)

        async def open_here() -> bytes | None:
            """As redis knows it; what was sent before is done before."""
            found: bytes | None = await store._line.ask("HGET", f"{LIMIT}tenant", "o0")
            return found

        running = await tried(first, one)
        assert running is not None
        refused = asyncio.ensure_future(tried(first, one))
        await asyncio.sleep(0)  # It has asked.
        running.close()
        assert await refused is None and await open_here() is None
        given_up = asyncio.ensure_future(tried(first, one))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        assert await open_here() is None and not first.open
        too_large, other = await asyncio.gather(*(tried(first, Limits(tokens=10), tokens) for tokens in (20, 5)))
        assert too_large is None and other is not None and await open_here() == b"1"
        other.close()
        assert await open_here() is None and await tried(last, one) is not None


async def test_a_hash_that_somebody_has_spoiled_harms_nobody(
    request: pytest.FixtureRequest, server: RedisServer
) -> None:
    """The gateways go on from memory for that tenant, and with redis for all others."""
    async with limiters("redis", request) as (first, _):
        server.client.set(f"{LIMIT}tenant", "no hash")
        assert await tried(first, Limits(requests=1)) is not None
        assert await tried(first, Limits(requests=1)) is None
        grant = await first.admit("another", Limits(requests=5), 0)
        assert grant is not None and server.client.hlen(f"{LIMIT}another") == 2


AGES = st.dictionaries(st.integers(-100, 100), st.integers(0, 50), max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(AGES, AGES, st.integers(0, 60), st.integers(0, 60), st.integers(0, 4), st.integers(0, 30), st.integers(0, 3))
def test_redis_decides_as_memory_does(
    server: RedisServer,
    requests: dict[int, int],
    tokens: dict[int, int],
    most: int,
    most_tokens: int,
    most_open: int,
    wanted: int,
    elsewhere: int,
) -> None:
    """Whatever was taken when, the script grants what ``Standing`` does, and leaves what it leaves."""
    client, key = server.client, f"{LIMIT}drawn"
    client.delete(key)
    client.set(f"{GATEWAY}b", "alive")
    base = int(client.time()[0])
    for kind, taken in (("r", requests), ("t", tokens)):
        for age, amount in taken.items():
            client.hset(key, f"{kind}{base - age}", amount)
    client.hset(key, "ob", elsewhere)
    limits = Limits(most, most_tokens, most_open)
    numbers = (limits.requests, limits.tokens, limits.concurrent, wanted)
    found = read_taken(client.eval(TAKE, 1, key, PERIOD_S, "a", 1, *numbers, GATEWAY, KEPT_S), 1)
    assert found is not None
    granted, standing = found
    own = Standing(
        standing.now,
        Bucket({base - age: amount for age, amount in requests.items()}),
        Bucket({base - age: amount for age, amount in tokens.items()}),
        elsewhere + 1,
    )
    assert granted is own.allows(limits, wanted)
    assert standing.headers(Limits(1, 1)) == own.headers(Limits(1, 1))
    if granted:
        second = own.take(limits, wanted)
        own.tokens.settle(own.now, second, 7 - wanted)
        if wanted % 2:
            own.requests.settle(own.now, second, -1)
        client.eval(SETTLE, 1, key, PERIOD_S, "a", 0, second, 7 - wanted, KEPT_S, wanted % 2)
    again = read_taken(client.eval(TAKE, 1, key, PERIOD_S, "a", 0, 0, 0, 0, 0, GATEWAY, KEPT_S), 0)
    assert again is not None
    then = again[1].now  # It may be a second later.
    assert again[1].tokens.used(then) == own.tokens.used(then)
    assert again[1].requests.used(then) == own.requests.used(then)


async def _granted_soon(limiter: Limiter, limits: Limits, tokens: int) -> Grant:
    """What a gateway has ended others know a moment later."""
    end = asyncio.get_running_loop().time() + 30
    while (grant := await tried(limiter, limits, tokens)) is None:
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.01)
    return grant


async def _refused_soon(limiter: Limiter, limits: Limits, tokens: int) -> None:
    end = asyncio.get_running_loop().time() + 30
    while (grant := await tried(limiter, limits, tokens)) is not None:
        grant.tokens = 0
        grant.close()
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.01)
