"""Whether a request is of a size that can be answered at all. Pure."""

from __future__ import annotations

from typing import Final

from gateway.errors import RequestError
from gateway.request import Ask, Prompt
from wire.request_messages import ServedModel

UNSAID_TOKENS: Final = 4096
"""What an answer counts whose request does not say how long it may be; an agent's own default is of this size."""

MAX_WHOLE_TOKENS: Final = 2**19
"""Tokens, all choices together, of an answer sent in one piece: it is kept until it is complete."""

MAX_WHOLE_LOGPROBS: Final = 100_000
"""Log-probabilities in an answer sent in one piece: it is encoded at once, while everybody else waits (some 50 ms)."""

MAX_ECHOED: Final = 2**20
"""Characters of prompts in an answer, all choices together: agents send them all at once, before any token."""

ECHOED_TOKEN: Final = 8
"""Characters a token of a prompt counts when it is echoed."""

MOST_CHARACTERS: Final = 32
"""Characters that one token of a text is taken to have, before anybody has counted: ordinary text of any language has
far fewer, so that what is refused for its length is too long."""


def too_large(ask: Ask, max_positions: int, max_total_tokens: int) -> RequestError | None:
    """Why a request asks for too much, None when it does not.

    Args:
        max_positions: positions, prompt and answer, of one request to the model.
        max_total_tokens: tokens that one request may have, its prompts counted once for each answer.
    """
    for at, prompt in enumerate(ask.prompts):
        if isinstance(prompt, tuple) and len(prompt) >= max_positions:
            return RequestError(
                400,
                f"the prompt has {len(prompt)} tokens, with the answer there is room for {max_positions}",
                code="context_length_exceeded",
                param="prompt" if len(ask.prompts) == 1 else f"prompt[{at}]",
            )
    each = min(ask.terms.max_tokens or max_positions, max_positions)
    prompts = sum(min(least_tokens(prompt), max_positions) for prompt in ask.prompts)
    if ask.choices > 1 and ask.choices * each + ask.terms.n * prompts > max_total_tokens:
        return _refused(
            f"{ask.choices} answers of up to {each} tokens, to prompts of {prompts} or more, are more than the "
            f"{max_total_tokens} tokens one request may have, its prompts counted once for each answer: "
            "lower 'max_tokens' or 'n'",
            "n",
        )
    return _too_much_at_once(ask, max_positions)


def least_tokens(prompt: Prompt) -> int:
    """Tokens that a prompt has at least."""
    if isinstance(prompt, tuple):
        return len(prompt)
    characters = len(prompt) if isinstance(prompt, str) else sum(len(turn.content) for turn in prompt)
    return characters // MOST_CHARACTERS


def too_long(ask: Ask, model: ServedModel) -> RequestError | None:
    """Why a prompt has more text than the model's positions can hold, whatever its tokens are; None when it has not, or
    those who serve the model do not say what they hold."""
    for at, prompt in enumerate(ask.prompts):
        if isinstance(prompt, tuple) or not model.max_characters:
            continue
        characters = len(prompt) if isinstance(prompt, str) else sum(len(turn.content) for turn in prompt)
        if characters > model.max_characters:
            param = (
                "messages" if not isinstance(prompt, str) else "prompt" if len(ask.prompts) == 1 else f"prompt[{at}]"
            )
            return RequestError(
                400,
                f"the prompt has {characters} characters, and the {model.max_positions} tokens of this model's context "
                f"have {model.max_characters} at most: shorten it",
                code="context_length_exceeded",
                param=param,
            )
    return None


def _too_much_at_once(ask: Ask, max_positions: int) -> RequestError | None:
    echoed = ask.terms.n * sum(len(each) * (ECHOED_TOKEN if isinstance(each, tuple) else 1) for each in ask.prompts)
    if ask.terms.echo and echoed > MAX_ECHOED:
        return _refused(
            "the prompts to echo, once for each answer, are too long: leave 'echo' out or lower 'n'", "echo"
        )
    if ask.stream:
        return None
    tokens = ask.choices * min(ask.terms.max_tokens or UNSAID_TOKENS, max_positions)
    if tokens > MAX_WHOLE_TOKENS:
        return _refused(
            f"answers of up to {tokens} tokens are more than the {MAX_WHOLE_TOKENS} that are sent in one piece: "
            "ask for a stream, or lower 'max_tokens' or 'n'",
            "max_tokens",
        )
    logprobs = 0 if ask.terms.logprobs is None else tokens * (1 + ask.terms.logprobs)
    if logprobs > MAX_WHOLE_LOGPROBS:
        return _refused(
            f"{logprobs} log-probabilities (answers x tokens x alternatives) are more than the "
            f"{MAX_WHOLE_LOGPROBS} that are sent in one piece: ask for a stream, or set a lower 'max_tokens'",
            "logprobs" if ask.endpoint == "completions" else "top_logprobs",
        )
    return None


def _refused(message: str, param: str) -> RequestError:
    return RequestError(400, message, code="invalid_value", param=param)
