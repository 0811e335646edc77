"""From the bytes of a request body to an ``Ask``, or a ``RequestError`` that names the member at fault. Pure.

Decisions where OpenAI leaves room: ``max_tokens`` is at least 1 in both endpoints, 0 where the prompt is scored (else
there would be nothing to answer), or -1 for as long as the answer gets; an empty ``stop`` stops nothing, and a ``seed``
of -1 is any; ``max_completion_tokens`` wins over ``max_tokens``; the role ``developer`` is told to the model as
``system``; several text parts of a message are joined by line ends; ``top_p`` 0 means the likeliest token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from gateway.errors import RequestError
from gateway.forms import form_of
from gateway.members import (
    allowed_ids,
    bad,
    bad_words,
    calls_of,
    content_texts,
    logit_bias,
    prompts_of,
    stop_ids,
    stop_texts,
    template_members,
    translated,
    whole,
)
from gateway.openai_schema import (
    ANY_SEED,
    AS_LONG_AS_IT_GETS,
    DEFAULT_COMPLETION_TOKENS,
    MAX_CHOICES,
    ChatBody,
    ChatMessage,
    CompletionBody,
    Rendered,
    Sampled,
)
from gateway.prompt_sizes import Prompt
from gateway.request import Ask, Endpoint
from gateway.tools import tools_of
from wire.request_messages import ChatTurn, Generate, Rendering, Sampling
from wire.text_messages import Tool, ToolCall

Body = ChatBody | CompletionBody

USUAL: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Members that models have values of their own for, where a client says nothing of them."""

MAY_BE_SILENT: Final = ("assistant", "function")
"""Roles of messages that may have no content: who called a tool, and a function that gave nothing."""


def parse(endpoint: Endpoint, body: bytes, tenant: str = "", *, streamed: bool = False) -> Ask:
    """Read the request body of a tenant.

    Args:
        streamed: every answer is, where it has come in: what the body says of that means nothing.

    Raises:
        RequestError: it is not JSON, or a member is missing, of the wrong type or out of range.
    """
    read = parse_chat if endpoint == "chat.completions" else parse_completion
    return read(body, tenant, streamed=streamed)


def parse_chat(body: bytes, tenant: str = "", *, streamed: bool = False) -> Ask:
    """Read the body of a chat request; raises like ``parse``."""
    fields = decoded_body(_CHAT, body)
    tops = whole(fields.top_logprobs, "top_logprobs") or 0
    if tops and not fields.logprobs:
        raise bad("top_logprobs", "'top_logprobs' needs 'logprobs' to be true")
    if bytes(fields.function_call) not in (b"null", b'"auto"', b'"none"'):
        raise bad(
            "function_call", "'function_call' is not supported: use 'tools' and 'tool_choice'", "unsupported_value"
        )
    scored = fields.prompt_logprobs is not None
    limit = token_limit(fields.max_tokens, "max_tokens", scored)
    if fields.max_completion_tokens is not None:
        limit = token_limit(fields.max_completion_tokens, "max_completion_tokens", scored)
    own: dict[str, Any] = {"max_tokens": limit, "logprobs": tops if fields.logprobs else None, "tenant": tenant}
    tools = tools_of(fields)
    own |= {"rendering": rendering_of(fields, tools.told), "calling": tools.calling, "thoughts": True}
    return _ask("chat.completions", fields, (conversation_of(fields.messages),), own, streamed)


def parse_completion(body: bytes, tenant: str = "", *, streamed: bool = False) -> Ask:
    """Read the body of a completion request; raises like ``parse``."""
    fields = decoded_body(_COMPLETION, body)
    prompts, n = prompts_of(fields.prompt), whole(fields.n, "n") or 1
    if len(prompts) * n > MAX_CHOICES:
        raise bad("prompt", f"the number of prompts times 'n' is over {MAX_CHOICES}")
    if (whole(fields.best_of, "best_of") or 0) > n:
        raise bad("best_of", "'best_of' above 'n' is not supported", "unsupported_value")
    if fields.suffix:
        raise bad("suffix", "'suffix' is not supported", "unsupported_value")
    echoed = whole(fields.logprobs, "logprobs") if fields.echo else None
    asked = whole(fields.prompt_logprobs, "prompt_logprobs")
    if echoed is not None and asked not in (None, echoed):
        raise bad("prompt_logprobs", "with 'echo', 'prompt_logprobs' and 'logprobs' are the same number")
    scores = echoed if asked is None else asked
    limit: int | None = DEFAULT_COMPLETION_TOKENS
    if fields.max_tokens is not None:
        limit = token_limit(fields.max_tokens, "max_tokens", scores is not None)
    own: dict[str, Any] = {"max_tokens": limit, "tenant": tenant, "prompt_logprobs": scores}
    return _ask("completions", fields, prompts, own, streamed)


def _ask(endpoint: Endpoint, fields: Body, prompts: tuple[Prompt, ...], own: dict[str, Any], streamed: bool) -> Ask:
    """``own``: terms that are not simply the member of their name."""
    if streamed:
        fields.stream = fields.stream_options = None
    if fields.stream_options is not None and not fields.stream:
        raise bad("stream_options", "'stream_options' needs 'stream' to be true")
    if fields.prompt_logprobs is not None and fields.stream:
        told = (
            "'prompt_logprobs' are not streamed: leave 'stream' out, or ask /v1/completions for 'echo' and 'logprobs'"
        )
        raise bad("prompt_logprobs", told)
    return Ask(
        priority=whole(fields.priority, "priority") or 0,
        endpoint=endpoint,
        model=fields.model,
        prompts=prompts,
        terms=terms_of(fields, own),
        stream=streamed or bool(fields.stream),
        include_usage=fields.stream_options is not None and bool(fields.stream_options.include_usage),
        prompt_logprobs=fields.prompt_logprobs is not None,
    )


def terms_of(fields: Sampled, own: dict[str, Any]) -> Generate:
    """Return the terms of a request for text, its prompt left open; raises like ``parse``.

    Args:
        own: terms that are not simply the member of their name.
    """
    open_yet = {"request": 0, "request_id": "", "model": "", "prompt": ""}
    said = _taken(fields, Sampling, {})
    left_out = [name for name in USUAL if name not in said]
    own = {**open_yet, "sampling": Sampling(**said), "left_out": left_out, "grammar": form_of(fields), **own}
    terms = Generate(**_taken(fields, Generate, own))
    if terms.max_tokens is not None and terms.min_tokens > terms.max_tokens:
        raise bad("min_tokens", f"'min_tokens' is at most the {terms.max_tokens} tokens that the answer may have")
    return terms


def _taken(fields: Sampled, message: type[msgspec.Struct], own: dict[str, Any]) -> dict[str, Any]:
    """``own``, and what the body's members give for the message's other fields, each by its own name. A member that is
    left out is left to the message's default."""
    taken = dict(own)
    for name in message.__struct_fields__:
        if name not in own and (value := getattr(fields, name, None)) is not None:
            read = _READ.get(name, whole if name in _whole_members(type(fields)) else None)
            taken[name] = value if read is None else read(value, name)
    return taken


def token_limit(tokens: float | None, param: str, scored: bool = False) -> int | None:
    """The tokens an answer may have, 0 only where the prompt is ``scored``; None: as long as it gets."""
    limit = whole(tokens, param)
    if limit == 0 and not scored:
        told = "or 0 where the prompt's log-probabilities are asked for ('echo' with 'logprobs', or 'prompt_logprobs')"
        raise bad(param, f"'{param}' is at least 1, {AS_LONG_AS_IT_GETS} for as many as fit, {told}")
    return None if limit == AS_LONG_AS_IT_GETS else limit


def rendering_of(fields: Rendered, tools: Sequence[Tool] = ()) -> Rendering:
    """Return how a conversation becomes text, with the tools that the model is told; raises like ``parse``."""
    goes_on = bool(fields.continue_final_message)
    if goes_on and fields.add_generation_prompt:
        told = (
            "'continue_final_message' leaves the last message open, 'add_generation_prompt' begins one: set one of them"
        )
        raise bad("continue_final_message", told)
    begins = not goes_on if fields.add_generation_prompt is None else fields.add_generation_prompt
    members = template_members(fields.chat_template_kwargs, "chat_template_kwargs")
    return Rendering(begins, goes_on, members, list(tools))


def conversation_of(messages: Sequence[ChatMessage]) -> list[ChatTurn]:
    """Return the turns of a conversation; raises like ``parse``."""
    turns, parts, count = [], 0, 0
    for at, message in enumerate(messages):
        param = f"messages[{at}].content"
        texts = content_texts(message.content, param, parts)
        if texts is None and message.role not in MAY_BE_SILENT:
            raise bad(param, f"a message of role '{message.role}' needs content", "invalid_type")
        parts += len(texts or ())
        role = "system" if message.role == "developer" else message.role
        calls: list[ToolCall] = []
        if role == "assistant":
            calls = calls_of(message.tool_calls, f"messages[{at}].tool_calls", count)
            count += len(calls)
        thought = (message.reasoning_content or "") if role == "assistant" else ""
        answers = (message.tool_call_id or "") if role == "tool" else ""
        turns.append(ChatTurn(role, "\n".join(texts or ()), message.name, calls, answers, thought))
    return turns


_READ: Final[dict[str, Callable[[Any, str], Any]]] = {
    "stop": stop_texts,
    "stop_token_ids": stop_ids,
    "bad_words": bad_words,
    "allowed_token_ids": allowed_ids,
    "logit_bias": logit_bias,
    "top_k": lambda given, name: max(whole(given, name) or 0, 0),
    "seed": lambda given, name: None if given == ANY_SEED else whole(given, name),
}
"""Members whose value in the message is another one than in the body."""


@cache
def _whole_members(body: type[Sampled]) -> frozenset[str]:
    """Members that are whole numbers and may be written with a point."""
    return frozenset(name for name, hint in get_type_hints(body).items() if {int, float} <= set(get_args(hint)))


Value = TypeVar("Value")
_CHAT: Final = msgspec.json.Decoder(ChatBody)
_COMPLETION: Final = msgspec.json.Decoder(CompletionBody)


def decoded_body(decoder: msgspec.json.Decoder[Value], body: bytes) -> Value:
    """Decode a request body. Raises ``RequestError``, which names the member at fault."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise translated(str(error)) from None
    except UnicodeDecodeError:
        raise RequestError(400, "the body is not JSON in UTF-8: encode it so", code="invalid_json") from None
    except msgspec.DecodeError as error:  # It says where, and quotes nothing.
        told = f"the body is not JSON in UTF-8: {error}; NaN, Infinity and halves of surrogate pairs are none either"
        raise RequestError(400, told, code="invalid_json") from None
    except RecursionError:
        raise RequestError(400, "the body is nested too deeply: send fewer levels", code="invalid_json") from None
