"""How long prompts are: in a message, and as far as can be told without their tokenizer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Union

from wire.request_messages import ServedModel
from wire.text_messages import ChatTurn, Tool

Prompt = Union[list[ChatTurn], str, tuple[int, ...]]

TOKEN_BYTES: Final = 5
"""Of a token id in a message."""

TURN_BYTES: Final = 4 * 2**10
"""Of a turn's role and name, and what is around it."""

MOST_CHARACTERS: Final = 32
"""Characters that one token of a text is taken to have, before anybody has counted: ordinary text of any language has
far fewer, so that what is refused for its length is too long."""


class TextSize(NamedTuple):
    """How long a text is, as far as can be told without its tokenizer: ``tokens`` where they were given themselves."""

    characters: int = 0
    tokens: int | None = None

    @property
    def least_tokens(self) -> int:
        """Tokens that it has at least."""
        return self.characters // MOST_CHARACTERS if self.tokens is None else self.tokens

    def too_long(self, what: str, most: int, model: ServedModel) -> str | None:
        """Why it does not fit: it has more than ``most`` tokens, or more characters than a text of the model's length
        can have, where those who serve the model say how many that is."""
        # Clients know the beginning, which is OpenAI's.
        limit = f"this model's maximum context length is {model.max_positions} tokens"
        if self.tokens is not None:
            if self.tokens <= most:
                return None
            return f"{limit}, and {what} has {self.tokens}, of which {most} fit: shorten it"
        if not model.max_characters or self.characters <= model.max_characters:
            return None
        return f"{limit}, {model.max_characters} characters at most, and {what} has {self.characters}: shorten it"


def size_of_prompt(prompt: Prompt) -> TextSize:
    """Return how long a prompt is, as far as can be told."""
    if isinstance(prompt, tuple):
        return TextSize(tokens=len(prompt))
    return TextSize(len(prompt) if isinstance(prompt, str) else sum(len(turn.content) for turn in prompt))


def bytes_of_prompt(prompt: Prompt) -> int:
    """Return how long a prompt is in a message, at most."""
    if isinstance(prompt, tuple):
        return TOKEN_BYTES * len(prompt)
    if isinstance(prompt, str):
        return bytes_of(prompt)
    calls = sum(TURN_BYTES + bytes_of(call.arguments) for turn in prompt for call in turn.tool_calls)
    return calls + sum(TURN_BYTES + bytes_of(turn.content) + bytes_of(turn.reasoning) for turn in prompt)


def bytes_of_tools(tools: Sequence[Tool]) -> int:
    """Return how long tools are in a message, at most."""
    return sum(TURN_BYTES + bytes_of(tool.description) + bytes_of(tool.parameters) for tool in tools)


def characters_of(turn: ChatTurn) -> int:
    """Return the characters of a turn, what was called and thought with it."""
    return len(turn.content) + len(turn.reasoning) + sum(len(call.arguments) for call in turn.tool_calls)


def bytes_of(text: str) -> int:
    """Return how long a text is in a message."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
