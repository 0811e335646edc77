"""A request's prompt as token ids, refused where it cannot fit."""

from __future__ import annotations

from dataclasses import dataclass

from device_agent.tokenizer import Tokenizer
from wire.errors import Code, SessionFailed
from wire.messages import Generate


@dataclass(frozen=True)
class Prompt:
    """Token ids, their text where it is to be echoed, and how many tokens may follow."""

    ids: list[int]
    text: str
    max_tokens: int


def read_prompt(
    request: Generate, tokenizer: Tokenizer, max_positions: int, max_answer: int, vocabulary: int
) -> Prompt:
    """The prompt of a request. Takes time for long text: call it on a thread.

    Args:
        max_positions: of prompt and answer together.
        max_answer: tokens of an answer whose request does not say.
        vocabulary: ids are below this.

    Raises:
        SessionFailed: ``context_length_exceeded`` or ``invalid_request``.
    """
    prompt = request.prompt
    field = "prompt" if isinstance(prompt, str) else "messages"
    if request.max_tokens == 0:
        raise SessionFailed(Code.INVALID_REQUEST, "an answer has at least one token", param="max_tokens")
    text = prompt if isinstance(prompt, str) else "".join(turn.content for turn in prompt)
    if len(text) > max_positions * tokenizer.longest_piece:
        # No token is longer than the longest: there is no need to count them to know that they are too many.
        raise _too_long(f"at least {len(text) // tokenizer.longest_piece}", max_positions, field)
    if request.prompt_ids is not None:
        ids = list(request.prompt_ids)
        if any(not 0 <= each < vocabulary for each in ids):
            raise SessionFailed(Code.INVALID_REQUEST, f"token ids go from 0 to {vocabulary - 1}", param="prompt")
        text = tokenizer.decode(ids) if request.echo else ""
    else:
        ids = tokenizer.text(prompt) if isinstance(prompt, str) else tokenizer.chat(prompt)
    if not ids:
        raise SessionFailed(Code.INVALID_REQUEST, "the prompt is empty", param="prompt")
    room = max_positions - len(ids)
    if room < 1:
        raise _too_long(str(len(ids)), max_positions, field)
    return Prompt(ids, text, min(room, max_answer if request.max_tokens is None else request.max_tokens))


def _too_long(tokens: str, max_positions: int, field: str) -> SessionFailed:
    return SessionFailed(
        Code.CONTEXT_LENGTH_EXCEEDED,
        f"this model's context is {max_positions} tokens and the prompt has {tokens}: shorten it",
        param=field,
    )
