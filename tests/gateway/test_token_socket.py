"""Answers over a websocket, and its rules."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from gateway.config import GatewayConfig
from gateway.delivery import Outlet
from gateway.errors import RequestError
from gateway.token_messages import read_message


@pytest.fixture
async def talk(gateway: Any) -> Any:
    """``say`` a message, ``hear`` the next one."""
    async with connect(f"{gateway.ws_url}/v1/stream", proxy=None, compression=None) as socket:
        yield Talk(socket)


class Talk:
    def __init__(self, socket: Any) -> None:
        self.socket = socket

    async def say(self, message: Any) -> None:
        await self.socket.send(message if isinstance(message, str) else json.dumps(message))

    async def hear(self) -> Any:
        return json.loads(await asyncio.wait_for(self.socket.recv(), 60))

    async def hear_all(self) -> list[Any]:
        messages = [await self.hear()]
        while messages[-1]["type"] not in ("done", "error"):
            messages.append(await self.hear())
        return messages


async def test_its_bytes_are_those_of_a_client(gateway: Any, agent: Any, talk: Any, chat: Any) -> None:
    """Of its messages, either way; what goes over the device's link is none of it."""
    clients = gateway.app.state.desk.metrics.from_clients
    asked, told = json.dumps(chat | {"user": "Åsa"}, ensure_ascii=False), 0
    await talk.say(asked)
    while '"done"' not in (heard := await talk.socket.recv()):
        told += len(heard.encode())
    assert (clients.received, clients.sent) == (len(asked.encode()), told + len(heard.encode()))


async def test_a_chat_from_accepted_to_done(gateway: Any, agent: Any, talk: Any, chat: Any) -> None:
    """One message for each delta, usage always."""
    await talk.say(chat)
    messages = await talk.hear_all()
    own = messages[0]["id"]
    assert messages == [
        {"type": "accepted", "id": own, "model": "demo/model", "prompt_tokens": 5},
        {"type": "delta", "id": own, "index": 0, "text": "Hel", "tokens": 1},
        {"type": "delta", "id": own, "index": 0, "text": "lo wor", "tokens": 1},
        {"type": "delta", "id": own, "index": 0, "text": "", "tokens": 1},
        {"type": "delta", "id": own, "index": 0, "text": "ld", "tokens": 1},
        {"type": "finished", "id": own, "index": 0, "finish_reason": "stop"},
        {"type": "usage", "id": own, "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}},
        {"type": "done", "id": own, "cancelled": False},
    ]


async def test_requests_follow_one_another(gateway: Any, agent: Any, talk: Any, chat: Any) -> None:
    """Also after an error, each with its own id; the endpoint is said or seen."""
    ids = []
    for request, last in (
        (chat, "done"),
        ({"prompt": "x", "logprobs": 1}, "done"),
        ({"prompt": "x", "n": 0}, "error"),
        ({"prompt": "x", "echo": True, "logprobs": 1}, "error"),
        (chat | {"endpoint": "chat.completions"}, "done"),
        ({"prompt": "x", "endpoint": "other"}, "error"),
        ({}, "error"),
        ("[" * 100_000, "error"),
        ("not json", "error"),
        (chat | {"model": "none"}, "error"),
        ({"prompt": ["a", "b"], "endpoint": "completions"}, "done"),
    ):
        await talk.say(request)
        messages = await talk.hear_all()
        assert messages[-1]["type"] == last
        if last == "error":
            assert messages[-1]["error"].keys() == {"message", "type", "param", "code"}
        ids.append(messages[-1]["id"])
    assert len(set(ids)) == len(ids)


class Hasty(asyncio.Protocol):
    """A client that sends its next request in the very call that brings it the last message of the one before."""

    def __init__(self, url: str, requests: list[Any]) -> None:
        self.answers: list[list[Any]] = [[]]
        self.over = asyncio.Event()
        self._connection = ClientProtocol(parse_uri(url))
        self._requests = [json.dumps(request).encode() for request in reversed(requests)]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connection.send_request(self._connection.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._connection.receive_data(data)
        for event in self._connection.events_received():
            if not isinstance(event, Frame):  # The end of the handshake.
                self._ask()
            elif event.opcode is Opcode.TEXT:
                self.answers[-1].append(json.loads(bytes(event.data)))
                if self.answers[-1][-1]["type"] in ("done", "error"):
                    self.answers.append([])
                    self._ask()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()

    def _ask(self) -> None:
        if self._requests:
            self._connection.send_text(self._requests.pop())
        else:
            self._connection.send_close()

    def _flush(self) -> None:
        for data in self._connection.data_to_send():
            self._transport.write(data)


async def test_the_next_request_may_follow_done_at_once(gateway: Any, agent: Any, chat: Any) -> None:
    """However soon after ``done`` it comes, it is answered, and never refused because of the one before."""
    requests = [chat, {"prompt": ["a", "b"]}] * 50
    client = Hasty(f"{gateway.ws_url}/v1/stream", requests)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", gateway.port)
    try:
        await asyncio.wait_for(client.over.wait(), 20)
    finally:
        transport.close()
    *answers, last = client.answers
    assert [(answer[0]["type"], answer[-1]["type"]) for answer in answers] == [("accepted", "done")] * len(requests)
    assert not last


async def test_cancel(gateway: Any, connected: Any, scripts: Any, talk: Any, chat: Any) -> None:
    """The agent is told; the socket goes on; cancelling nothing is nothing."""
    async with connected(gateway, scripts.hang) as agent:
        await talk.say({"type": "cancel"})
        await talk.say(chat)
        assert [(await talk.hear())["type"] for _ in range(2)] == ["accepted", "delta"]
        await talk.say({"prompt": "another"})
        refused = await talk.hear()
        assert (refused["id"], refused["error"]["code"]) == (None, "request_in_progress")
        await talk.say({"type": "cancel"})
        assert (await talk.hear())["cancelled"] is True
        await gateway.until(lambda: len(agent.cancelled) == 1)
        agent.script = scripts.answer
        await talk.say(chat)
        assert (await talk.hear_all())[-1] | {"id": 0} == {"type": "done", "id": 0, "cancelled": False}


async def test_closing_the_socket_cancels(gateway: Any, connected: Any, scripts: Any, talk: Any, chat: Any) -> None:
    """As it does over HTTP."""
    async with connected(gateway, scripts.hang) as agent:
        await talk.say(chat)
        await talk.hear()
        await talk.socket.close()
        await gateway.until(lambda: len(agent.cancelled) == 1)


async def test_binary_and_oversized_messages_close_it(gateway: Any, talk: Any) -> None:
    """1003 and 1009."""
    await talk.socket.send(b"{}")
    with pytest.raises(ConnectionClosed) as closed:
        await talk.hear()
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1003
    async with connect(f"{gateway.ws_url}/stream", proxy=None, compression=None) as socket:
        await socket.send(" " * (GatewayConfig().max_body_bytes + 1))
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


async def test_the_size_of_a_message_is_counted_in_bytes(gateway: Any, agent: Any, talk: Any) -> None:
    """A character may be three; no agent is ever sent what it would not take."""
    body = json.dumps({"prompt": "文" * (GatewayConfig().max_body_bytes // 2)}, ensure_ascii=False)
    assert len(body) < GatewayConfig().max_body_bytes
    await talk.say(body)
    with pytest.raises(ConnectionClosed) as closed:
        await talk.hear()
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
    assert not agent.asked


def test_what_a_message_is_takes_no_time_to_see() -> None:
    """Whatever stands where a word should be: a million lists there are no objects here."""
    lists = "[" + ",".join(["[]"] * 10**6) + "]"
    for message in (f'{{"type": {lists}}}', f'{{"endpoint": {lists}}}'):
        spent = []
        for _ in range(3):
            began = time.process_time()
            with pytest.raises(RequestError):
                read_message(message.encode())
            spent.append(time.process_time() - began)
        assert min(spent) < 0.1


async def test_messages_that_are_no_requests_are_counted(gateway: Any, talk: Any) -> None:
    """As over HTTP."""
    await talk.say({"prompt": 5})
    await talk.hear()
    await talk.socket.send(b"{}")
    await talk.socket.wait_closed()
    text = (await gateway.http.get("/metrics")).text
    assert 'trilby_request_failures_total{code="invalid_type"} 1.0' in text
    assert 'trilby_request_failures_total{code="invalid_json"} 1.0' in text


async def test_an_answer_here_is_never_in_one_piece(gateway: Any, agent: Any, talk: Any, chat: Any) -> None:
    """So its bounds do not count."""
    await talk.say(chat | {"n": 128, "max_tokens": 350, "logprobs": True, "top_logprobs": 20})
    assert (await talk.hear())["type"] == "accepted"


@pytest.mark.parametrize("stream", [{}, {"stream": True}, {"stream": False}, {"stream": None}])
@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
async def test_what_is_said_of_a_stream_means_nothing(
    gateway: Any, agent: Any, talk: Any, chat: Any, stream: Any, options: Any
) -> None:
    """Neither that there is to be one nor how it ends; what is told over HTTP only is refused for that alone."""
    await talk.say(chat | stream | options)
    kinds = [message["type"] for message in await talk.hear_all()]
    assert kinds == ["accepted", *["delta"] * 4, "finished", "usage", "done"]
    await talk.say(chat | stream | options | {"prompt_logprobs": 1})
    [refused] = await talk.hear_all()
    assert refused["error"]["param"] == "prompt_logprobs" and "over HTTP only" in refused["error"]["message"]


async def test_keys_and_origins_are_asked_at_the_handshake(serving: Any) -> None:
    """401 and 403 instead of 101."""
    async with serving(GatewayConfig(api_keys="secret")) as gateway:
        url = f"{gateway.ws_url}/v1/stream"
        refusals: list[tuple[dict[str, str], int]] = [
            ({}, 401),
            ({"Authorization": "Bearer no"}, 401),
            ({"Origin": "http://evil.test"}, 403),
        ]
        for headers, status in refusals:
            with pytest.raises(InvalidStatus) as refused:
                await connect(url, additional_headers=headers, proxy=None)
            assert refused.value.response.status_code == status
        async with connect(url, additional_headers={"Authorization": "Bearer secret"}, proxy=None):
            pass


async def test_an_idle_socket_is_closed(gateway: Any, agent: Any, talk: Any, chat: Any, monkeypatch: Any) -> None:
    """When nothing was asked for long; the time of an answer does not count."""
    monkeypatch.setattr("gateway.token_socket.IDLE_S", 0.3)

    async def slow(agent: Any, asked: Any) -> None:
        await asyncio.sleep(0.6)
        await answered(agent, asked)

    answered, agent.script = agent.script, slow
    began = asyncio.get_running_loop().time()
    await talk.say(chat)
    assert (await talk.hear_all())[-1]["type"] == "done"
    await asyncio.wait_for(talk.socket.wait_closed(), 20)
    assert talk.socket.close_code == 4408 and asyncio.get_running_loop().time() - began > 0.6 + 0.25


async def test_who_does_not_read_why_it_is_refused_is_given_up(
    serving: Any, connected: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is busy as long as it is served, and would keep its place for ever: by its mistakes as by its requests."""

    async def stuck(outlet: Outlet, message: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Outlet, "send", stuck)
    async with serving(GatewayConfig(client_within_s=0.2)) as gateway, connected(gateway):
        for body in ({"prompt": 5}, chat | {"model": "another"}):
            async with connect(f"{gateway.ws_url}/v1/stream", proxy=None, close_timeout=0.1) as socket:
                await socket.send(json.dumps(body))
                await asyncio.wait_for(socket.wait_closed(), 15)


async def test_who_does_not_take_its_end_is_given_up(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is idle or has said what is no text: a socket that cannot be closed in time loses its place too."""

    async def stuck(websocket: WebSocket, code: int = 1000, reason: str | None = None) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(WebSocket, "close", stuck)
    monkeypatch.setattr("gateway.token_socket.IDLE_S", 0.5)
    async with serving(GatewayConfig(client_within_s=0.2)) as gateway:
        for said in (None, b"no text"):
            async with connect(f"{gateway.ws_url}/v1/stream", proxy=None, close_timeout=0.1) as socket:
                if said is not None:
                    await socket.send(said)
                await asyncio.wait_for(socket.wait_closed(), 15)


async def test_idle_sockets_keep_nobody_out(
    serving: Any, connected: Any, scripts: Any, chat: Any, monkeypatch: Any
) -> None:
    """Of one key as of all: the one that is idle for longest goes, never one that is answered; where all of a key's are
    answered one more is refused, and another key has a place of its own."""
    monkeypatch.setattr("gateway.token_socket.MAX_SOCKETS_OF_CLIENT", 3)

    async def dialled(gateway: Any, key: str) -> Talk:
        headers = {"Authorization": f"Bearer {key}"}
        url = f"{gateway.ws_url}/v1/stream"
        return Talk(await connect(url, additional_headers=headers, proxy=None, compression=None))

    async with serving(GatewayConfig(api_keys="a,b")) as gateway, connected(gateway, scripts.hang):
        busy, *idle = [await dialled(gateway, "a") for _ in range(3)]
        await busy.say(chat)
        assert (await busy.hear())["type"] == "accepted"
        newer = [await dialled(gateway, "a") for _ in range(2)]
        for each in idle:
            await asyncio.wait_for(each.socket.wait_closed(), 15)
            assert each.socket.close_code == 4408
        for each in newer:
            await each.say(chat)
            assert (await each.hear())["type"] == "accepted"
        with pytest.raises(InvalidStatus) as refused:
            await dialled(gateway, "a")
        assert refused.value.response.status_code == 429 and "retry-after" in refused.value.response.headers
        other = await dialled(gateway, "b")
        await other.say(chat)
        assert (await other.hear())["type"] == "accepted"
        for each in (busy, *newer, other):
            await each.socket.close()
