"""From the bytes of a request body to a ``ResponseAsk``: a chat's, and the response before anything is said. Pure.

Decisions where OpenAI leaves room: what cannot be done is refused by its name; ``instructions`` are the system's turn
before all others, and neither they nor tools are taken over from earlier responses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.forms import form_of, text_format
from gateway.members import MAX_SHOWN, bad, decoded, whole
from gateway.openai_schema import MAX_TURNS
from gateway.parsing import decoded_body, terms_of, token_limit
from gateway.request import Ask
from gateway.responses.items import Item, items_of, turns_of
from gateway.responses.kept import not_found
from gateway.responses.repeated import TEXT, repeated_choice, repeated_format, repeated_tools
from gateway.responses.response_objects import ResponseObject, TextConfig
from gateway.responses.response_schema import ENCRYPTED, LOGPROBS, MAX_METADATA_BYTES, Metadata, ResponsesBody
from gateway.responses.response_tools import response_tools
from wire.request_messages import Generate, Rendering

ID: Final = re.compile(r"resp_[0-9a-f]{32}")

_BODY: Final = msgspec.json.Decoder(ResponsesBody)
_METADATA: Final = msgspec.json.Decoder(Metadata)

UNSAID: Final = ResponseObject("", 0, "")


@dataclass(frozen=True)
class ResponseAsk(Ask):
    """A request for a response.

    Attributes:
        response: it, before anything is said.
        items: all that it is made of, earlier turns first.
    """

    response: ResponseObject = UNSAID
    items: tuple[Item, ...] = ()


def decoded_response(body: bytes) -> ResponsesBody:
    """Decode a request body.

    Raises:
        RequestError: it is not JSON, or a member is missing, of the wrong type, out of range, or not supported.
    """
    fields = decoded_body(_BODY, body)
    if fields.background:
        raise _unsupported("background", "answer in a stream instead")
    if fields.truncation == "auto":
        raise _unsupported("truncation", "'disabled' alone is: shorten 'input' where it is too long")
    for name, given in (("conversation", fields.conversation), ("prompt", fields.prompt)):
        if bytes(given) != b"null":
            raise _unsupported(name, "use 'previous_response_id' or 'input'")
    for at, each in enumerate(fields.include or ()):
        if each not in (LOGPROBS, ENCRYPTED):
            raise bad(f"include[{at}]", f"'{each[:MAX_SHOWN]}' cannot be included: leave it out", "unsupported_value")
    before = fields.previous_response_id
    if before is not None and not ID.fullmatch(before):
        raise not_found(before, "previous_response_id")
    return fields


def response_ask(fields: ResponsesBody, before: Sequence[Item], id: str, created: int, tenant: str) -> ResponseAsk:
    """Return what a request asks for; raises like ``decoded_response``.

    Args:
        before: the items of the turns before.
        id: the response's own.
        created: seconds since 1970.
    """
    items = (*before, *items_of(fields.input, id.removeprefix("resp_")))
    if len(items) > MAX_TURNS:
        raise bad("input", f"the conversation has more than {MAX_TURNS} items")
    tops = whole(fields.top_logprobs, "top_logprobs") or 0
    logged = LOGPROBS in (fields.include or ())
    if tops and not logged:
        raise bad("top_logprobs", f"'top_logprobs' needs '{LOGPROBS}' in 'include'")
    form = bytes(fields.text.format) if fields.text is not None else b"null"
    grammar = form_of(fields) if form == b"null" else text_format(msgspec.Raw(form))
    limit = token_limit(fields.max_output_tokens, "max_output_tokens")
    own: dict[str, Any] = {"max_tokens": limit, "logprobs": tops if logged else None, "tenant": tenant}
    tools = response_tools(fields)
    own |= {"grammar": grammar, "rendering": Rendering(tools=tools.told), "calling": tools.calling, "thoughts": True}
    terms = terms_of(fields, own)
    return ResponseAsk(
        endpoint="responses",
        model=fields.model,
        prompts=(turns_of(items, fields.instructions),),
        terms=terms,
        stream=bool(fields.stream),
        priority=whole(fields.priority, "priority") or 0,
        response=_response(fields, terms, id, created, tops),
        items=items,
    )


def _response(fields: ResponsesBody, terms: Generate, id: str, created: int, tops: int) -> ResponseObject:
    null = bytes(fields.metadata) == b"null"
    return ResponseObject(
        id=id,
        created_at=created,
        model=fields.model or "",
        instructions=fields.instructions,
        previous_response_id=fields.previous_response_id,
        max_output_tokens=terms.max_tokens,
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        tool_choice=repeated_choice(fields.tool_choice),
        tools=repeated_tools(fields.tools),
        metadata={} if null else decoded(fields.metadata, _METADATA, "metadata", MAX_METADATA_BYTES),
        store=fields.store is not False,
        temperature=None if "temperature" in terms.left_out else terms.sampling.temperature,
        text=TextConfig(TEXT if fields.text is None else repeated_format(fields.text.format)),
        top_logprobs=tops,
        top_p=None if "top_p" in terms.left_out else terms.sampling.top_p,
    )


def _unsupported(name: str, instead: str) -> Exception:
    return bad(name, f"'{name}' is not supported here: {instead}", "unsupported_value")
