"""What is too large to be answered, and what is only too large for one piece."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from gateway.admission import MAX_ECHOED, MAX_WHOLE_LOGPROBS, MAX_WHOLE_TOKENS, too_large
from gateway.asking import Ask
from gateway.replies import ChatShape
from gateway.reply_schema import Heading
from wire.messages import Alternative, Delta, Sampling, TokenLogprob


def ask(**members: Any) -> Ask:
    fields: dict[str, Any] = {
        "endpoint": "completions", "model": None, "prompts": ("Hi",), "n": 1, "max_tokens": 16, "stop": (),
        "stop_token_ids": (), "ignore_eos": False, "echo": False, "logprobs": None, "sampling": Sampling(),
        "stream": False, "include_usage": False,
    }  # fmt: skip
    return Ask(**fields | members)


def param_of(max_positions: int = 2**20, max_total_tokens: int = 2**22, **members: Any) -> str | None:
    """The member at fault, None when there is none."""
    refused = too_large(ask(**members), max_positions, max_total_tokens)
    assert refused is None or refused.status == 400
    return refused.param if refused else None


def test_prompts_and_answers_have_to_fit() -> None:
    """Into the positions of the model, and what one request may ask for."""
    assert param_of(max_positions=3, prompts=((1, 2, 3),)) == "prompt"
    assert param_of(max_positions=3, prompts=((1,), (1, 2, 3))) == "prompt[1]"
    assert param_of(max_total_tokens=31, n=2) == "n"
    assert param_of(max_total_tokens=32, n=2) is None


def test_log_probabilities_of_one_piece_are_bounded() -> None:
    """Answers x tokens x alternatives; a stream may have any number."""
    many: dict[str, Any] = {"n": 128, "max_tokens": 350, "logprobs": 20}
    assert param_of(**many) == "logprobs"
    assert param_of(**many, endpoint="chat.completions") == "top_logprobs"
    assert param_of(**many, stream=True) is None
    assert param_of(**many | {"logprobs": None}) is None
    assert param_of(max_tokens=MAX_WHOLE_LOGPROBS // 21, logprobs=20) is None
    assert param_of(max_tokens=MAX_WHOLE_LOGPROBS // 21 + 1, logprobs=20) == "logprobs"


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
