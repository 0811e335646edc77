"""What is too large to be answered, and what is only too large for one piece."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from gateway.reading_request import ReadAsk
from gateway.replies import ChatShape
from gateway.reply_schema import Heading
from gateway.request import MAX_ECHOED, MAX_WHOLE_LOGPROBS, MAX_WHOLE_TOKENS, Ask, too_large
from wire.request_messages import Alternative, ChatTurn, Delta, Generate, ServedModel, TokenLogprob


def ask(**members: Any) -> Ask:
    terms = {"max_tokens": 16} | {name: members.pop(name) for name in Generate.__struct_fields__ if name in members}
    given = {"endpoint": "completions", "model": None, "prompts": ("Hi",)} | members
    return Ask(**given, terms=Generate(0, "", "", "", **terms))


def param_of(max_positions: int = 2**20, max_total_tokens: int = 2**22, **members: Any) -> str | None:
    """The member at fault, None when there is none."""
    refused = too_large(ask(**members), ServedModel("model", max_positions, 1), max_total_tokens)
    assert refused is None or refused.status == 400
    return refused.param if refused else None


def test_prompts_and_answers_have_to_fit() -> None:
    """Into the positions of the model, and what one request may ask for."""
    assert param_of(max_positions=3, prompts=((1, 2, 3),)) == "prompt"
    assert param_of(max_positions=4, prompts=((1, 2, 3),)) is None
    assert param_of(max_positions=3, prompts=((1,), (1, 2, 3))) == "prompt[1]"
    assert param_of(max_total_tokens=31, n=2) == "n"
    assert param_of(max_total_tokens=32, n=2) is None


@pytest.mark.parametrize(
    "prompt", [(7,) * 100, "x" * 3200, [ChatTurn("user", "x" * 1600), ChatTurn("user", "x" * 1600)]]
)
def test_a_prompt_counts_once_for_each_answer(prompt: Any) -> None:
    """By the tokens it has at least, and no more than the model takes; one answer is bounded by the model alone."""
    for n, most in ((2, 2 * 116), (128, 128 * 116)):
        assert param_of(max_total_tokens=most, prompts=(prompt,), n=n) is None
        assert param_of(max_total_tokens=most - 1, prompts=(prompt,), n=n) == "n"
    assert param_of(max_total_tokens=4 * 116, prompts=(prompt, prompt), n=2) is None
    assert param_of(max_total_tokens=4 * 116 - 1, prompts=(prompt, prompt), n=2) == "n"
    assert param_of(max_total_tokens=1, prompts=(prompt,)) is None
    assert param_of(max_positions=101, max_total_tokens=2 * 116, prompts=(prompt,), n=2) is None


@pytest.mark.parametrize("most", [0, 10])
def test_text_that_cannot_fit_is_refused_before_it_is_sent(most: int) -> None:
    """Where agents say how much that is; token ids have no characters."""
    model = ServedModel("model", 5, 1, [], most)
    turns = [ChatTurn("user", "x" * 6), ChatTurn("user", "y" * 4)]
    for prompts, at in (
        (("x" * 11,), "prompt"),
        (("x", "x" * 11), "prompt[1]"),
        (([*turns, ChatTurn("user", "z")],), "messages"),
    ):
        refused = too_large(ask(prompts=prompts), model, 2**22)
        if most:
            assert refused is not None and (refused.status, refused.code) == (400, "context_length_exceeded")
            assert refused.param == at
        else:
            assert refused is None
    assert too_large(ask(prompts=("x" * 10, turns, (7,) * 4)), model, 2**22) is None


def test_prompts_need_room_for_an_answer_and_inputs_do_not() -> None:
    """One rule, with a limit for each: as many ids as the model has positions can be read, but not gone on with."""
    model, ids = ServedModel("model", 5, 1, [], 10), (7,) * 5
    limit = "this model's maximum context length is 5 tokens"  # As OpenAI begins it, which clients look for.
    prompt = too_large(ask(prompts=(ids,)), model, 2**22)
    assert prompt is not None
    assert prompt.message == f"{limit}, and the prompt has 5, of which 4 fit: shorten it"
    assert ReadAsk("embeddings", None, (ids,)).refused_by(model, 2**22) is None
    longer = ReadAsk("embeddings", None, ((*ids, 7),)).refused_by(model, 2**22)
    assert longer is not None and longer.param == "input"
    assert longer.message == f"{limit}, and input has 6, of which 5 fit: shorten it"
    for refused, what in (
        (too_large(ask(prompts=("x" * 11,)), model, 2**22), "the prompt"),
        (ReadAsk("classify", None, (("x" * 6, "x" * 5),)).refused_by(model, 2**22), "input"),
    ):
        assert refused is not None and refused.code == "context_length_exceeded"
        assert refused.message == f"{limit}, 10 characters at most, and {what} has 11: shorten it"


def test_log_probabilities_of_one_piece_are_bounded() -> None:
    """Answers x tokens x alternatives; a stream may have any number."""
    many: dict[str, Any] = {"n": 128, "max_tokens": 350, "logprobs": 20}
    assert param_of(**many) == "logprobs"
    assert param_of(**many, endpoint="chat.completions") == "top_logprobs"
    assert param_of(**many, stream=True) is None
    assert param_of(**many | {"logprobs": None}) is None
    assert param_of(max_tokens=MAX_WHOLE_LOGPROBS // 21, logprobs=20) is None
    assert param_of(max_tokens=MAX_WHOLE_LOGPROBS // 21 + 1, logprobs=20) == "logprobs"


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_a_response_are_bounded(stream: bool) -> None:
    """Streamed too: its end has all of them once more. Tokens alone are not."""
    asked: dict[str, Any] = {"endpoint": "responses", "stream": stream, "logprobs": 20}
    assert param_of(**asked, max_tokens=MAX_WHOLE_LOGPROBS // 21) is None
    assert param_of(**asked, max_tokens=MAX_WHOLE_LOGPROBS // 21 + 1) == "top_logprobs"
    assert param_of(**asked, max_tokens=None) is None
    assert (param_of(endpoint="responses", stream=stream, max_tokens=MAX_WHOLE_TOKENS + 1) is None) is stream


def test_scores_of_prompts_are_bounded() -> None:
    """Tokens x alternatives x answers, streamed or not; one that is not to be gone on with may fill the context."""
    for stream in (False, True):
        asked: dict[str, Any] = {"max_tokens": 0, "logprobs": 4, "prompt_logprobs": 4, "stream": stream}
        assert param_of(prompts=((7,) * 200,) * (MAX_WHOLE_LOGPROBS // 1000), **asked) is None
        assert param_of(prompts=((7,) * 200,) * (MAX_WHOLE_LOGPROBS // 1000 + 1), **asked) == "prompt"
        assert param_of(prompts=((7,) * 200,) * (MAX_WHOLE_LOGPROBS // 2000 + 1), n=2, **asked) == "prompt"
    model = ServedModel("model", 5, 1)
    assert too_large(ask(prompts=((7,) * 5,), max_tokens=0, prompt_logprobs=1), model, 2**22) is None
    assert too_large(ask(prompts=((7,) * 6,), max_tokens=0, prompt_logprobs=1), model, 2**22) is not None


def test_who_does_not_say_how_long_is_not_refused_for_it() -> None:
    """However many positions the model has."""
    assert param_of(max_tokens=None, logprobs=20) is None


def test_tokens_of_one_piece_are_bounded() -> None:
    """A stream may have more."""
    assert param_of(max_tokens=MAX_WHOLE_TOKENS + 1) == "max_tokens"
    assert param_of(max_tokens=MAX_WHOLE_TOKENS + 1, stream=True) is None
    assert param_of(max_tokens=MAX_WHOLE_TOKENS) is None


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_echoed_is_bounded(stream: Any) -> None:
    """Once for each answer, streamed or not: it comes all at once."""
    assert param_of(prompts=("x" * (MAX_ECHOED // 2 + 1),), n=2, echo=True, stream=stream) == "echo"
    assert param_of(prompts=((7,) * (MAX_ECHOED // 8 + 1),), echo=True, stream=stream) == "echo"
    assert param_of(prompts=("x" * MAX_ECHOED,), echo=True, stream=stream) is None
    assert param_of(prompts=("x" * MAX_ECHOED,), n=2, stream=stream) is None


def test_the_largest_whole_answer_is_encoded_quickly() -> None:
    """In well under a second on a busy machine (50 ms on an idle one), conversion apart, which is spread over time."""
    shape = ChatShape(Heading("id", 1, "m"), 1, logprobs=True)
    one = Alternative("token", -1.25, b"token")
    shape.absorb([Delta(1, 0, "x", 1, [TokenLogprob(one, [one] * 20)]) for _ in range(MAX_WHOLE_LOGPROBS // 21)])
    began = time.process_time()
    msgspec.json.encode(shape.whole())
    assert time.process_time() - began < 0.5
