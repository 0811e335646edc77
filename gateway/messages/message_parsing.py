"""From the bytes of a request body of /v1/messages to a chat's ``Ask``. Pure.

Decisions where Anthropic leaves room: several text blocks of a message are joined by line ends; a last message of the
assistant is gone on with; whether a model is to think is read over, what it has thought is told.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gateway.members import bad, stop_texts, whole
from gateway.messages.blocks import blocks_of, text_of, turns_of
from gateway.messages.message_schema import CountBody, MessagesBody
from gateway.messages.message_tools import message_tools
from gateway.parsing import decoded_body, terms_of
from gateway.request import Ask
from gateway.text_parsing import counting
from gateway.text_request import TextAsk
from wire.text_messages import ChatTurn, Rendering

_BODY: Final = msgspec.json.Decoder(MessagesBody)
_COUNT: Final = msgspec.json.Decoder(CountBody)


def parse_message(body: bytes, tenant: str) -> Ask:
    """Read the request body of a tenant.

    Raises:
        RequestError: it is not JSON, or a member is missing, of the wrong type, out of range, or not supported.
    """
    return _ask(decoded_body(_BODY, body), tenant)


def parse_count(body: bytes, tenant: str) -> TextAsk:
    """Read the body of a question how many tokens a request has; raises like ``parse_message``."""
    return counting(_ask(decoded_body(_COUNT, body), tenant), "count_tokens")


def _ask(fields: MessagesBody, tenant: str) -> Ask:
    for name in ("mcp_servers", "container"):
        if _given(getattr(fields, name)):
            raise bad(name, f"'{name}' is not supported here: leave it out", "unsupported_value")
    turns = _turns(fields)
    goes_on = turns[-1].role == "assistant"
    tools = message_tools(fields)
    rendering = Rendering(not goes_on, goes_on, tools=tools.told)
    own: dict[str, Any] = {"rendering": rendering, "calling": tools.calling, "thoughts": True, "tenant": tenant}
    if _given(fields.stop_sequences):
        own["stop"] = stop_texts(fields.stop_sequences, "stop_sequences")
    return Ask(
        endpoint="messages",
        model=fields.model,
        prompts=(turns,),
        terms=terms_of(fields, own),
        stream=bool(fields.stream),
        priority=whole(fields.priority, "priority") or 0,
    )


def _turns(fields: MessagesBody) -> list[ChatTurn]:
    turns = [ChatTurn("system", text_of(blocks_of(fields.system, "system")))] if _given(fields.system) else []
    count = 0
    for at, message in enumerate(fields.messages):
        param = f"messages[{at}].content"
        blocks = blocks_of(message.content, param, message.role, count)
        told, count = turns_of(message.role, blocks, param, count + len(blocks))
        turns += told
    return turns


def _given(raw: msgspec.Raw) -> bool:
    return bytes(raw) not in (b"null", b"[]", b'""')
