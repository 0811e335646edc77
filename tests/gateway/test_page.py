"""What the page is told: of what, to whom, how often, and what that costs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from statistics import median
from typing import Any

import pytest
from starlette.requests import Request

from gateway.config import GatewayConfig
from gateway.key_book import NOBODY
from gateway.page import routes, view, watching
from gateway.page.changes import Audience
from gateway.page.watching import MAX_UNREAD, MAX_WATCHERS_OF_CLIENT, TICK_S, Watcher
from wire.group_messages import GroupReport, ReportedMember
from wire.message import Failed
from wire.observed_messages import CloudFigures, Mark, Observed, ObservedRequest, Wire
from wire.request_messages import Accepted, AgentState, Delta

SECRET = "Wilhelmina"
FIGURES = CloudFigures("0.1.0", 100, 800, 250_000, 3, 1, 0, 512, 40, 100, 2, "a1b2")
WIRE = Wire("10.0.0.2:8001", "ready", 21_500, 4000, 5000, FIGURES)


def shows(key: str) -> dict[str, str]:
    """The headers of who has this key; none where it is empty."""
    return {"authorization": f"Bearer {key}"} if key else {}


async def events_of(reply: Any) -> AsyncGenerator[tuple[str, Any], None]:
    """The events of a stream, by name."""
    name = ""
    async for line in reply.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@asynccontextmanager
async def page(gateway: Any, key: str = "") -> AsyncIterator[Any]:
    """A page that is open: an iterator over what it is told."""
    async with gateway.http.stream("GET", "/page/events", headers=shows(key)) as reply:
        assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/event-stream")
        events = events_of(reply)
        try:
            yield events
        finally:
            await events.aclose()


async def first(gateway: Any, key: str = "") -> Any:
    """All there is, as somebody is told who begins to watch."""
    async with page(gateway, key) as events:
        name, data = await asyncio.wait_for(anext(events), 20)
    assert name == "whole"
    return data


async def until(events: Any, holds: Any) -> list[Any]:
    """What is told until something of it holds; the last is the one for which it does."""
    told: list[Any] = []
    while not told or not holds(told[-1]):
        _, data = await asyncio.wait_for(anext(events), 20)
        told.append(data)
    return told


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that come soon after one another."""
    monkeypatch.setattr(watching, "TICK_S", 0.02)


async def hanging(gateway: Any, chat: Any, key: str, content: str = SECRET, **more: Any) -> asyncio.Task[Any]:
    """A request that is being answered."""
    body = chat | {"messages": [{"role": "user", "content": content}]}
    return asyncio.create_task(gateway.http.post("/v1/chat/completions", json=body, headers=shows(key) | more))


async def test_an_idle_gateway(gateway: Any, agent: Any) -> None:
    """Its device, and sums; nobody asks anything."""
    told = await first(gateway)
    assert told["operator"] is False and told["requests"] == [] and told["marks"] == []
    assert told["totals"]["agents"] == 1 and told["totals"]["running"] == 0 and told["fleet"] is None
    [device] = told["agents"]
    assert (device["name"], device["models"], device["writes"]) == ("scripted", ["demo/model"], ["demo/model"])
    assert device["capacity"] == 8 and device["tells"] is False and device["wires"] == []
    assert device["received_bytes"] > 0 and device["sent_bytes"] > 0


async def test_agents_say_what_they_do_while_somebody_watches(
    gateway: Any, connected: Any, scripts: Any, chat: Any, quick: None
) -> None:
    """They are asked when the first page opens and told to stop when the last one closes; what they say of a request is
    shown with what is known here, and chunks and rounds where they were over."""
    async with connected(gateway, scripts.hang, observable=True) as agent:
        task = await hanging(gateway, chat, "", **{"x-request-id": "a-long-request-id"})
        await gateway.until(lambda: agent.asked)
        assert agent.observes == []
        number = agent.asked[0].request
        async with page(gateway) as events:
            await until(events, lambda data: agent.observes)
            request = ObservedRequest(number, "generates", 40, 8, 32, 32, 12, 5, 10, 7)
            marks = [Mark(number, "chunk", 2_000_000, 30_000, 32), Mark(number, "round", 500_000, 21_500, 3, 2)]
            stranger = Mark(number + 7, "round", 0, 1000, 1)
            agent.post(Observed("9.9.9", "hat", [request], [*marks, stranger], [WIRE], 4))
            told = await until(events, lambda data: data.get("marks"))
        await gateway.until(lambda: agent.observes[1:])
        assert agent.observes == [20, 0]
        task.cancel()
    [device] = told[-1]["agents"]
    assert (device["version"], device["mode"], device["tells"], device["lost_marks"]) == ("9.9.9", "hat", True, 4)
    [wire] = device["wires"]
    assert (wire["to"], wire["rtt_ms"], wire["sent_bytes"]) == ("10.0.0.2:8001", 21.5, 4000)
    assert wire["cloud"]["pages_used"] == 40 and wire["cloud"]["id"] == "a1b2"
    [shown] = told[-1]["requests"]
    assert shown["request"] == "a-long-reque" and shown["stage"] == "generates"
    assert [shown[each] for each in ("prompt", "cached", "sent", "answered")] == [40, 8, 32, 32]
    assert [shown[each] for each in ("tokens", "rounds", "drafted", "accepted")] == [12, 5, 10, 7]
    chunk, round = told[-1]["marks"]
    assert chunk[:2] == [shown["id"], "chunk"] and chunk[3:] == [30.0, 32, 0]
    assert round[:2] == [shown["id"], "round"] and round[3:] == [21.5, 3, 2]
    assert abs(round[2] - chunk[2] - 1500) <= 2 and abs(told[-1]["totals"]["at"] - round[2] - 500) < 5000


async def test_an_older_agent_is_not_asked(gateway: Any, connected: Any, scripts: Any, chat: Any, quick: None) -> None:
    """It does not know the question; what the gateway sees of its requests is shown."""
    async with connected(gateway, scripts.hang) as agent:
        task = await hanging(gateway, chat, "")
        await gateway.until(lambda: agent.asked)
        async with page(gateway) as events:
            told = await until(events, lambda data: any(each["tokens"] for each in data.get("requests", ())))
        task.cancel()
        await gateway.until(lambda: gateway.roster.running == 0)
        assert agent.observes == []
    assert told[-1]["requests"][0]["stage"] == "generates" and told[-1]["requests"][0]["ttft_ms"] > 0


async def test_what_is_over_is_gone(gateway: Any, connected: Any, scripts: Any, chat: Any, quick: None) -> None:
    """By its id; and only what has changed is told again."""
    async with connected(gateway, scripts.hang) as agent, page(gateway) as events:
        await until(events, lambda data: data.get("agents"))
        task = await hanging(gateway, chat, "")
        told = await until(events, lambda data: data.get("requests"))
        [shown] = told[-1]["requests"]
        await gateway.until(lambda: agent.asked)
        quiet = (await until(events, lambda data: "agents" not in data))[-1]
        assert set(quiet) == {"operator", "totals"}
        task.cancel()
        gone = await until(events, lambda data: data.get("requests_gone"))
        assert gone[-1]["requests_gone"] == [shown["id"]]


async def test_each_sees_its_own_and_an_operator_all(
    serving: Any, connected: Any, scripts: Any, chat: Any, quick: None
) -> None:
    """Requests, and what becomes of them; the fleet and the sums are everybody's. No text is anybody's."""
    config = GatewayConfig(api_keys="one,two", operator_token="boss")
    async with serving(config) as gateway, connected(gateway, scripts.hang, observable=True) as agent:
        tasks = [await hanging(gateway, chat, key, **{"x-request-id": f"of-{key}"}) for key in ("one", "two")]
        await gateway.until(lambda: len(agent.asked) == 2)
        await gateway.http.post("/v1/chat/completions", json=chat | {"n": 0}, headers=shows("one"))
        await gateway.http.post("/v1/chat/completions", json={"model": SECRET}, headers=shows("wrong"))
        seen = {}
        for key in ("one", "two", "boss"):
            async with page(gateway, key) as events:
                await until(events, lambda data: agent.observes and agent.observes[-1])
                marks = [Mark(each.request, "round", 0, 1000, 1) for each in agent.asked]
                agent.post(Observed("1", "hat", [], marks, []))
                whole = await first(gateway, key)
                seen[key] = whole, (await until(events, lambda data: data.get("marks")))[-1]["marks"]
        for task in tasks:
            task.cancel()
    requests = {key: sorted(each["request"] for each in whole["requests"]) for key, (whole, _) in seen.items()}
    assert requests == {"one": ["of-one"], "two": ["of-two"], "boss": ["of-one", "of-two"]}
    requests_of_marks = {key: len({each[0] for each in marks}) for key, (_, marks) in seen.items()}
    assert requests_of_marks == {"one": 1, "two": 1, "boss": 2}
    kinds = {key: sorted(each["kind"] for each in whole["incidents"]) for key, (whole, _) in seen.items()}
    assert kinds == {"one": ["invalid_value"], "two": [], "boss": ["invalid_api_key", "invalid_value"]}
    assert all(whole["totals"]["running"] == 2 and whole["agents"] for whole, _ in seen.values())
    assert [seen[key][0]["operator"] for key in ("one", "two", "boss")] == [False, False, True]
    assert SECRET not in str(seen) and "whose" not in str(seen)


async def test_who_watches_does_not_see_himself(gateway: Any, agent: Any, chat: Any, quick: None) -> None:
    """What pages are told does not count as bytes of clients; what these ask and are answered does."""
    async with page(gateway) as events:
        looks = [(await anext(events))[1]["totals"] for _ in range(3)]
        reply = await gateway.http.post("/v1/chat/completions", json=chat)
        after = (await until(events, lambda data: data["totals"]["client_sent_bytes"]))[-1]["totals"]
    assert [each["client_sent_bytes"] for each in looks] == [0, 0, 0]
    assert after["client_sent_bytes"] == len(reply.content)
    assert after["client_received_bytes"] == len(reply.request.content)


async def test_who_asks_much_hides_nobody_elses_requests(
    serving: Any, connected: Any, scripts: Any, chat: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where more are in flight than are shown, each tenant has some of those."""
    monkeypatch.setattr(view, "MAX_REQUESTS", 2)
    config = GatewayConfig(api_keys="one,two")
    async with serving(config) as gateway, connected(gateway, scripts.hang, capacity=32) as agent:
        tasks = [await hanging(gateway, chat, "one") for _ in range(3)]
        await gateway.until(lambda: len(agent.asked) == 3)
        tasks.append(await hanging(gateway, chat, "two"))
        await gateway.until(lambda: len(agent.asked) == 4)
        shown = {key: len((await first(gateway, key))["requests"]) for key in ("one", "two")}
        for task in tasks:
            task.cancel()
    assert shown == {"one": 1, "two": 1}


async def test_requests_of_all_devices_are_shown(
    gateway: Any, connected: Any, scripts: Any, chat: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those too that have no card; and of chunks and rounds those of requests that are shown. One that makes way for
    another's is hidden, and not over."""
    monkeypatch.setattr(view, "MAX_AGENTS", 0)
    async with connected(gateway, scripts.hang, observable=True) as agent, page(gateway) as events:
        tasks = [await hanging(gateway, chat, "") for _ in range(2)]
        told = await until(events, lambda data: len(data.get("requests", ())) == 2 or data["totals"]["running"] == 2)
        assert told[-1]["totals"]["agents"] == 1 and not told[-1].get("agents")
        monkeypatch.setattr(view, "MAX_REQUESTS", 1)
        hidden = (await until(events, lambda data: data.get("requests_hidden")))[-1]
        assert len(hidden["requests_hidden"]) == 1 and "requests_gone" not in hidden
        await until(events, lambda data: "requests" not in data)
        agent.post(Observed("1", "hat", [], [Mark(each.request, "round", 0, 1000, 1) for each in agent.asked], []))
        [mark] = (await until(events, lambda data: data.get("marks")))[-1]["marks"]
        assert mark[0] not in hidden["requests_hidden"]
        for task in tasks:
            task.cancel()


async def test_sums_are_of_one_unit(
    gateway: Any, connected: Any, scripts: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are counted beside the answers for which there is room, at all devices, whether they are shown or not."""
    monkeypatch.setattr(view, "MAX_AGENTS", 1)
    async with (
        connected(gateway, scripts.hang, capacity=8) as agent,
        connected(gateway, scripts.hang, capacity=4) as other,
    ):
        task = await hanging(gateway, chat | {"n": 3}, "")
        await gateway.until(lambda: agent.asked or other.asked)
        told = await first(gateway)
        task.cancel()
    totals = told["totals"]
    assert len(told["agents"]) == 1
    assert [totals[each] for each in ("running", "answers", "capacity")] == [1, 3, 12]


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"host": "evil.test"}, 403, "forbidden_origin"),
        ({"sec-fetch-site": "cross-site"}, 403, "forbidden_origin"),
        (shows("three"), 401, "invalid_api_key"),
        (shows("devices"), 401, "invalid_api_key"),
        (shows("one") | {"origin": "http://evil.test"}, 403, "forbidden_origin"),
        (shows("one") | {"host": "evil.test"}, 403, "forbidden_origin"),
        (shows("one") | {"sec-fetch-site": "cross-site"}, 403, "forbidden_origin"),
        (shows("boss") | {"sec-fetch-site": "same-site"}, 403, "forbidden_origin"),
        (shows("one") | {"x-trilby-gateway": "guessed", "x-trilby-tenant": "two"}, 200, None),
    ],
)
async def test_who_may_watch(serving: Any, headers: dict[str, str], status: int, code: str | None) -> None:
    """Who shows one of the keys or the operator's token, from the page itself."""
    config = GatewayConfig(api_keys="one", operator_token="boss", device_token="devices")
    async with serving(config) as gateway:
        async with gateway.http.stream("GET", "/page/events", headers=headers) as reply:
            assert reply.status_code == status
            if code is not None:
                assert json.loads(await reply.aread())["error"]["code"] == code
        assert (await gateway.http.post("/page/events", headers=shows("one"))).status_code == 405


async def test_who_shows_nothing_is_asked_for_a_key(serving: Any) -> None:
    """Which is no error, and no refusal that anybody counts; nothing else is told."""
    async with serving(GatewayConfig(api_keys="one", operator_token="boss")) as gateway:
        reply = await gateway.http.get("/page/events")
        assert (reply.status_code, reply.text) == (200, "event: key\ndata: {}\n\n")
        assert (await first(gateway, "boss"))["totals"]["incidents"] == 0
        assert "trilby_request_failures_total{" not in (await gateway.http.get("/metrics")).text


async def test_pages_are_bounded(serving: Any) -> None:
    """By key; another key still has its own, and a page that is closed makes room."""
    async with serving(GatewayConfig(api_keys="one,two")) as gateway:
        opened = [page(gateway, "one") for _ in range(MAX_WATCHERS_OF_CLIENT)]
        for each in opened:
            await each.__aenter__()
        refused = await gateway.http.get("/page/events", headers=shows("one"))
        assert refused.status_code == 429 and refused.headers["retry-after"]
        assert (await first(gateway, "two"))["totals"]["watchers"] == MAX_WATCHERS_OF_CLIENT + 1
        for each in opened:
            await each.__aexit__(None, None, None)
        await gateway.until(lambda: not gateway.app.state.watching._watchers)
        assert (await first(gateway, "one"))["totals"]["watchers"] == 1


async def test_clients_keep_no_operator_from_watching(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them together have so many pages, and operators some of their own, which take no client's place."""
    monkeypatch.setattr(watching, "MAX_WATCHERS", 2)
    async with (
        serving(GatewayConfig(api_keys="one,two,three", operator_token="boss")) as gateway,
        AsyncExitStack() as stack,
    ):
        for key in ("boss", "one", "two"):
            await stack.enter_async_context(page(gateway, key))
        assert (await gateway.http.get("/page/events", headers=shows("three"))).status_code == 429
        for _ in range(MAX_WATCHERS_OF_CLIENT - 1):
            await stack.enter_async_context(page(gateway, "boss"))
        assert (await gateway.http.get("/page/events", headers=shows("boss"))).status_code == 429


async def test_a_page_that_takes_nothing_is_closed(serving: Any, quick: None) -> None:
    """Where its connection takes no more, for as long as clients have to read."""

    async def full(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def silent() -> Any:
        await asyncio.Event().wait()

    async with serving(GatewayConfig(client_within_s=0.1)) as gateway:
        state, here = {"tenant": "", "operator": False, "key": NOBODY}, gateway.app.state.watching
        request = Request({"type": "http", "headers": [], "state": state})
        stream = routes.EventStream(gateway.app.state.desk, here, request)
        telling = asyncio.create_task(stream(request.scope, silent, full))
        await gateway.until(lambda: here._watchers)
        await asyncio.wait_for(telling, 20)
        assert not here._watchers


async def test_who_reads_too_slowly_is_told_all_of_it_anew() -> None:
    """What it has missed is not kept for it."""
    watcher = Watcher(Audience(""))
    assert watcher.behind
    for number in range(MAX_UNREAD):
        watcher.tell(b"%d" % number)
    assert not watcher.behind
    watcher.tell(b"missed")
    assert watcher.behind
    events = watcher.events()
    assert [await anext(events) for _ in range(MAX_UNREAD)] == [b"%d" % number for number in range(MAX_UNREAD)]
    watcher.tell(b"whole")
    assert not watcher.behind and await anext(events) == b"whole"
    for _ in range(MAX_UNREAD):
        watcher.tell(b"unread")
    watcher.end()
    assert [each async for each in events][-1] == b"unread"


async def test_a_gateway_that_stops_keeps_no_page_waiting(serving: Any, connected: Any, quick: None) -> None:
    """It is told that it drains, and the stream ends by itself once all else is over."""
    async with serving(GatewayConfig()) as gateway, connected(gateway), page(gateway) as events:
        gateway.dispatcher.start_draining()
        await until(events, lambda data: data["totals"]["draining"])
        assert await gateway.dispatcher.drain()
        async for _ in events:  # It ends.
            pass
        await gateway.until(lambda: not gateway.app.state.watching._watchers)


async def test_what_goes_wrong_is_told(serving: Any, connected: Any, scripts: Any, chat: Any, quick: None) -> None:
    """Of devices, their clouds and groups, with what was done about it; and that another device was looked for."""

    async def full(agent: Any, asked: Any) -> None:
        agent.post(Failed("overloaded", "as many as it can", asked.request))

    async with serving(GatewayConfig()) as gateway, page(gateway) as events:
        seen: dict[tuple[str, str], Any] = {}
        async with connected(gateway, full, name="kitchen") as agent:
            lost = [ReportedMember("shed", "lost")]
            for state in (
                AgentState(0, True, None, 2),
                AgentState(0, False, None, 2),
                AgentState(0, True, None, 5),
                AgentState(0, True, GroupReport("home", "galaxy", 1, True, "", [ReportedMember("shed", "working")]), 5),
                AgentState(0, True, GroupReport("home", "galaxy", 2, True, "", lost), 5),
            ):
                agent.post(state)
            await gateway.until(lambda: gateway.roster.links[0].group is not None)
            assert (await gateway.http.post("/v1/chat/completions", json=chat)).status_code >= 429
        while ("device_lost", "kitchen") not in seen:
            _, data = await asyncio.wait_for(anext(events), 20)
            seen |= {(each["kind"], each["who"]): each for each in data.get("incidents", ())}
    for kind in ("cloud_lost", "cloud_back", "sessions_restored", "overloaded"):
        assert seen[kind, "kitchen"]["done"], kind
    assert seen["sessions_restored", "kitchen"]["times"] == 3 and seen["member_lost", "shed"]["times"] == 1


async def test_fifty_requests_cost_less_than_a_hundredth_of_a_core(gateway: Any, connected: Any, chat: Any) -> None:
    """To hear of all of them, look, and tell several who watch takes a hundredth of the time between two looks, where
    everything changes between them."""
    requests, rounds = 50, 20

    async def accept(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        agent.post(Delta(asked.request, 0, "Well", 1))

    async with connected(gateway, accept, capacity=64, observable=True) as agent:
        tasks = [await hanging(gateway, chat, "") for _ in range(requests)]
        await gateway.until(lambda: len(agent.asked) == requests)
        here, link, took = gateway.app.state.watching, gateway.roster.links[0], []
        numbers = [each.request for each in agent.asked]
        with ExitStack() as stack:
            audiences = [Audience("", operator=True), *(Audience(str(other)) for other in range(4))]
            watchers = [stack.enter_context(here.watched(each, each.tenant)) for each in audiences]
            await gateway.until(lambda: link.observation.every_ms)
            for tokens in range(rounds):
                told = [ObservedRequest(each, "generates", 40, 0, 40, 40, tokens, tokens) for each in numbers]
                marks = [Mark(each, "round", 0, 20_000, 3, 2) for each in numbers for _ in range(4)]
                began = time.process_time()
                link.observation.heard(Observed("1", "hat", told, marks, [WIRE]), time.time())
                here.tick()
                took.append(time.process_time() - began)
                for watcher in watchers:
                    assert not watcher.behind
                    while not watcher._unread.empty():
                        watcher._unread.get_nowait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert median(took) <= TICK_S / 100


async def test_a_key_that_is_revoked_watches_no_more(serving: Any, quick: None) -> None:
    """The stream ends, and begins again with a good key alone; so it does after a while in any case."""
    async with serving(GatewayConfig(api_keys="one,two")) as gateway, page(gateway, "one") as events:
        await anext(events)
        gateway.app.state.desk.reception._book.give(("two",))
        async for _ in events:
            pass


async def test_a_page_shows_its_key_again_now_and_then(
    gateway: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's token, say, may have been changed."""
    monkeypatch.setattr(routes, "RENEWED_S", 0.1)
    async with page(gateway) as events:
        names = [name async for name, _ in events]
    assert names[0] == "whole" and names[-1] == "again"
