"""Requests find agents: at once, after waiting, at another agent, or get told why not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.config import GatewayConfig
from gateway.placing import MAX_RETURNS
from wire.errors import Code, ConnectionFailed, LocalMistake
from wire.message import Drain, Failed
from wire.request_messages import Accepted, Done, Finished, Generate, ServedModel


async def test_work_spreads_over_agents(gateway: Any, connected: Any, chat: Any) -> None:
    """One request after another, each agent gets its share."""
    async with connected(gateway, name="one") as one, connected(gateway, name="two") as two:
        for _ in range(4):
            assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200
        assert (len(one.asked), len(two.asked)) == (2, 2)


async def test_the_model_decides(gateway: Any, connected: Any, chat: Any) -> None:
    """Among agents that serve it."""
    other = ServedModel("other", 100, 1)
    async with connected(gateway) as one, connected(gateway, models=(other,)) as two:
        for _ in range(3):
            await gateway.http.post("/v1/chat/completions", json=chat | {"model": "other"})
        assert (len(one.asked), len(two.asked)) == (0, 3)
        missing = await gateway.http.post("/v1/chat/completions", json=chat | {"model": "third"})
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_full_house_waits_in_order(gateway: Any, connected: Any, scripts: Any, chat: Any) -> None:
    """Never more at an agent than its capacity; everybody is answered."""
    most = 0

    async def slow(agent: Any, asked: Any) -> None:
        nonlocal most
        most = max(most, gateway.roster.running)
        await asyncio.sleep(0.01)
        await scripts.answer(agent, asked)

    async with connected(gateway, slow, capacity=2):
        replies = await asyncio.gather(
            *(gateway.http.post("/v1/chat/completions", json=chat | {"seed": at}) for at in range(12))
        )
        assert {reply.status_code for reply in replies} == {200}
        assert most <= 2


async def test_the_waiting_room_is_bounded_in_places_and_time(
    serving: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """429 when it is full, 503 when the wait was too long; both say when to come back."""
    config = GatewayConfig(max_waiting=1, wait_within_s=0.3)
    async with serving(config) as gateway, connected(gateway, scripts.hang, capacity=1):
        first = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: gateway.roster.running == 1)
        second = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: len(gateway.roster.waiting) == 1)
        third = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (third.status_code, third.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(third.headers["retry-after"]) >= 1
        waited = await second
        assert (waited.status_code, waited.json()["error"]["code"]) == (503, "overloaded")
        assert int(waited.headers["retry-after"]) >= 1
        first.cancel()


async def test_who_waits_is_served_when_another_agent_comes(
    gateway: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """And refused when the last one goes."""
    async with connected(gateway, scripts.hang, capacity=1) as busy:
        first = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: busy.asked)
        second = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: len(gateway.roster.waiting) == 1)
        async with connected(gateway):
            assert (await second).status_code == 200
        third = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: len(gateway.roster.waiting) == 1)
        await busy.cut()
        assert (await third).json()["error"]["code"] == "no_agent"
        assert (await first).json()["error"]["code"] == "upstream_lost"


@pytest.mark.parametrize("code", ["overloaded", "draining", "upstream_lost"])
async def test_an_agents_refusal_is_tried_elsewhere(gateway: Any, connected: Any, chat: Any, code: Any) -> None:
    """When it is about the agent; each agent once."""

    async def refuse(agent: Any, asked: Any) -> None:
        agent.post(Failed(code, "not me", asked.request))

    async with connected(gateway, refuse) as one:
        async with connected(gateway) as two:
            for _ in range(2):
                assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200
            assert len(two.asked) == 2
        one.asked.clear()
        await gateway.until(lambda: len(gateway.roster.links) == 1)
        assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 503
        assert len(one.asked) == 1


async def test_an_agent_lost_before_it_accepted_is_replaced(
    gateway: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """The client notices nothing."""
    async with connected(gateway, scripts.silent) as one:
        task = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: one.asked)
        async with connected(gateway) as two:
            await one.cut()
            assert (await task).status_code == 200
            assert len(two.asked) == 1


async def test_an_agent_that_never_accepts_is_given_up(serving: Any, connected: Any, scripts: Any, chat: Any) -> None:
    """504 within the time for it, and a Cancel."""
    async with serving(GatewayConfig(accept_within_s=0.2)) as gateway, connected(gateway, scripts.silent) as agent:
        response = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
        await gateway.until(lambda: len(agent.cancelled) == 1)


async def test_agents_that_stop_or_lost_their_cloud_get_nothing(gateway: Any, connected: Any, chat: Any) -> None:
    """503 while no other serves the model; 200 again once the cloud is back."""
    async with connected(gateway) as agent:
        agent.state(0, False)
        await gateway.until(lambda: gateway.roster.links[0].record.cloud_connected is False)
        response = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "agents_unavailable")
        agent.state(0, True)
        await gateway.until(lambda: gateway.roster.links[0].record.cloud_connected)
        assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200
        agent.post(Drain(5.0))
        await gateway.until(lambda: gateway.roster.links[0].record.draining)
        assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 503


async def test_load_from_elsewhere_counts(gateway: Any, connected: Any, chat: Any) -> None:
    """An agent that several gateways use reports more than we gave it."""
    async with connected(gateway, capacity=2) as busy, connected(gateway, capacity=2) as free:
        busy.state(1)
        await gateway.until(lambda: gateway.roster.links[0].record.running == 1)
        for _ in range(2):
            await gateway.http.post("/v1/chat/completions", json=chat)
        assert (len(busy.asked), len(free.asked)) == (0, 2)


async def test_many_prompts_never_fill_the_waiting_room(serving: Any, connected: Any) -> None:
    """They wait one after the other."""
    async with serving(GatewayConfig(max_waiting=1)) as gateway, connected(gateway, capacity=1):
        reply = await gateway.http.post("/v1/completions", json={"prompt": ["a"] * 20})
        assert reply.status_code == 200
        assert len(reply.json()["choices"]) == 20


async def test_a_storm_of_cancellations_leaves_nothing(gateway: Any, connected: Any, scripts: Any, chat: Any) -> None:
    """Slots are given back exactly once, whenever the client goes."""

    async def slow(agent: Any, asked: Any) -> None:
        await asyncio.sleep(0.005)
        await scripts.answer(agent, asked)

    async with connected(gateway, slow, capacity=3):
        tasks = [asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat)) for _ in range(30)]
        for at, task in enumerate(tasks):
            await asyncio.sleep(0.002)
            if at % 2:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await gateway.until(lambda: gateway.roster.running == 0 and len(gateway.roster.waiting) == 0)
        assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200


async def test_a_long_queue_is_served_at_once_by_a_large_agent(
    serving: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """However many wait."""
    async with serving(GatewayConfig(max_waiting=500)) as gateway, connected(gateway, scripts.hang, capacity=1) as busy:
        first = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat))
        await gateway.until(lambda: busy.asked)
        body = {"prompt": "x", "max_tokens": 1}
        rest = [asyncio.create_task(gateway.http.post("/v1/completions", json=body)) for _ in range(90)]
        await gateway.until(lambda: len(gateway.roster.waiting) == 90)
        async with connected(gateway, capacity=200):
            assert {reply.status_code for reply in await asyncio.gather(*rest)} == {200}
        first.cancel()


async def test_a_request_that_brings_agents_down_is_not_taken_to_all(gateway: Any, connected: Any, chat: Any) -> None:
    """One more is tried, then the client hears of it; the others live."""

    async def crash(agent: Any, asked: Any) -> None:
        await agent.cut()

    async with connected(gateway, crash) as one, connected(gateway, crash) as two, connected(gateway, crash) as three:
        response = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "upstream_lost")
        assert [len(agent.asked) for agent in (one, two, three)] == [1, 1, 0]


async def test_a_request_the_link_does_not_take_is_413(
    gateway: Any, agent: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is a later prompt; the agent and everybody else go on."""
    stream = gateway.roster.links[0].stream
    post = stream.post

    def picky(message: Any, *more: Any) -> Any:
        if isinstance(message, Generate) and message.prompt == "large":
            raise LocalMistake("too large")
        return post(message, *more)

    monkeypatch.setattr(stream, "post", picky)
    for prompt in ("large", ["small", "large"]):
        response = await gateway.http.post("/v1/completions", json={"prompt": prompt})
        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
    assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code == 200
    await gateway.until(lambda: gateway.roster.running == 0)


async def test_a_bug_while_later_prompts_start_is_told_at_once(
    gateway: Any, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the time limit."""
    link = gateway.roster.links[0]
    ask = link.ask

    def broken(room: Any, asked: Any, part: int, *rest: Any) -> Any:
        if part:
            raise ValueError
        return ask(room, asked, part, *rest)

    monkeypatch.setattr(link, "ask", broken)
    response = await gateway.http.post("/v1/completions", json={"prompt": ["a", "b"]})
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")


async def _one_word_when(ready: asyncio.Event, agent: Any, asked: Any) -> None:
    agent.post(Accepted(asked.request, 1))
    await ready.wait()
    agent.post(Finished(asked.request, 0, "stop"))
    agent.post(Done(asked.request, 1, 1))


async def test_later_prompts_take_no_place_and_are_not_sent_away(serving: Any, connected: Any) -> None:
    """A full room refuses whoever comes new; a gateway that stops lets go on what it has let in."""
    ready = asyncio.Event()

    async def script(agent: Any, asked: Any) -> None:
        await _one_word_when(ready, agent, asked)

    config = GatewayConfig(max_waiting=0, operator_token="operators-only")
    async with serving(config) as gateway, connected(gateway, script, capacity=1) as agent:
        body = {"prompt": ["a", "b", "c"]}
        task = asyncio.create_task(gateway.http.post("/v1/completions", json=body))
        await gateway.until(lambda: agent.asked and len(gateway.roster.waiting) == 1)
        assert (await gateway.http.post("/v1/completions", json=body)).status_code == 429
        await gateway.drain()
        await gateway.until(lambda: agent.drained)
        ready.set()
        assert (await task).status_code == 200
        assert len(agent.asked) == 3


async def test_one_agent_that_cannot_be_told_keeps_none_from_draining(
    gateway: Any, connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are told."""
    async with connected(gateway) as slow, connected(gateway) as other:

        def full(message: Any) -> None:
            raise ConnectionFailed(Code.TIMEOUT, "64 MiB wait")

        monkeypatch.setattr(gateway.roster.links[0].stream, "post", full)
        assert await gateway.dispatcher.drain() is True
        await gateway.until(lambda: other.drained)
        assert not slow.drained


class _Lingering:
    """A script of an agent that frees what was cancelled only when it is told to."""

    def __init__(self, answer: Any) -> None:
        self.held = False
        self._answer = answer

    async def __call__(self, agent: Any, asked: Any) -> None:
        if self.held:
            agent.post(Failed("overloaded", "one too many", asked.request))
        elif asked.sampling.seed == 0:
            self.held = True
            agent.post(Accepted(asked.request, 1))
        else:
            await self._answer(agent, asked)

    def let_go(self, agent: Any) -> None:
        self.held = False
        agent.state(0)


async def test_who_is_sent_too_early_waits_for_the_only_agent(
    gateway: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """At the front, until the agent says that something has ended."""
    script = _Lingering(scripts.answer)
    async with connected(gateway, script, capacity=1) as agent:
        hung = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | {"seed": 0}))
        await gateway.until(lambda: agent.asked)
        second = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | {"seed": 1}))
        await gateway.until(lambda: len(gateway.roster.waiting) == 1)
        third = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | {"seed": 2}))
        await gateway.until(lambda: len(gateway.roster.waiting) == 2)
        hung.cancel()
        await gateway.until(lambda: len(agent.asked) == 2 and len(gateway.roster.waiting) == 2)
        script.let_go(agent)
        assert [(await each).status_code for each in (second, third)] == [200, 200]
        assert [asked.sampling.seed for asked in agent.asked] == [0, 1, 1, 2]


async def test_who_is_sent_too_early_waits_no_longer_than_anybody(
    serving: Any, connected: Any, scripts: Any, chat: Any
) -> None:
    """And takes no place in the waiting room."""
    config = GatewayConfig(max_waiting=0, wait_within_s=0.3)
    async with serving(config) as gateway, connected(gateway, _Lingering(scripts.answer), capacity=1) as agent:
        hung = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | {"seed": 0}))
        await gateway.until(lambda: agent.asked)
        hung.cancel()
        await gateway.until(lambda: gateway.roster.running == 0)
        response = await gateway.http.post("/v1/chat/completions", json=chat | {"seed": 1})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")


async def test_who_is_sent_too_early_takes_another_agent(gateway: Any, connected: Any, scripts: Any, chat: Any) -> None:
    """As soon as there is one."""
    async with connected(gateway, _Lingering(scripts.answer), capacity=1) as agent:
        hung = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | {"seed": 0}))
        await gateway.until(lambda: agent.asked)
        hung.cancel()
        await gateway.until(lambda: gateway.roster.running == 0)
        lucky = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat | {"seed": 2}))
        await gateway.until(lambda: len(agent.asked) == 2 and len(gateway.roster.waiting) == 1)
        async with connected(gateway):
            assert (await lucky).status_code == 200


async def test_an_agent_that_only_ever_refuses_is_given_up(gateway: Any, connected: Any, chat: Any) -> None:
    """However often it says that something has ended."""

    async def refuse(agent: Any, asked: Any) -> None:
        agent.post(Failed("overloaded", "one too many", asked.request))
        agent.state(1)

    async with connected(gateway, refuse) as agent:
        agent.state(1)
        await gateway.until(lambda: gateway.roster.links[0].record.running == 1)
        response = await gateway.http.post("/v1/chat/completions", json=chat)
        assert (response.status_code, response.json()["error"]["message"]) == (503, "one too many")
        assert len(agent.asked) == 1 + MAX_RETURNS
