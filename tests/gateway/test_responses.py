"""/v1/responses: openai-python reads everything, a turn goes on with the one before, refusals name what is wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from agents_here import Served
from checkpoints import DEMO
from gateway_streams import client
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway.config import GatewayConfig
from gateway.responses import kept
from gateway.responses.response_delivery import KeptDelivery
from wire.errors import Code
from wire.message import Failed
from wire.request_messages import Accepted, Delta, Done, Finished, ServedModel
from wire.text_messages import ChatTurn

MODEL = ServedModel("demo/model", 4096, 1_700_000_000)
NEVER = f"there is no response 'resp_{'0' * 32}' here: it was not stored, has been deleted, or is too old"
ASK: dict[str, Any] = {"model": "demo/model", "input": "Hi"}
FORMAT: dict[str, Any] = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TEXT_ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    *["response.output_text.delta"] * 3,
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


async def post(gateway: Any, body: Any, **headers: str) -> Any:
    return await gateway.http.post("/v1/responses", json=body, headers=headers)


async def events_of(gateway: Any, body: Any) -> list[Any]:
    """The events of a stream, each of OpenAI's type, named by it, and numbered."""
    reply = await post(gateway, body | {"stream": True})
    assert reply.status_code == 200, reply.text
    blocks = [block.split("\n") for block in reply.text.split("\n\n") if block and not block.startswith(":")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name for name, _ in blocks] == [f"event: {event['type']}" for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        EVENT.validate_python(event)
    return events


async def test_openai_python_reads_a_response(gateway: Any, agent: Any) -> None:
    """Whole and in a stream that it accumulates; members that may be null are there."""
    async with client(gateway) as openai:
        made = await openai.responses.create(**ASK, instructions="Be brief.", metadata={"a": "b"}, temperature=0.5)
        assert made.output_text == "Hello world" and made.status == "completed"
        assert made.usage is not None and (made.usage.input_tokens, made.usage.output_tokens) == (5, 4)
        assert (made.instructions, made.metadata, made.temperature) == ("Be brief.", {"a": "b"}, 0.5)
        assert agent.asked[0].prompt == [ChatTurn("system", "Be brief."), ChatTurn("user", "Hi")]
        assert agent.asked[0].sampling.temperature == 0.5 and made.top_p is None, "that is the model's"
        again = await openai.responses.retrieve(made.id)
        assert again.model_dump() == made.model_dump()
        async with openai.responses.stream(**ASK) as stream:
            told = [event.type async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == "Hello world" and told[-1] == "response.completed"
        await openai.responses.delete(made.id)
    raw = (await post(gateway, ASK)).json()
    Response.model_validate(raw)
    nullable = {"error", "incomplete_details", "instructions", "previous_response_id", "max_output_tokens"}
    assert all(raw[name] is None for name in nullable) and raw["store"] is True and raw["tools"] == []


async def test_events_come_in_openais_order(gateway: Any, agent: Any) -> None:
    """Each carries what is new, its end all of it, and the last one the whole response."""
    events = await events_of(gateway, ASK)
    assert [event["type"] for event in events] == TEXT_ORDER
    assert "".join(event["delta"] for event in events if "delta" in event) == "Hello world"
    assert events[7]["text"] == events[8]["part"]["text"] == "Hello world"
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == []
    assert events[-1]["response"]["output"] == [events[-2]["item"]]
    assert {event["item_id"] for event in events if "item_id" in event} == {events[-2]["item"]["id"]}
    kept_one = (await gateway.http.get(f"/v1/responses/{events[0]['response']['id']}")).json()
    assert kept_one == events[-1]["response"]


async def test_an_answer_cut_off_is_incomplete(gateway: Any, connected: Any, scripts: Any) -> None:
    """At its limit; one that says nothing still has an item, one that fails says why, in OpenAI's words."""

    async def cut(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        agent.post(Finished(asked.request, 0, "length"))
        agent.post(Done(asked.request, 5, 0))

    async def fail(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        agent.post(Delta(asked.request, 0, "Well", 1))
        agent.post(Failed(Code.INTERNAL, "lower 'max_tokens'", asked.request))

    async with connected(gateway, cut):
        events = await events_of(gateway, ASK | {"max_output_tokens": 7})
        assert [event["type"] for event in events] == [*TEXT_ORDER[:4], *TEXT_ORDER[7:10], "response.incomplete"]
        response = events[-1]["response"]
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][0]["status"] == "incomplete" and response["max_output_tokens"] == 7
    async with connected(gateway, fail):
        events = await events_of(gateway, ASK)
        error = events[-1]["response"]["error"]
        assert events[-1]["type"] == "response.failed"
        assert error == {"code": "server_error", "message": "lower 'max_output_tokens'"}
        assert (await gateway.http.get(f"/v1/responses/{events[-1]['response']['id']}")).status_code == 404


async def test_a_turn_goes_on_with_the_one_before(gateway: Any, agent: Any) -> None:
    """The model is told all turns but not the earlier instructions; the items are listed; a deleted one is gone."""
    first = (await post(gateway, ASK | {"instructions": "Be brief."})).json()
    items = [
        {"role": "developer", "content": "Rhyme."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": t} for t in ("And", "you?")]},
    ]
    body = ASK | {"input": items, "previous_response_id": first["id"]}
    second = (await post(gateway, body)).json()
    assert second["previous_response_id"] == first["id"] and second["instructions"] is None
    turns = [("user", "Hi"), ("assistant", "Hello world"), ("system", "Rhyme."), ("user", "And\nyou?")]
    assert agent.asked[1].prompt == [ChatTurn(role, text) for role, text in turns]
    path = f"/v1/responses/{second['id']}/input_items"
    listed = (await gateway.http.get(path, params={"order": "asc"})).json()
    ResponseItemList.model_validate(listed)
    assert [item["role"] for item in listed["data"]] == ["user", "assistant", "developer", "user"]
    one = (await gateway.http.get(path, params={"limit": 1, "after": listed["data"][2]["id"]})).json()
    assert [item["id"] for item in one["data"]] == [listed["data"][1]["id"]] and one["has_more"]
    for limit in ("0", "101", "0000001000", "1" * 5000, "1e3", ""):
        assert (await gateway.http.get(path, params={"limit": limit})).status_code == 400
    assert (await gateway.http.delete(f"/v1/responses/{first['id']}")).json()["deleted"] is True
    for gone in (await gateway.http.delete(f"/v1/responses/{first['id']}"), await post(gateway, body)):
        assert gone.status_code == 404
    assert gone.json()["error"]["param"] == "previous_response_id"
    assert (await gateway.http.get(path)).status_code == 200  # What was made of it has the turns itself.


async def test_nobody_meets_anothers_response(serving: Any, connected: Any) -> None:
    """Another key reads, deletes and goes on with nothing; the error is that of a response that never was."""
    async with serving(GatewayConfig(api_keys="one,two")) as gateway, connected(gateway):
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        made = (await post(gateway, ASK, **one)).json()["id"]
        never = "resp_" + "0" * 32
        for id in (made, never):
            replies = [
                await gateway.http.get(f"/v1/responses/{id}", headers=two),
                await gateway.http.get(f"/v1/responses/{id}/input_items", headers=two),
                await gateway.http.delete(f"/v1/responses/{id}", headers=two),
                await post(gateway, ASK | {"previous_response_id": id}, **two),
            ]
            assert [reply.status_code for reply in replies] == [404] * 4
            assert all(reply.json()["error"]["message"].replace(id, never) == NEVER for reply in replies)
        assert (await gateway.http.get(f"/v1/responses/{made}", headers=one)).status_code == 200
        assert (await gateway.http.get(f"/v1/responses/{made}")).status_code == 401


async def test_what_is_not_stored_says_so(gateway: Any, agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since it was not to be, or is too large; its answer is good."""
    unwanted = (await post(gateway, ASK | {"store": False})).json()
    monkeypatch.setattr(kept, "MOST_BYTES", 100)
    large = (await post(gateway, ASK)).json()
    last = (await events_of(gateway, ASK))[-1]["response"]
    for response in (unwanted, large, last):
        assert response["store"] is False and response["status"] == "completed"
        assert (await gateway.http.get(f"/v1/responses/{response['id']}")).status_code == 404


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"input": ...}, "input", "missing_required_parameter"),
        ({"input": None}, "input", "invalid_type"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]", None),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
        ({"input": [{"content": "x"}]}, "input[0].role", "missing_required_parameter"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type", None),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"background": True}, "background", None),
        ({"truncation": "auto"}, "truncation", None),
        ({"conversation": "conv_1"}, "conversation", None),
        ({"prompt": {"id": "p"}}, "prompt", None),
        ({"include": ["web_search_call.results"]}, "include[0]", None),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata[...]", "invalid_type"),
        ({"text": {"format": FORMAT | {"schema": None}}}, "text.format.schema", "missing_required_parameter"),
        ({"text": {"format": FORMAT}}, "text.format.schema", None),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", None),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
        ({"input": "x" * 200_000}, "input", "context_length_exceeded"),
        ({"model": "other"}, "model", "model_not_found"),
    ],
)  # fmt: skip
async def test_refusals_name_the_member(
    serving: Any, connected: Any, more: dict[str, Any], param: str, code: str | None
) -> None:
    """Under its name here, with a code; what is not supported is refused by name."""
    model = msgspec.structs.replace(MODEL, max_characters=100_000)
    async with serving(GatewayConfig()) as gateway, connected(gateway, models=(model,)) as agent:
        reply = await post(gateway, {name: value for name, value in (ASK | more).items() if value is not ...})
        error = reply.json()["error"]
        assert reply.status_code in (400, 404) and (error["param"], error["code"]) == (
            param,
            code or "unsupported_value",
        )
        assert not agent.asked


async def test_log_probabilities_and_forms_are_a_chats(gateway: Any, connected: Any) -> None:
    """They reach the agent as a chat's do, and come back where OpenAI has them."""
    model = msgspec.structs.replace(MODEL, grammars=True)
    body = ASK | {
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        "top_logprobs": 2,
        "text": {"format": FORMAT},
        "top_k": 3,
    }
    async with connected(gateway, models=(model,)) as agent:
        events = await events_of(gateway, body)
        assert events[-1]["response"]["text"]["format"] == body["text"]["format"]
        assert len(events[-1]["response"]["output"][0]["content"][0]["logprobs"]) == 4
        assert sum(len(event["logprobs"]) for event in events if event["type"].endswith("text.delta")) == 4
        [asked] = agent.asked
        assert (asked.logprobs, asked.sampling.top_k, asked.n) == (2, 3, 1)
        assert (asked.grammar.kind, asked.grammar.text) == ("json", '{"type":"object"}')


async def test_a_kept_conversation_is_gone_on_with_as_a_chats_is(served: Served) -> None:
    """The second turn takes up what the device kept of the first, as many tokens and the same text as in a chat."""
    settings: dict[str, Any] = {"model": "m", "temperature": 0}
    questions = ["Tell me a story about a fox.", "And then?"]
    async with served(DEMO) as http:
        messages: list[Any] = []
        chats: list[Any] = []
        for question in questions:
            messages.append({"role": "user", "content": question})
            body = settings | {"messages": messages, "max_tokens": 20, "cache_salt": "chat"}
            chats.append((await http.post("/v1/chat/completions", json=body)).json())
            messages.append(chats[-1]["choices"][0]["message"])
        before: dict[str, Any] = {}
        for question, chat in zip(questions, chats, strict=True):
            body = settings | before | {"input": question, "max_output_tokens": 20}
            response = (await http.post("/v1/responses", json=body)).json()
            before = {"previous_response_id": response["id"]}
            assert response["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
            usage, chats_usage = response["usage"], chat["usage"]
            assert usage["input_tokens"] == chats_usage["prompt_tokens"]
        assert usage["input_tokens_details"]["cached_tokens"] > 20
        assert usage["input_tokens_details"]["cached_tokens"] == chats_usage["prompt_tokens_details"]["cached_tokens"]
        counted = (await http.post("/v1/responses/input_tokens", json=body)).json()
        assert counted == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}


async def test_a_stream_ends_where_its_end_has_no_room_for_more(
    gateway: Any, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that was said, as where it may have no more tokens; the agent is told, and the response is kept."""
    monkeypatch.setattr("gateway.answer.MAX_WHOLE_LOGPROBS", 5)
    events = await events_of(gateway, ASK | {"top_logprobs": 2, "include": ["message.output_text.logprobs"]})
    made = events[-1]["response"]
    assert (events[-1]["type"], made["incomplete_details"]) == ("response.incomplete", {"reason": "max_output_tokens"})
    [said] = made["output"][0]["content"]
    assert (said["text"], len(said["logprobs"])) == ("Hello wor", 2)
    assert (await gateway.http.get(f"/v1/responses/{made['id']}")).json() == made


def unread(gateway: Any, sends: asyncio.Event) -> asyncio.Future[None]:
    """What is kept, told to a client that neither reads nor leaves."""

    async def found() -> str:
        return "x"

    async def never(*_: Any) -> Any:
        sends.set()
        await asyncio.Event().wait()

    return asyncio.ensure_future(KeptDelivery(gateway.app.state.desk, "", found)({}, never, never))


async def test_what_is_kept_counts_as_a_request_while_it_is_told(serving: Any, connected: Any, scripts: Any) -> None:
    """Of those that a client may have open: for as long as it is read, and also where a turn goes on with it."""
    async with serving(GatewayConfig(max_client_requests=2)) as gateway, connected(gateway) as agent:
        kept = (await post(gateway, ASK)).json()["id"]
        agent.script, path, sends = scripts.hang, f"/v1/responses/{kept}", asyncio.Event()
        open_yet = [unread(gateway, sends), asyncio.ensure_future(post(gateway, ASK))]
        await gateway.until(lambda: len(agent.asked) == 2 and sends.is_set())
        for reply in (
            await gateway.http.get(path),
            await gateway.http.get(f"{path}/input_items"),
            await gateway.http.post(f"{path}/cancel"),
            await post(gateway, ASK | {"previous_response_id": "resp_" + "0" * 32}),
            await gateway.http.delete(path),
        ):
            assert (reply.status_code, reply.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        for each in open_yet:
            each.cancel()
        await asyncio.gather(*open_yet, return_exceptions=True)
        await gateway.until(lambda: gateway.roster.running == 0)
        assert (await gateway.http.get(path)).json()["id"] == kept


async def test_who_does_not_read_what_is_kept_is_given_up(serving: Any) -> None:
    """Within the time for reading; it is no open request any more."""
    async with serving(GatewayConfig(client_within_s=0.1)) as gateway:
        await asyncio.wait_for(unread(gateway, asyncio.Event()), 30)
        assert not gateway.dispatcher._open
