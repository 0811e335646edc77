"""Bodies of /v1/responses and /v1/messages: whatever they are, they are read or refused, and soon."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import GatewayConfig
from gateway.error_shapes import MESSAGES, RESPONSES, response_to
from gateway.errors import RequestError
from gateway.messages.message_parsing import parse_message
from gateway.request import Ask
from gateway.responses.response_parsing import decoded_response, response_ask

ID = "resp_" + "0" * 32


def parse_response(body: bytes, tenant: str = "") -> Ask:
    return response_ask(decoded_response(body), [], ID, 0, tenant)


GOOD = '{"max_tokens": 1, "input": "x", "messages": [{"role": "user", "content": "x"}]'
PARSERS = {RESPONSES: parse_response, MESSAGES: parse_message}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
kinds = st.sampled_from(["text", "message", "function_call", "function_call_output", "reasoning", "tool_use",
                         "tool_result", "thinking", "input_text", "output_text", "function", "custom"])  # fmt: skip
parts = st.fixed_dictionaries(
    {"type": kinds},
    optional={"role": st.sampled_from(["user", "assistant", "system"]), "name": st.just("f"),
              "text": st.text(max_size=4), "input": st.dictionaries(st.text(max_size=4), values, max_size=2),
              "content": st.text(max_size=4) | values}
    | {name: st.text(max_size=4) for name in ("call_id", "id", "tool_use_id", "arguments", "thinking", "output")},
)  # fmt: skip
good = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"]), "content": st.text(max_size=4)}
) | st.sampled_from([
    {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {"x": 2**70}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}, {"type": "text", "text": "x"}]},
    {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "x", "output": "x"},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]},
])  # fmt: skip
turns = st.lists(good, min_size=1, max_size=4) | st.lists(
    good | parts | st.fixed_dictionaries({"role": st.just("user"), "content": st.lists(parts, max_size=3)}), max_size=4
)
members = st.sampled_from(
    ["model", "stream", "store", "instructions", "previous_response_id", "max_output_tokens", "max_tokens", "include",
     "text", "metadata", "truncation", "tools", "tool_choice", "parallel_tool_calls", "background", "system", "stop",
     "stop_sequences", "temperature", "top_k", "structured_outputs", "thinking", "container"]
)  # fmt: skip
more = st.dictionaries(members, values | st.lists(parts, max_size=2), max_size=2)


@settings(max_examples=150, deadline=None)
@given(said=turns | values, more=more)
def test_any_json_is_parsed_or_refused(said: Any, more: Any) -> None:
    """And what is parsed can be sent to an agent, told back and stored."""
    body = {"max_tokens": 8, "input": said, "messages": said} | more
    for path, parse in PARSERS.items():
        try:
            ask = parse(json.dumps(body).encode(), "t")
        except RequestError as error:
            assert error.status in (400, 404)
            assert json.loads(bytes(response_to(path, error, "id").body))["error"]["message"]
        else:
            msgspec.msgpack.encode(ask.message(0, 1, "id", "model", 0))
            msgspec.json.encode([getattr(ask, "response", None), getattr(ask, "items", ())])


@settings(max_examples=100, deadline=None)
@given(body=st.binary(max_size=80))
def test_any_bytes_are_refused(body: bytes) -> None:
    """No other exception."""
    for parse in PARSERS.values():
        with pytest.raises(RequestError):
            parse(body, "t")


def filled(head: str, member: str, tail: str) -> bytes:
    """The largest body that the gateway takes, with as many members as there is room for."""
    count = (GatewayConfig().max_body_bytes - len(head) - len(tail)) // (len(member) + 1)
    return (head + ",".join([member] * count) + tail).encode()


THOUGHT = '{"type":"reasoning","content":[{"type":"text","text":"%s"}]}'


@pytest.mark.parametrize(
    "body",
    [
        *(filled('{"input": [', each, "]}") for each in ("1", "[]", '{"role":"user"}', '{"type":"reasoning"}')),
        filled('{"input": [{"role": "user", "content": [', '{"type":""}', "]}]}"),
        filled('{"max_tokens": 1, "messages": [', '{"role":"user","content":[]}', "]}"),
        *(filled(f'{{"max_tokens": 1, "messages": [{{"role": "{role}", "content": [', each, "]}]}")
          for role, each in (("user", '{"type":"tool_result"}'), ("assistant", '{"type":"thinking"}'))),
        *(filled(f'{GOOD}, "{name}": [', "1", "]}")
          for name in ("tools", "metadata", "system", "stop_sequences", "include", "text")),
        b'{"input": ' + b"[" * 4_000_000,
        *(filled(f'{{"input": [{THOUGHT % first},', THOUGHT % ("x" * 1000), "]}") for first in ("x", "\U0001f600")),
    ],
    ids=lambda body: body[:40].decode() if isinstance(body, bytes) else None,
)  # fmt: skip
def test_the_worst_bodies_hold_nobody_up(body: bytes) -> None:
    """The largest there may be: read or refused in the time of a quick look, as in chats.

    4000 thoughts in a row once took two seconds, each copied for each that follows.
    """
    spent = []
    for _ in range(5):
        began = time.process_time()
        for parse in PARSERS.values():
            with contextlib.suppress(RequestError):
                parse(body, "t")
        spent.append(time.process_time() - began)
    assert min(spent) < 0.15
