"""From the bytes of a request body to a ``TextAsk``, or a ``RequestError`` that names the member at fault. Pure.

Bodies as vLLM has them; that of ``input_tokens`` is a chat request's, and is refused for whatever that is refused for.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gateway import openai_schema as schema
from gateway.errors import RequestError
from gateway.members import bad, decoded
from gateway.parsing import conversation_of, decoded_body, parse_chat, rendering_of
from gateway.request import Ask
from gateway.text_request import TextAsk, TextEndpoint
from gateway.tools import tools_of
from wire.text_messages import Rendering, Tokenize


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize: of a text or a conversation."""

    model: schema.Label | None = None
    prompt: str | None = None
    messages: schema.Turns | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: msgspec.Raw = schema.NULL
    tools: msgspec.Raw = schema.NULL
    tool_choice: msgspec.Raw = schema.NULL
    parallel_tool_calls: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """POST /detokenize. ``tokens`` is a list of token ids, maybe an empty one."""

    tokens: msgspec.Raw
    model: schema.Label | None = None


_TOKENIZE: Final = msgspec.json.Decoder(TokenizeBody)
_DETOKENIZE: Final = msgspec.json.Decoder(DetokenizeBody)
_TOKENS: Final = msgspec.json.Decoder(list[schema.TokenId])


def parse_text(endpoint: TextEndpoint, body: bytes, tenant: str = "") -> TextAsk:
    """Read the request body of a tenant.

    Raises:
        RequestError: it is not JSON, or a member is missing, of the wrong type or out of range.
    """
    if endpoint == "input_tokens":
        return counting(parse_chat(body, tenant), endpoint)
    if endpoint == "detokenize":
        tokens = decoded_body(_DETOKENIZE, body)
        return TextAsk(endpoint, tokens.model, Tokenize(0, "", "", ids=_ids(tokens.tokens), tenant=tenant))
    fields = decoded_body(_TOKENIZE, body)
    if (fields.prompt is None) is (fields.messages is None):
        told = "a request has 'prompt' or 'messages', and not both"
        raise bad("prompt", told, "missing_required_parameter" if fields.prompt is None else "invalid_value")
    special, names = fields.add_special_tokens, bool(fields.return_token_strs)
    if fields.messages is None:
        terms = Tokenize(0, "", "", fields.prompt or "", None, special is not False, names, Rendering(), tenant)
    else:
        rendering = rendering_of(fields, tools_of(fields).told)
        turns = conversation_of(fields.messages)  # A template writes special tokens itself.
        terms = Tokenize(0, "", "", turns, None, bool(special), names, rendering, tenant)
    return TextAsk(endpoint, fields.model, terms)


def counting(ask: Ask, endpoint: TextEndpoint) -> TextAsk:
    """Return the question how many tokens the only prompt of a request has, a conversation."""
    [prompt] = ask.prompts
    assert isinstance(prompt, list)
    terms = Tokenize(0, "", "", prompt, special=False, rendering=ask.terms.rendering, tenant=ask.tenant)
    return TextAsk(endpoint, ask.model, terms)


def _ids(raw: msgspec.Raw) -> list[int]:
    if bytes(raw).count(b",") >= schema.MAX_PROMPT_IDS:
        raise bad("tokens", f"more than {schema.MAX_PROMPT_IDS} token ids")
    try:
        return decoded(raw, _TOKENS, "tokens")
    except RequestError:
        told = f"'tokens' is a list of integers from 0 to {schema.MAX_TOKEN_ID}"
        raise bad("tokens", told, "invalid_type") from None
