"""How many tokens a request is taken to have before anybody has counted them. Pure."""

from __future__ import annotations

from typing import Final

from gateway.decisions.ask import DecisionAsk
from gateway.prompt_sizes import Prompt, characters_of
from gateway.reading_request import Input, ReadAsk
from gateway.request import AnyAsk, Ask

CHARACTERS: Final = 4
"""Of a token, about, as OpenAI counts at its door."""

UNSAID: Final = 256
"""Tokens of an answer whose request does not say how long it may be. What comes beyond them is taken as it comes."""


def expected_tokens(ask: AnyAsk) -> int:
    """Return the tokens to reserve for a request: of its prompts, and as many as its answers may have. A question to a
    tokenizer alone has none: no layer computes for it."""
    if isinstance(ask, ReadAsk):
        return sum(map(_of_input, ask.inputs))
    if isinstance(ask, DecisionAsk):
        return _of_text(ask.characters)
    if not isinstance(ask, Ask):
        return 0
    each = UNSAID if ask.terms.max_tokens is None else ask.terms.max_tokens
    told = _of_text(sum(len(tool.description) + len(tool.parameters) for tool in ask.terms.rendering.tools))
    return told + sum(map(_of_prompt, ask.prompts)) + ask.choices * each


def _of_prompt(prompt: Prompt) -> int:
    if isinstance(prompt, tuple):
        return len(prompt)
    return _of_text(len(prompt) if isinstance(prompt, str) else sum(map(characters_of, prompt)))


def _of_input(given: Input) -> int:
    return (
        len(given) if isinstance(given[0], int) else _of_text(sum(len(text) for text in given if isinstance(text, str)))
    )


def _of_text(characters: int) -> int:
    return -(-characters // CHARACTERS)
