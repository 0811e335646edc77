"""What a client wants to know of a tokenizer, and whether it is of a size that can be answered at all. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from gateway.errors import RequestError, no_tools
from gateway.prompt_sizes import TextSize, bytes_of_prompt, bytes_of_tools, size_of_prompt
from wire.request_messages import ServedModel
from wire.text_messages import Tokenize, Tokens

TextEndpoint = Literal["tokenize", "detokenize", "input_tokens", "count_tokens"]


@dataclass(frozen=True)
class TextAsk:
    """A question to a tokenizer; the members of ``AnyAsk`` are as there.

    Attributes:
        terms: the question as agents are told; its number and model are left open.
    """

    endpoint: TextEndpoint
    model: str | None
    terms: Tokenize

    draft = ""
    scored_by = ""
    stream = False
    parts = choices = at_once = 1
    priority = 0
    ends = Tokens

    @property
    def task(self) -> Literal["generate"]:
        return "generate"

    @property
    def tenant(self) -> str:
        return self.terms.tenant

    def choices_of(self, part: int) -> range:
        return range(1)

    def most_bytes(self, part: int) -> int:
        prompt = self.terms.prompt if self.terms.ids is None else tuple(self.terms.ids)
        return bytes_of_prompt(prompt) + bytes_of_tools(self.terms.rendering.tools)

    def message(self, part: int, number: int, request_id: str, model: str, at_once: int) -> Tokenize:
        return replace(self.terms, request=number, request_id=request_id, model=model)

    def refused_by(self, model: ServedModel, max_total_tokens: int) -> RequestError | None:
        terms = self.terms
        if terms.rendering.tools and not model.tools:
            return no_tools(model.id)
        param = "messages" if isinstance(terms.prompt, list) else "prompt" if terms.ids is None else "tokens"
        size = size_of_prompt(terms.prompt) if terms.ids is None else TextSize(tokens=len(terms.ids))
        if (message := size.too_long("the prompt", model.max_positions, model)) is None:
            return None
        return RequestError(400, message, code="context_length_exceeded", param=param)
