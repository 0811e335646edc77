"""From a tokenizer's answer to bytes at the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from gateway.answer import Answer, Event
from gateway.delivery import Delivery, Desk, Outlet, send_json
from gateway.text_request import TextAsk, TextEndpoint
from wire.text_messages import Tokens


class TokensReply(msgspec.Struct, frozen=True):
    """What tokens a prompt has, as vLLM tells it; ``token_strs`` is null where it was not asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TextReply(msgspec.Struct, frozen=True):
    """What text tokens have, as vLLM tells it."""

    prompt: str


class CountReply(msgspec.Struct, frozen=True):
    """How many tokens a request has, as OpenAI tells it of responses, and llama.cpp's server of chats; Anthropic's has
    no ``object``."""

    input_tokens: int
    object: str | UnsetType = UNSET


COUNTED: Final = "response.input_tokens"


class TokensDelivery(Delivery):
    """The response to a question to a tokenizer."""

    def __init__(self, desk: Desk, ask: TextAsk, request_id: str, began: float) -> None:
        super().__init__(desk, ask, request_id, began)
        self._endpoint = ask.endpoint

    async def _send_whole(self, events: Sequence[Event], model: str, outlet: Outlet) -> None:
        [tokens] = [each for each in events if isinstance(each, Tokens)]
        await send_json(outlet, reply_of(self._endpoint, tokens))

    async def _stream(self, answer: Answer, outlet: Outlet) -> None:
        raise AssertionError("a tokenizer's answer is not streamed")


def reply_of(endpoint: TextEndpoint, told: Tokens) -> TokensReply | TextReply | CountReply:
    """Return what the client gets."""
    if endpoint == "detokenize":
        return TextReply(told.text)
    if endpoint in ("input_tokens", "count_tokens"):
        return CountReply(len(told.ids), COUNTED if endpoint == "input_tokens" else UNSET)
    return TokensReply(len(told.ids), told.max_positions, told.ids, told.names)
