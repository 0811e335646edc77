"""How log-probabilities look to clients: in chat, in completions, and those of prompts as vLLM has them. Pure.

One that JSON cannot say becomes ``LEAST_LOGPROB``, as at OpenAI.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Union

from gateway.reply_schema import ContentLogprob, PromptLogprob, TopLogprob
from wire.request_messages import Alternative, PromptToken, TokenLogprob

LEAST_LOGPROB: Final = -9999.0


def content_logprobs(tokens: Iterable[TokenLogprob]) -> list[ContentLogprob]:
    """Return log-probabilities as chat replies have them."""
    return [ContentLogprob(*_told(each.chosen), [TopLogprob(*_told(other)) for other in each.top]) for each in tokens]


Logged = tuple[str, Union[float, None], Union[dict[str, float], None], int]
"""A token of a completion: its name, its log-probability, those of alternatives, and where its text begins; None for
the first token of all."""


def completion_logprobs(tokens: Iterable[TokenLogprob], start: int, end: int) -> list[Logged]:
    """Return log-probabilities as completions have them, of tokens whose text begins at character ``start`` of the
    choice's and may go no further than ``end``: pieces of one character are longer than it, and a stop text is cut off.

    The chosen token is always among the alternatives, so there may be one more than was asked for. Of tokens with the
    same name the likeliest is told.
    """
    told: list[Logged] = []
    for each in tokens:
        told.append(
            (token_name(each.chosen), sayable(each.chosen.logprob), _named(each.top, each.chosen), min(start, end))
        )
        start += len(each.chosen.text)
    return told


def echoed_logprobs(tokens: Iterable[PromptToken]) -> list[Logged]:
    """Return the scores of an echoed prompt's tokens as completions have them."""
    return [
        (token_name(each.token), sayable(each.token.logprob), _named(each.top, each.token), each.offset)
        if each.rank
        else (token_name(each.token), None, None, each.offset)
        for each in tokens
    ]


def prompt_logprob(scored: PromptToken) -> dict[str, PromptLogprob] | None:
    """Return the score of a prompt's token as vLLM has it: its own first, then its alternatives'."""
    if not scored.rank:
        return None
    ranked = ((scored.rank, scored.token), *enumerate(scored.top, 1))
    told: dict[str, PromptLogprob] = {}
    for rank, each in ranked:
        told.setdefault(str(each.id), PromptLogprob(sayable(each.logprob), rank, each.text))
    return told


def token_name(token: Alternative) -> str:
    """Return how completions name a token: by its text, or by its bytes where those are no whole characters."""
    try:
        token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)
    return token.text


def sayable(logprob: float) -> float:
    """Return a log-probability that JSON can carry."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def _named(top: Sequence[Alternative], token: Alternative) -> dict[str, float]:
    told: dict[str, float] = {}
    for each in (*top, token):
        told.setdefault(token_name(each), sayable(each.logprob))
    return told


def _told(token: Alternative) -> tuple[str, float, list[int]]:
    return token.text, sayable(token.logprob), list(token.raw)
