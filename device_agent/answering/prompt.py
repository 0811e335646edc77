"""A request's prompt as token ids, refused where it cannot fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from device_agent.answering.dialect.thoughts import OPEN, open_in
from device_agent.answering.tokenizer import SLICE, Tokenizer
from wire.errors import Code, SessionFailed
from wire.request_messages import Generate
from wire.text_messages import ChatTurn, Rendering

ENDING: Final = 64
"""Characters at the end of a conversation's text, which show whether the model is to think first."""

COUNTED_FROM: Final = 2
"""Characters for each position from which on a text's tokens are counted before they are made. Fewer are made as soon
as they are counted."""


@dataclass(frozen=True)
class Prompt:
    """Token ids, their text where it is to be echoed (else empty), and how many tokens may follow.

    ``offsets``: where in that text each token begins, where it is echoed with scores; else empty.
    ``ending``: the end of a conversation's text, of ``ENDING`` characters at most; of one whose last message is gone on
    with in the middle of a thought, what that began with.
    ``source``: where the model reads one text and writes another, the ids that are read; ``ids`` is then what its own
    text begins with.
    """

    ids: list[int]
    text: str
    max_tokens: int
    source: list[int] | None = None
    offsets: list[int] = field(default_factory=list)
    ending: str = ""

    @property
    def tokens(self) -> int:
        """Tokens that the client sent."""
        return len(self.asked)

    @property
    def asked(self) -> list[int]:
        """Their ids."""
        return self.ids if self.source is None else self.source


def read_prompt(
    request: Generate,
    tokenizer: Tokenizer,
    max_positions: int,
    default_max_tokens: int,
    vocabulary: int,
    start: int | None = None,
) -> Prompt:
    """The prompt of a request. Takes time for long text: call it on a thread.

    Args:
        max_positions: of prompt and answer together.
        default_max_tokens: tokens of an answer whose request does not say.
        vocabulary: ids are below this.
        start: where the model reads one text and writes another, what the other begins with; both have all positions.

    Raises:
        SessionFailed: ``context_length_exceeded`` or ``invalid_request``.
    """
    param = "prompt" if isinstance(request.prompt, str) else "messages"
    if request.max_tokens == 0 and request.prompt_logprobs is None:
        raise SessionFailed(Code.INVALID_REQUEST, "an answer has at least one token", param="max_tokens")
    if start is not None and request.prompt_logprobs is not None:
        told = "this model reads its prompt and does not say it, so no token of it has a log-probability"
        raise SessionFailed(Code.INVALID_REQUEST, told, param="echo" if request.echo else "prompt_logprobs")
    ids, text, offsets, ending = _read(request, tokenizer, max_positions, vocabulary)
    if not ids:
        raise SessionFailed(Code.INVALID_REQUEST, "the prompt is empty", param="prompt")
    room = max_positions - len(ids)
    if room < (request.max_tokens != 0):
        raise too_long(str(len(ids)), max_positions, param)
    check_known(ids, vocabulary, param)
    most = default_max_tokens if request.max_tokens is None else request.max_tokens
    if start is not None:
        return Prompt([start], text, min(max_positions - 1, most), ids)
    return Prompt(ids, text, min(room, most), offsets=offsets, ending=ending)


def check_known(ids: Sequence[int], vocabulary: int, param: str) -> None:
    """Raises ``SessionFailed`` where text has a token that the model has no row for: tokenizers may know more than the
    model they come with."""
    unknown = max(ids, default=0)
    if unknown >= vocabulary:
        told = f"the text has a special token, number {unknown}, that the tokenizer knows and the model does not"
        raise SessionFailed(Code.INVALID_REQUEST, told, param=param)


class _Read(NamedTuple):
    """What is as long as a prompt that may fit; see ``Prompt``."""

    ids: list[int]
    text: str = ""
    offsets: list[int] = []  # noqa: RUF012 (nobody adds to it)
    ending: str = ""


def _read(request: Generate, tokenizer: Tokenizer, max_positions: int, vocabulary: int) -> _Read:
    located = request.echo and request.prompt_logprobs is not None
    prompt = request.prompt
    if request.prompt_ids is not None:
        ids = list(request.prompt_ids)
        if len(ids) > max_positions:
            return _Read(ids)
        if any(not 0 <= each < vocabulary for each in ids):
            raise SessionFailed(Code.INVALID_REQUEST, f"token ids go from 0 to {vocabulary - 1}", param="prompt")
        if located:
            return _Read(ids, *tokenizer.spread(ids))
        return _Read(ids, tokenizer.decode(ids) if request.echo else "")
    if isinstance(prompt, str):
        check_length(prompt, tokenizer, max_positions, "prompt")
        if located:
            ids, offsets = tokenizer.located(prompt)
            return _Read(ids, prompt, offsets)
        return _Read(tokenizer.text(prompt), prompt if request.echo else "")
    text = rendered_turns(prompt, request.rendering, tokenizer, max_positions)
    thinks = request.rendering.continue_final_message and bool(prompt) and open_in(prompt[-1].content)
    return _Read(tokenizer.rendered(text), ending=OPEN if thinks else text[-ENDING:])


def rendered_turns(
    turns: list[ChatTurn], how: Rendering, tokenizer: Tokenizer, max_positions: int, field: str = "messages"
) -> str:
    """The text of a conversation, refused where it surely has too many tokens; clients call it ``field``."""
    if len(turns) > max_positions:  # A turn is a token at least: so a template is not run on a million of them.
        raise too_long(f"at least {len(turns)}", max_positions, field)
    # How much of the turns it takes over is up to the template. It is quick: 0.06 s for 4 MB.
    text = tokenizer.render(turns, how)
    check_length(text, tokenizer, max_positions, field)
    return text


def check_length(text: str, tokenizer: Tokenizer, max_positions: int, field: str) -> None:
    """Refuse a text that surely has too many tokens, without making them all."""
    if len(text) > max(SLICE, COUNTED_FROM * max_positions):
        tokens = tokenizer.least(text, max_positions)
        if tokens > max_positions:
            raise too_long(f"at least {tokens}", max_positions, field)


def too_long(tokens: str, max_positions: int, field: str) -> SessionFailed:
    """That a prompt has more tokens than the model's context."""
    return SessionFailed(
        Code.CONTEXT_LENGTH_EXCEEDED,
        f"this model's maximum context length is {max_positions} tokens, and the prompt has {tokens}: shorten it",
        param=field,
    )
