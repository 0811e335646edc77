"""Reading request bodies: whatever comes in, an Ask or a RequestError that names the member comes out."""

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
from gateway.errors import RequestError
from gateway.openai_schema import MAX_ALLOWED_IDS, MAX_PROMPT_IDS
from gateway.parsing import parse, parse_chat, parse_completion
from gateway.request import Ask
from wire.request_messages import ChatTurn

HELLO = [{"role": "user", "content": "Hi"}]


def chat(**members: object) -> Ask:
    return parse_chat(json.dumps({"messages": HELLO} | members).encode())


def completion(**members: object) -> Ask:
    return parse_completion(json.dumps({"prompt": "Hi"} | members).encode())


def rendered(**members: object) -> tuple[bool, bool]:
    how = chat(**members).terms.rendering
    return how.add_generation_prompt, how.continue_final_message


def refused(read: Any, **members: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(**members)
    assert caught.value.status == 400
    assert caught.value.type == "invalid_request_error"
    return caught.value


def test_defaults_of_a_chat() -> None:
    """OpenAI's, and an answer as long as it gets."""
    ask = chat()
    terms = ask.terms
    assert (terms.n, terms.max_tokens, ask.stream, terms.logprobs, ask.model) == (1, None, False, None, None)
    assert terms.left_out == ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"]
    assert chat(temperature=1, top_k=0, min_p=None).terms.left_out == ["top_p", "min_p", "repetition_penalty"]
    assert ask.prompts == ([ChatTurn("user", "Hi")],)


def test_defaults_of_a_completion() -> None:
    """16 tokens, as at OpenAI."""
    assert completion().terms.max_tokens == 16
    assert completion().prompts == ("Hi",)


def test_who_asks_for_the_scores_of_a_prompt() -> None:
    """``echo`` with ``logprobs``, or ``prompt_logprobs``; then nothing has to follow."""
    echoed = completion(echo=True, logprobs=1.0, max_tokens=0)
    assert (echoed.terms.prompt_logprobs, echoed.terms.max_tokens, echoed.prompt_logprobs) == (1, 0, False)
    for asked in (completion(prompt_logprobs=0, max_tokens=0), chat(prompt_logprobs=0, max_completion_tokens=0)):
        assert (asked.terms.prompt_logprobs, asked.terms.max_tokens, asked.prompt_logprobs) == (0, 0, True)
    assert completion(echo=True, logprobs=2, prompt_logprobs=2).prompt_logprobs
    for plain in (completion(echo=True), completion(logprobs=3), completion(echo=False, logprobs=3)):
        assert plain.terms.prompt_logprobs is None and not plain.prompt_logprobs


def test_null_means_left_out() -> None:
    """For every member that may be null."""
    names = (
        "model", "n", "max_tokens", "stream", "stream_options", "stop", "seed", "temperature", "top_p", "top_k",
        "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "stop_token_ids", 
        "ignore_eos", "user", "response_format", "logprobs", "draft", "prompt_logprobs", "structured_outputs",
        "guided_json", "guided_regex", "guided_choice", "guided_grammar", "min_tokens", "include_stop_str_in_output",
        "bad_words", "allowed_token_ids", "cache_salt", "return_token_ids", "priority",
    )  # fmt: skip
    nothing = dict.fromkeys(names)
    nothing_of_a_chat = dict.fromkeys(
        ("top_logprobs", "max_completion_tokens", "tool_choice", "add_generation_prompt", "continue_final_message",
         "chat_template_kwargs")
    )  # fmt: skip
    assert chat(**nothing, **nothing_of_a_chat) == chat()
    assert completion(**nothing, echo=None, best_of=None, suffix=None) == completion()


def test_how_a_conversation_ends() -> None:
    """With the assistant's next turn begun, unless the last one is gone on with or nothing of this is wanted."""
    assert rendered() == rendered(add_generation_prompt=True, continue_final_message=False) == (True, False)
    assert rendered(continue_final_message=True) == (False, True)
    assert rendered(continue_final_message=True, add_generation_prompt=False) == (False, True)
    assert rendered(add_generation_prompt=False) == (False, False)
    told = {"enable_thinking": False, "n": 2**63, "deep": [{"a": None}]}
    assert chat(chat_template_kwargs=told).terms.rendering.chat_template_kwargs == told


def test_content_parts_and_roles() -> None:
    """Text parts are joined; developer is told as system; an assistant may have said nothing, or why it refused."""
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "Hi", "name": "Ann"},
    ]
    said = [ChatTurn("assistant", ""), ChatTurn("assistant", "No.")]
    assert chat(messages=messages).prompts == ([ChatTurn("system", "Be\nkind"), *said, ChatTurn("user", "Hi", "Ann")],)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3)))],
)
def test_the_four_forms_of_a_prompt(prompt: Any, prompts: Any) -> None:
    """Text, texts, ids, lists of ids."""
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [None]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"model": 5}, "model"),
        ({"model": "m" * 513}, "model"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 10**9}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": "1"}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 0.0}, "max_tokens"),
        ({"seed": 0.5}, "seed"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_completion_tokens": 10**400}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**70}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"stop": "a" * 10**5}, "stop"),
        ({"stop_token_ids": [1] * 10**5}, "stop_token_ids"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a"] * 10**5}, "stop"),
        ({"stop": ["a" * 257]}, "stop[0]"),
        ({"stop": "a" * 257}, "stop"),
        ({"stop": [None]}, "stop[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids[0]"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"4294967296": 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]"),
        ({"logit_bias": {str(at): 1 for at in range(1025)}}, "logit_bias"),
        ({"logprobs": 5}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 10**9}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 2049}] * 2}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 40_000}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": 5}]}]}, "messages[0].content[0].type"),
        ({"draft": 5}, "draft"),
        ({"draft": ["fused"]}, "draft"),
        ({"draft": "x" * 513}, "draft"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 1.5}, "min_tokens"),
        ({"min_tokens": 2**40}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output"),
        ({"bad_words": "fox"}, "bad_words"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"bad_words": ["a" * 257]}, "bad_words[0]"),
        ({"bad_words": ["a"] * 129}, "bad_words"),
        ({"bad_words": ["a"] * 10**5}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
        ({"allowed_token_ids": [1.5]}, "allowed_token_ids[0]"),
        ({"allowed_token_ids": [1] * (MAX_ALLOWED_IDS + 1)}, "allowed_token_ids"),
        ({"allowed_token_ids": [1] * 10**6}, "allowed_token_ids"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 513}, "cache_salt"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"continue_final_message": "yes"}, "continue_final_message"),
        ({"add_generation_prompt": 1}, "add_generation_prompt"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "x" * 2**15}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": 10**30}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}}, "chat_template_kwargs"),
    ],
)
def test_a_bad_member_of_a_chat_is_named(members: Any, param: Any) -> None:
    """By its path, in OpenAI's notation."""
    assert refused(chat, **members).param == param


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": ["a", [1]]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [2**70]}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": [None]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": [[1], [2, -1]]}, "prompt[1]"),
        ({"prompt": [[1], 2]}, "prompt[1]"),
        ({"prompt": [[1]] * 129}, "prompt"),
        ({"prompt": [1] * (MAX_PROMPT_IDS + 1)}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": True}, "max_tokens"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "logprobs": 2, "echo": True}, "prompt_logprobs"),
        ({"draft": True}, "draft"),
        ({"min_tokens": 17}, "min_tokens"),
    ],
)
def test_a_bad_member_of_a_completion_is_named(members: Any, param: Any) -> None:
    """By its path, in OpenAI's notation."""
    assert refused(completion, **members).param == param


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"null", b"[]", b"5", b"{", b'{"messages": [{"role":"user","content":"\\ud800"}]}',
        b'{"messages": [{"role":"user","content":"\xff"}]}', b"\xef\xbb\xbf{}", b'{"unknown": NaN}',
        b'{"messages": 1, "temperature": Infinity}', b'{"messages": [], "temperature": 1e309}',
        b'{"unknown":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"messages":' + b"[" * 100_000,
        b'{"tool_choice":' + b'{"a":' * 100_000,
        b'{"prompt": 5, "messages": [{"role":"user","content":"x"}], "chat_template_kwargs": {"a": '
        + b"[" * 9_000 + b"]" * 9_000 + b"}}",
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(body: Any) -> None:
    """Never any other exception, however deep."""
    for endpoint in ("chat.completions", "completions"):
        with pytest.raises(RequestError):
            parse(endpoint, body)


def test_a_logit_bias_that_is_not_utf8_is_named() -> None:
    """It is read apart from the body, and late."""
    for bias in (b'{"\xff": 1}', b'"\xff"'):
        with pytest.raises(RequestError) as caught:
            parse_completion(b'{"prompt": "a", "logit_bias": ' + bias + b"}")
        assert (caught.value.status, caught.value.param) == (400, "logit_bias")


def test_of_duplicate_members_the_last_counts() -> None:
    """As most readers of JSON have it."""
    assert parse_completion(b'{"prompt": "a", "n": 5, "n": 2, "prompt": "b"}').prompts == ("b",)


def test_missing_members_have_a_code_of_their_own() -> None:
    """The code OpenAI uses."""
    with pytest.raises(RequestError) as caught:
        parse_chat(b"{}")
    assert (caught.value.param, caught.value.code) == ("messages", "missing_required_parameter")


def test_what_clients_send_is_taken_as_they_mean_it() -> None:
    """Whole numbers with a point; -1 and an empty text where others take them to mean nothing is asked for."""
    assert chat(max_tokens=100.0, n=2.0, seed=7.0, top_k=4e1, logprobs=True, top_logprobs=3.0) == chat(
        max_tokens=100, n=2, seed=7, top_k=40, logprobs=True, top_logprobs=3
    )
    assert completion(max_tokens=9.0, logprobs=2.0, best_of=1.0) == completion(max_tokens=9, logprobs=2, best_of=1)
    assert chat(max_tokens=-1).terms.max_tokens is chat(max_completion_tokens=-1, max_tokens=5).terms.max_tokens is None
    assert completion(max_tokens=-1).terms.max_tokens is None
    assert chat(stop="") == chat(seed=-1) == chat(top_logprobs=0) == chat()
    assert chat(seed=-2).terms.sampling.seed == -2
    assert chat(functions=[{"name": "f"}], function_call="auto") == chat(tools=[], tool_choice="none") == chat()


def test_the_member_at_fault_is_never_the_clients_text() -> None:
    """Whatever it looks like: what is quoted before the path cannot be mistaken for it."""
    for role in ("x` - at `$.evil", " - at `$" * 10**5, "Object missing required field `evil`", "`" * 10**6):
        for param in ("messages[0].role", "messages[1].role"):
            turns = HELLO * int(param[9]) + [{"role": role, "content": ""}]
            error = refused(chat, messages=turns)
            assert (error.param, len(error.message) <= 1024) == (param, True)
    assert len(RequestError(400, "", param="x" * 10**5).param or "") == 128


def filled(head: str, member: str, tail: str) -> bytes:
    """The largest body that the gateway takes, with as many members as there is room for."""
    count = (GatewayConfig().max_body_bytes - len(head) - len(tail)) // (len(member) + 1)
    return (head + ",".join([member] * count) + tail).encode()


TURN = '{"messages": [{"role": "user", "content": "x"}],'


@pytest.mark.parametrize(
    "body",
    [
        *(filled('{"prompt": [', each, "]}") for each in ("[]", "[1]", "1", "999", '""', '"a"', '"\\""', '1,"",[]')),
        filled('{"prompt": [[', "1", "]]}"),
        *(filled('{"messages": [', each, "]}") for each in ('{"role":"user"}', '{"role":"user","content":[]}')),
        filled('{"messages": [{"role": "user", "content": [', '{"type":""}', "]}]}"),
        *(filled(f'{TURN} "{each}": [', '"a"', "]}") for each in ("stop", "tool_choice", "logit_bias", "x")),
        *(filled(f'{TURN} "{each}": [', "1", "]}") for each in ("stop_token_ids", "allowed_token_ids", "bad_words")),
        *(filled(TURN, each, "}") for each in ('"n":1', '"stop":[]', '"":{}', '"response_format":{"type":"text"}')),
        *(filled(f'{TURN} "guided_{each}": [', '"a"', "]}") for each in ("choice", "json", "regex")),
        filled('{"messages": [{"content": "", "role": "', " - at `$", '"}]}'),
    ],
    ids=lambda body: body[:48].decode() if isinstance(body, bytes) else None,
)
def test_the_worst_bodies_hold_nobody_up(body: bytes) -> None:
    """The largest there may be, all members: read or refused in the time of a quick look, whatever they are.

    Some 30 ms at most on an idle machine; a list of a million lists once took half a second.
    """
    spent = []
    for _ in range(5):
        began = time.process_time()
        for read in (parse_chat, parse_completion):
            with contextlib.suppress(RequestError):
                read(body)
        spent.append(time.process_time() - began)
    assert min(spent) < 0.15


def test_an_error_never_carries_more_than_a_line_of_the_body() -> None:
    """An unknown role is quoted, a long one is cut."""
    error = refused(chat, messages=[{"role": "x" * 100_000, "content": "y"}])
    assert len(error.message) <= 1024


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
members = st.sampled_from(
    ["messages", "prompt", "model", "n", "max_tokens", "stream", "stop", "seed", "temperature", "top_p", "top_k",
     "logit_bias", "logprobs", "top_logprobs", "stream_options", "response_format", "tool_choice", "echo", "best_of",
     "draft", "structured_outputs", "guided_json", "guided_choice", "min_tokens", "bad_words", "allowed_token_ids",
     "cache_salt", "continue_final_message", "add_generation_prompt", "chat_template_kwargs"]
)  # fmt: skip
bodies = st.dictionaries(members | st.text(max_size=5), json_values, max_size=6)


@settings(max_examples=150, deadline=None)
@given(body=bodies, good=st.booleans())
def test_any_json_is_parsed_or_refused(body: Any, good: Any) -> None:
    """And what is parsed can be sent to an agent."""
    if good:
        body = {"messages": HELLO, "prompt": "x"} | body
    for endpoint in ("chat.completions", "completions"):
        try:
            ask = parse(endpoint, json.dumps(body).encode())
        except RequestError as error:
            assert error.status == 400
            msgspec.json.encode(error.reply)
        else:
            for part in range(ask.parts):
                msgspec.msgpack.encode(ask.message(part, 1, "id", "model", 0))


@settings(max_examples=150, deadline=None)
@given(body=st.binary(max_size=80))
def test_any_bytes_are_parsed_or_refused(body: Any) -> None:
    """No other exception."""
    for endpoint in ("chat.completions", "completions"):
        with pytest.raises(RequestError):
            parse(endpoint, body)
