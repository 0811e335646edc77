"""Several gateways that share a redis: agents, limits and keys known to all, and requests sent where they are best."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from gateway_reading import read_back
from gateway_unread import LONG, asking, ends, much
from redis_here import RedisServer
from structlog.testing import capture_logs

from gateway import app
from gateway.config import GatewayConfig
from gateway.incidents import EVERYBODY, OPERATORS
from gateway.keys import TENANT_HEADER, TOKEN_HEADER
from gateway.keys_command import main
from gateway.registry import line
from gateway.registry import redis as beating
from gateway.registry.names import GATEWAY, GATEWAYS
from service.lifecycle import listening
from wire.request_messages import ServedModel

TOKEN = "what-gateways-share"
OTHER = ServedModel("other/model", 4096, 1_700_000_000)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def fleet(serving: Any, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``async with fleet(2) as gateways``: each knows all others, beats often, and is patient on a slow machine."""
    monkeypatch.setattr(beating, "BEAT_S", 0.15)
    monkeypatch.setattr(beating, "ALIVE_S", 60)
    monkeypatch.setattr(line, "ANSWER_WITHIN_S", 30.0)

    @asynccontextmanager
    async def running(count: int, **more: Any) -> Any:
        async with AsyncExitStack() as stack:
            gateways = []
            for _ in range(count):
                with listening("127.0.0.1", 0) as probe:
                    port = probe.getsockname()[1]
                about = {"redis": server.url, "gateway_token": TOKEN, "advertise": f"http://127.0.0.1:{port}"}
                config = GatewayConfig(**{**about, "keep_alive_s": 0.2, **more})
                gateways.append(await stack.enter_async_context(serving(config, port=port)))
            for gateway in gateways:
                await gateway.until(lambda gateway=gateway: len(peers(gateway)) == count - 1)
            yield gateways

    return running


def peers(gateway: Any) -> Any:
    """The gateways that one knows."""
    return gateway.roster._registry.peers


async def known(gateway: Any, count: int) -> None:
    """Until it knows so many agents."""
    await gateway.until(lambda: len(gateway.roster.known()) == count)


async def test_a_request_goes_where_the_agent_is(fleet: Any, connected: Any, chat: Any) -> None:
    """Whole and streamed, as if it had an agent itself; models and groups are those of all."""
    async with fleet(2) as (one, two), connected(two) as agent:
        await known(one, 1)
        assert [each["id"] for each in (await one.http.get("/v1/models")).json()["data"]] == ["demo/model"]
        assert (await one.http.get("/ready")).status_code == 200
        above = f"00-{'a' * 32}-{'b' * 16}-01"
        mine = {"x-request-id": "mine", "traceparent": above}
        whole = await one.http.post("/v1/chat/completions", json=chat, headers=mine)
        assert whole.status_code == 200 and whole.headers["x-request-id"] == "mine"
        assert whole.json()["choices"][0]["message"]["content"] == "Hello world"
        assert agent.asked[0].request_id == "mine" and agent.asked[0].traceparent == above
        streamed = await one.http.post("/v1/chat/completions", json=chat | {"stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n") and "lo wor" in streamed.text
        wrong = await one.http.post("/v1/chat/completions", json=chat | {"model": "none"})
        assert wrong.status_code == 404
        state = (await one.http.get("/state")).json()
        [other] = state["fleet"]["gateways"]
        assert state["fleet"]["redis"]["connected"] and other["more_agents"] == 0
        [device] = other["agents"]
        assert device["models"] == ["demo/model"] and device["cloud_connected"] is None and device["capacity"] == 8
        assert 'forwarded_total{outcome="answered"} 2' in (await one.http.get("/metrics")).text
        asked = two.app.state.desk.metrics
        assert asked.from_gateways.received == len(whole.request.content + streamed.request.content)
        assert asked.from_gateways.sent == len(whole.content + streamed.content)
        assert (asked.from_clients.sent, asked.from_clients.received) == (0, 0)


async def test_a_page_is_told_of_some_agents_of_each_gateway(
    fleet: Any, connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of how many more there are."""
    monkeypatch.setattr(app, "MAX_AGENTS", 1)
    async with fleet(2) as (one, two), connected(two, name="kitchen"), connected(two, name="shed"):
        await known(one, 2)
        async with one.http.stream("GET", "/page/events") as reply:
            told = await anext(line async for line in reply.aiter_lines() if line.startswith("data: "))
    [other] = json.loads(told.removeprefix("data: "))["fleet"]["gateways"]
    assert len(other["agents"]) == other["more_agents"] == 1


async def test_a_client_that_leaves_ends_it_there(fleet: Any, connected: Any, chat: Any, scripts: Any) -> None:
    """The agent is told to stop; silence meanwhile is filled with comments."""
    async with fleet(2) as (one, two), connected(two, scripts.hang) as agent:
        await known(one, 1)
        async with one.http.stream("POST", "/v1/chat/completions", json=chat | {"stream": True}) as reply:
            seen = ""
            async for piece in reply.aiter_text():
                seen += piece
                if "Well" in seen and "keep-alive" in seen:
                    break
        await two.until(lambda: agent.cancelled)
        await two.until(lambda: two.roster.running == 0)


async def test_a_client_that_does_not_read_what_was_passed_on_is_given_up(
    fleet: Any, connected: Any, chat: Any
) -> None:
    """Within the time for reading, as where it is answered here; the other gateway had been read to the end."""
    async with fleet(2, client_within_s=1.0) as (one, two), connected(two, much):
        await known(one, 1)
        with capture_logs() as logs, asking(one, "/v1/chat/completions", chat):
            await one.until(lambda: ends(logs, "request forwarded"))
            assert (ends(logs), ends(logs, "request forwarded")) == (["answered"], ["aborted"])
        reply = await one.http.post("/v1/chat/completions", json=chat)
        assert reply.json()["choices"][0]["message"]["content"] == "x" * LONG


async def test_the_least_loaded_of_all_is_chosen(fleet: Any, connected: Any, chat: Any, scripts: Any) -> None:
    """Whichever gateway is asked; those that are full make way for those that are not."""
    hang, two_each = scripts.hang, {"capacity": 2}
    async with (
        fleet(2) as (one, two),
        connected(one, hang, **two_each) as mine,
        connected(two, hang, **two_each) as other,
    ):
        await known(one, 2)
        await known(two, 2)
        tasks = []
        for count in range(1, 5):
            tasks.append(asyncio.create_task(one.http.post("/v1/chat/completions", json=chat)))
            await one.until(lambda count=count: len(mine.asked) + len(other.asked) == count)
        assert len(mine.asked) == len(other.asked) == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await one.until(lambda: len(mine.cancelled) + len(other.cancelled) == 4)


async def test_nobody_waits_elsewhere_while_there_is_room_here(
    fleet: Any, connected: Any, chat: Any, scripts: Any
) -> None:
    """A gateway that is fuller than it had told refuses at once, and nothing of the caller's limits is spent there."""
    async with (
        fleet(2, requests_a_minute=4) as (one, two),
        connected(two, scripts.hang, capacity=2) as other,
    ):
        await known(one, 1)
        two.roster._registry._beating.cancel()  # It tells nothing more, and does not hear of the other's agent.
        async with connected(one, scripts.hang, capacity=2) as mine:
            stuck = []
            for gateway, agent, count in ((two, other, 1), (two, other, 2), (one, mine, 1)):
                stuck.append(asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat)))
                await gateway.until(lambda agent=agent, count=count: len(agent.asked) == count)
            mine.script = scripts.answer
            assert (await one.http.post("/v1/chat/completions", json=chat)).status_code == 200
            assert len(other.asked) == len(mine.asked) == 2
            assert 'forwarded_total{outcome="failed"} 1' in (await one.http.get("/metrics")).text
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)


async def test_a_conversation_goes_on_at_its_agent(fleet: Any, connected: Any, chat: Any) -> None:
    """Whichever gateway its turns come by."""
    async with fleet(2) as (one, two), connected(one) as mine, connected(two) as other:
        await known(one, 2)
        await known(two, 2)
        messages = chat["messages"]
        for at, gateway in enumerate((one, two, two, one), 1):
            reply = await gateway.http.post("/v1/chat/completions", json=chat | {"messages": messages})
            messages = [*messages, reply.json()["choices"][0]["message"], {"role": "user", "content": "And?"}]
            assert sorted((len(mine.asked), len(other.asked))) == [0, at]
            for each in (one, two):
                await each.until(lambda each=each, at=at: len([t for a in each.roster.known() for t in a.turns]) == at)


async def test_only_who_has_the_model_is_asked(fleet: Any, connected: Any, chat: Any) -> None:
    """Each gateway has another model; both serve both."""
    async with fleet(2) as (one, two), connected(one) as mine, connected(two, models=(OTHER,)) as other:
        await known(one, 2)
        await known(two, 2)
        for gateway in (one, two):
            for model in ("demo/model", "other/model"):
                reply = await gateway.http.post("/v1/chat/completions", json=chat | {"model": model})
                assert reply.status_code == 200 and reply.json()["model"] == model
        assert len(mine.asked) == len(other.asked) == 2


async def test_nobody_but_a_gateway_sends_on_behalf_of_others(fleet: Any, connected: Any, chat: Any) -> None:
    """A wrong token is refused; with the right one nothing is ever sent on, even where the agent is elsewhere."""
    async with fleet(2) as (one, two), connected(two) as agent:
        await known(one, 1)
        for token, status in (("wrong", 401), (TOKEN, 503)):
            headers = {TOKEN_HEADER: token, TENANT_HEADER: "somebody"}
            refused = await one.http.post("/v1/chat/completions", json=chat, headers=headers)
            assert refused.status_code == status, refused.text
        headers = {TOKEN_HEADER: TOKEN, TENANT_HEADER: "somebody"}
        assert (await two.http.post("/v1/chat/completions", json=chat, headers=headers)).status_code == 200
        assert [each.tenant for each in agent.asked] == ["somebody"]
        assert (await two.http.post("/drain", headers=headers)).status_code == 403


async def test_limits_and_keys_hold_for_all_together(
    fleet: Any, connected: Any, chat: Any, server: RedisServer
) -> None:
    """200 callers over two gateways get exactly what one key may; the refusals have all headers."""
    store = ["--key-store", "redis", "--redis", server.url, "--gateway-token", TOKEN]
    key = CliRunner().invoke(main, [*store, "add", "alice", "--requests", "40"]).output.strip()
    async with fleet(2, key_store="redis") as (one, two), connected(one) as mine, connected(two) as other:
        await known(one, 2)
        await known(two, 2)
        headers = {"authorization": f"Bearer {key}"}
        asked = [(one, two)[at % 2].http.post("/v1/chat/completions", json=chat, headers=headers) for at in range(200)]
        replies = await asyncio.gather(*asked)
        assert Counter(each.status_code for each in replies) == {200: 40, 429: 160}
        assert len(mine.asked) + len(other.asked) == 40
        refused = next(each for each in replies if each.status_code == 429)
        assert refused.headers["x-ratelimit-limit-requests"] == "40" and "retry-after" in refused.headers
        assert (await one.http.get("/v1/models")).status_code == 401
        assert CliRunner().invoke(main, [*store, "revoke", "alice"]).exit_code == 0
        for gateway in (one, two):
            end = asyncio.get_running_loop().time() + 30
            while (await gateway.http.get("/v1/models", headers=headers)).status_code != 401:
                assert asyncio.get_running_loop().time() < end


async def test_redis_gone_and_back(fleet: Any, connected: Any, chat: Any, server: RedisServer, caplog: Any) -> None:
    """Serving and sending on go on from what was known; a new agent and limits are shared again once it is back."""
    async with fleet(2, requests_a_minute=3) as (one, two), connected(two, models=(OTHER,)) as agent:
        await known(one, 1)
        server.kill()
        await one.until(lambda: not fleet_of(one).up)
        health = await one.http.get("/health")
        assert health.status_code == 200 and health.json() == {"status": "ok", "redis": "gone"}
        assert "trilby_redis_connected 0.0" in (await one.http.get("/metrics")).text
        replies = [await one.http.post("/v1/chat/completions", json=chat | {"model": OTHER.id}) for _ in range(5)]
        assert [each.status_code for each in replies] == [200, 200, 200, 429, 429]
        assert len(agent.asked) == 3
        server.start()
        await one.until(lambda: fleet_of(one).up and fleet_of(two).up)
        async with connected(one):
            await known(two, 2)
            reply = await two.http.post("/v1/chat/completions", json=chat)
            assert reply.status_code == 200
        assert (await one.http.get("/health")).json() == {"status": "ok", "redis": "ok"}


async def test_many_are_sent_on_while_redis_is_gone(
    fleet: Any, connected: Any, chat: Any, scripts: Any, server: RedisServer
) -> None:
    """One after the other, more than the other's agent answers at once: nothing says meanwhile that it is free."""
    async with fleet(2) as (one, two), connected(one, scripts.hang, capacity=1) as mine, connected(two, capacity=1):
        await known(one, 2)
        server.kill()
        await one.until(lambda: not fleet_of(one).up)
        busy = asyncio.create_task(one.http.post("/v1/chat/completions", json=chat))
        await one.until(lambda: mine.asked or busy.done())
        for _ in range(4):
            assert (await one.http.post("/v1/chat/completions", json=chat)).status_code == 200
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)


def fleet_of(gateway: Any) -> Any:
    """What it knows of redis."""
    return gateway.roster._registry._line


async def test_a_gateway_that_cannot_be_reached_costs_nobody_an_answer(
    fleet: Any, connected: Any, chat: Any, server: RedisServer
) -> None:
    """One that redis still knows: others answer, and it is not asked again for a while."""
    async with fleet(2) as (one, two), connected(one) as mine, connected(two, capacity=64):
        await known(one, 2)
        dead = httpx.URL(two.url).port
        blob = server.client.get(GATEWAY + peers(one)[0].id)
        assert blob is not None and dead is not None
        elsewhere(one, "http://127.0.0.1:9")
        replies = [await one.http.post("/v1/chat/completions", json=chat) for _ in range(4)]
        assert [each.status_code for each in replies] == [200] * 4 and len(mine.asked) == 4
        assert lost_at(one) == [("http://127.0.0.1:9", EVERYBODY, 1)]


def elsewhere(gateway: Any, url: str) -> None:
    """Have it take the other gateway for one at this address from now on."""
    registry = gateway.roster._registry
    [peer] = registry.peers
    registry.peers = (type(peer)(peer.id, url, peer.agents, peer.waiting),)
    registry._heard = {id: (data, registry.peers[0]) for id, (data, _) in registry._heard.items()}
    registry._beating.cancel()


def lost_at(gateway: Any) -> list[tuple[str, str, int]]:
    """The gateways that it has lost, who is told, and how often."""
    told = gateway.app.state.desk.metrics.incidents.since(0)
    return [(each.who, each.whose, each.times) for each in told if each.kind == "gateway_lost"]


@asynccontextmanager
async def dying() -> AsyncIterator[str]:
    """Where somebody begins to answer as a gateway does, and is gone."""

    async def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata:\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(begin, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_an_answer_that_breaks_off_elsewhere_is_told(fleet: Any, connected: Any, chat: Any) -> None:
    """To whom it was for, as an error of the stream and among what went wrong."""
    async with dying() as url, fleet(2, api_keys="one") as (one, two), connected(two):
        await known(one, 1)
        elsewhere(one, url)
        headers = {"authorization": "Bearer one"}
        reply = await one.http.post("/v1/chat/completions", json=chat | {"stream": True}, headers=headers)
        assert '"code":"upstream_lost"' in reply.text
        await one.until(lambda: lost_at(one))
        [(who, whose, times)] = lost_at(one)
        assert (who, times) == (url, 1) and whose not in (EVERYBODY, OPERATORS, "")


async def test_vectors_that_break_off_elsewhere_are_no_whole_answer(fleet: Any, connected: Any) -> None:
    """They cannot end in an error, since they have begun to come: the client's own connection breaks off, so that it
    knows; and only that one does."""
    models = (ServedModel("m", 64, 1, [], 0, ["embed"], 2),)
    async with dying() as url, fleet(2) as (one, two), connected(two, read_back, models=models):
        await known(one, 1)
        elsewhere(one, url)
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            await one.http.post("/v1/embeddings", json={"input": [[1]]})
        await one.until(lambda: lost_at(one))
        assert lost_at(one)[0][0] == url and (await one.http.get("/health")).status_code == 200


async def test_a_gateway_that_drains_is_left_alone(fleet: Any, connected: Any, chat: Any) -> None:
    """It says so; and what comes to it a moment before goes elsewhere."""
    async with fleet(2, operator_token="operators-only") as (one, two), connected(one) as mine, connected(two) as other:
        await known(one, 2)
        assert (await two.drain()).status_code == 202
        replies = [await one.http.post("/v1/chat/completions", json=chat) for _ in range(4)]
        assert [each.status_code for each in replies] == [200] * 4
        assert len(mine.asked) == 4 and not other.asked


async def test_strangers_in_redis_are_not_heard(fleet: Any, connected: Any, server: RedisServer) -> None:
    """Who has redis and not the token cannot pass for a gateway, nor take the place of one."""
    async with fleet(2) as (one, two), connected(two):
        await known(one, 1)
        blob = server.client.get(GATEWAY + peers(one)[0].id)
        for name, value in (("mallory", blob), ("eve", b"x"), ("\xff", b""), ("huge", b"x" * 10_000_000)):
            server.client.zadd(GATEWAYS, {name: 10**12})
            server.client.set(GATEWAY + name, value)
        beats = one.roster._registry.beats
        await one.until(lambda: one.roster._registry.beats > beats + 1)
        assert len(peers(one)) == 1 and len(one.roster.known()) == 1


async def test_redis_holds_no_text_and_no_key(fleet: Any, connected: Any, chat: Any, server: RedisServer) -> None:
    """Nor a token id, nor a secret; all there is of a client is a name made of its key."""
    said = "a sentence that must not leak"
    limits = {"requests_a_minute": 50, "tokens_a_minute": 10_000}
    async with fleet(2, **limits, api_keys="sk-secret-key") as (one, two), connected(two):
        await known(one, 1)
        body = chat | {"messages": [{"role": "user", "content": said}]}
        headers = {"authorization": "Bearer sk-secret-key"}
        assert (await one.http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
        everything = b""
        for name in server.client.scan_iter():
            everything += name + server.client.dump(name)
            kind = server.client.type(name)
            if kind == b"string":
                everything += server.client.get(name) or b""
            elif kind == b"hash":
                everything += repr(server.client.hgetall(name)).encode()
        for secret in (said, "sentence", "Hello", "sk-secret-key", TOKEN):
            assert secret.encode() not in everything
        assert b"trilby:limit:" in everything


async def test_a_response_is_known_at_every_gateway(fleet: Any, connected: Any, server: RedisServer) -> None:
    """A turn goes on at the other one, by whichever agent; with redis gone answers say that they are not stored."""
    async with fleet(2) as (one, two), connected(one) as agent:
        await known(two, 1)
        made = (await one.http.post("/v1/responses", json={"input": "Hi"})).json()
        assert (await two.http.get(f"/v1/responses/{made['id']}")).json() == made
        body = {"input": "And?", "previous_response_id": made["id"]}
        assert (await two.http.post("/v1/responses", json=body)).status_code == 200
        assert [turn.content for turn in agent.asked[1].prompt] == ["Hi", "Hello world", "And?"]
        server.kill()
        assert (await one.http.post("/v1/responses", json={"input": "Hi"})).json()["store"] is False
        refused = (await one.http.post("/v1/responses", json=body)).json()["error"]
        assert refused["code"] == "store_unavailable"


async def test_all_mean_the_same_model(fleet: Any, connected: Any, chat: Any, scripts: Any) -> None:
    """A request that names none means the first that its own gateway knows, also where it is sent on to another, which
    knows another one first."""
    unnamed = {name: chat[name] for name in chat if name != "model"}
    async with (
        fleet(2) as (one, two),
        connected(one, scripts.hang, capacity=1) as full,
        connected(two, models=(OTHER,)) as other,
        connected(two) as same,
    ):
        await known(one, 3)
        await known(two, 3)
        waiting = asyncio.create_task(one.http.post("/v1/chat/completions", json=chat))
        await one.until(lambda: full.asked)
        answered = await one.http.post("/v1/chat/completions", json=unnamed)
        assert answered.status_code == 200 and answered.json()["model"] == "demo/model"
        assert len(same.asked) == 1 and not other.asked
        waiting.cancel()


async def test_vectors_are_passed_on_as_they_come(fleet: Any, connected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are: an answer that is only passed on is not kept, and has no bound of its own."""
    monkeypatch.setattr("gateway.forwarding.MAX_ANSWER", 10)
    models = (ServedModel("m", 64, 1, [], 0, ["embed"], 2),)
    async with fleet(2) as (one, two), connected(two, read_back, models=models):
        await known(one, 1)
        answer = await one.http.post("/v1/embeddings", json={"input": [[at] for at in range(50)]})
        assert answer.status_code == 200
        assert [each["embedding"][0] for each in answer.json()["data"]] == list(range(50))
        assert 'forwarded_total{outcome="answered"} 1' in (await one.http.get("/metrics")).text
