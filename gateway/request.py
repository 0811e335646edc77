"""What a client wants, checked and in our own words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Union

from msgspec.structs import replace

from wire.request_messages import ChatTurn, Generate

Endpoint = Literal["chat.completions", "completions"]
Prompt = Union[list[ChatTurn], str, tuple[int, ...]]


TOKEN_BYTES: Final = 5
"""Of a token id in a message."""

TURN_BYTES: Final = 4 * 2**10
"""Of a turn's role and name, and what is around it."""


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class Ask:
    """What a client wants: answers to each prompt, all with the same settings.

    Attributes:
        model: the model named; None: the first there is.
        terms: how to answer each prompt, as agents are told; their numbers, model and prompt are left open.
    """

    endpoint: Endpoint
    model: str | None
    prompts: tuple[Prompt, ...]
    terms: Generate
    stream: bool = False
    include_usage: bool = False

    @property
    def choices(self) -> int:
        """Answers wanted, all prompts together."""
        return self.terms.n * len(self.prompts)

    def most_bytes(self, part: int) -> int:
        """Bytes that the message asking for prompt ``part`` has at most, less what is always short."""
        prompt = self.prompts[part]
        if isinstance(prompt, tuple):
            return TOKEN_BYTES * len(prompt)
        if isinstance(prompt, str):
            return _bytes_of(prompt)
        return sum(TURN_BYTES + _bytes_of(turn.content) for turn in prompt)

    def generate(self, part: int, number: int, request_id: str, model: str, at_once: int = 0) -> Generate:
        """The message that asks an agent for the answers to prompt ``part``, so many of them ``at_once`` (0: all)."""
        prompt = self.prompts[part]
        ids = list(prompt) if isinstance(prompt, tuple) else None
        text = "" if isinstance(prompt, tuple) else prompt
        return replace(
            self.terms, request=number, request_id=request_id, model=model, prompt=text, prompt_ids=ids, at_once=at_once
        )
