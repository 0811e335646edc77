"""From the bytes of a request body to an ``Ask``, or a ``RequestError`` that names the member at fault. Pure.

Decisions where OpenAI leaves room: ``max_tokens`` is at least 1 in both endpoints (with 0 there would be nothing to
answer); ``max_completion_tokens`` wins over ``max_tokens``; the role ``developer`` is told to the model as ``system``;
several text parts of a message are joined by line ends; ``top_p`` 0 means the likeliest token, at the agent.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from gateway.asking import Ask, Endpoint, Prompt
from gateway.errors import RequestError
from gateway.openai_schema import (
    DEFAULT_COMPLETION_TOKENS,
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIAS_BYTES,
    MAX_STOP_CHARACTERS,
    MAX_TOKEN_ID,
    ChatBody,
    ChatMessage,
    CompletionBody,
    LogitBias,
    TokenIds,
)
from wire.messages import ChatTurn, Sampling

_TOKEN_ID: Final = re.compile(r"[0-9]{1,10}")
_WHERE: Final = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")


def parse(endpoint: Endpoint, body: bytes) -> Ask:
    """Read a request body.

    Raises:
        RequestError: it is not JSON, or a member is missing, of the wrong type or out of range.
    """
    return parse_chat(body) if endpoint == "chat.completions" else parse_completion(body)


def parse_chat(body: bytes) -> Ask:
    """Read the body of a chat request; raises like ``parse``."""
    fields = _decode(_CHAT, body)
    if fields.top_logprobs is not None and not fields.logprobs:
        raise _bad("top_logprobs", "'top_logprobs' needs 'logprobs' to be true")
    if bytes(fields.tool_choice) not in (b"null", b'"auto"', b'"none"'):
        raise _bad("tool_choice", "this gateway cannot make a model call tools", "unsupported_value")
    conversation = [_turn(message, f"messages[{at}]") for at, message in enumerate(fields.messages)]
    limit = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    return _ask("chat.completions", fields, (conversation,), limit, logprobs, echo=False)


def parse_completion(body: bytes) -> Ask:
    """Read the body of a completion request; raises like ``parse``."""
    fields = _decode(_COMPLETION, body)
    prompts = _prompts(fields.prompt)
    if len(prompts) * (fields.n or 1) > MAX_CHOICES:
        raise _bad("prompt", f"the number of prompts times 'n' is over {MAX_CHOICES}")
    if fields.best_of is not None and fields.best_of > (fields.n or 1):
        raise _bad("best_of", "'best_of' above 'n' is not supported", "unsupported_value")
    if fields.suffix:
        raise _bad("suffix", "'suffix' is not supported", "unsupported_value")
    if fields.echo and fields.logprobs is not None:  # The prompt's own tokens would need log-probabilities too.
        raise _bad("echo", "'echo' together with 'logprobs' is not supported", "unsupported_value")
    limit = DEFAULT_COMPLETION_TOKENS if fields.max_tokens is None else fields.max_tokens
    return _ask("completions", fields, prompts, limit, fields.logprobs, echo=bool(fields.echo))


def _ask(
    endpoint: Endpoint,
    fields: ChatBody | CompletionBody,
    prompts: tuple[Prompt, ...],
    limit: int | None,
    logprobs: int | None,
    echo: bool,
) -> Ask:
    if fields.stream_options is not None and not fields.stream:
        raise _bad("stream_options", "'stream_options' needs 'stream' to be true")
    if fields.response_format is not None and fields.response_format.type != "text":
        raise _bad("response_format.type", "only the response format 'text' is supported", "unsupported_value")
    return Ask(
        endpoint=endpoint,
        model=fields.model,
        prompts=prompts,
        n=fields.n or 1,
        max_tokens=limit,
        stop=_stops(fields.stop),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        echo=echo,
        logprobs=logprobs,
        sampling=_sampling(fields),
        stream=bool(fields.stream),
        include_usage=fields.stream_options is not None and bool(fields.stream_options.include_usage),
        draft=fields.draft or "",
    )


def _sampling(fields: ChatBody | CompletionBody) -> Sampling:
    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    return Sampling(
        temperature=given(fields.temperature, 1.0),
        top_p=given(fields.top_p, 1.0),
        top_k=max(fields.top_k or 0, 0),
        min_p=given(fields.min_p, 0.0),
        presence_penalty=given(fields.presence_penalty, 0.0),
        frequency_penalty=given(fields.frequency_penalty, 0.0),
        repetition_penalty=given(fields.repetition_penalty, 1.0),
        logit_bias=_logit_bias(fields.logit_bias),
        seed=fields.seed,
    )


def _turn(message: ChatMessage, at: str) -> ChatTurn:
    content = message.content
    if content is None:
        if message.role != "assistant":  # Only an assistant's turn may have said nothing, when it called a tool.
            raise _bad(f"{at}.content", f"a message of role '{message.role}' needs content", "invalid_type")
        content = ""
    elif isinstance(content, list):
        texts = []
        for place, part in enumerate(content):
            if part.type != "text" or part.text is None:
                raise _bad(f"{at}.content[{place}]", "only content parts of type 'text', with a text, are supported")
            texts.append(part.text)
        content = "\n".join(texts)
    role = "system" if message.role == "developer" else message.role
    return ChatTurn(role, content, message.name)


def _prompts(prompt: str | list[str | int | list[int]]) -> tuple[Prompt, ...]:
    if isinstance(prompt, str):
        return (_text(prompt, "prompt"),)
    if not prompt:
        raise _bad("prompt", "'prompt' is empty")
    if isinstance(prompt[0], int):
        return (_ids(prompt, "prompt"),)
    if len(prompt) > MAX_CHOICES:
        raise _bad("prompt", f"more than {MAX_CHOICES} prompts")
    several: list[Prompt] = []
    for at, each in enumerate(prompt):
        if isinstance(each, int) or isinstance(each, str) is not isinstance(prompt[0], str):
            raise _bad(f"prompt[{at}]", "the members of 'prompt' are all texts, or all token ids, or all lists of them")
        several.append(_text(each, f"prompt[{at}]") if isinstance(each, str) else _ids(each, f"prompt[{at}]"))
    return tuple(several)


def _text(text: str, at: str) -> str:
    if not text:
        raise _bad(at, "an empty prompt cannot be continued")
    return text


def _ids(ids: object, at: str) -> tuple[int, ...]:
    try:
        return tuple(msgspec.convert(ids, TokenIds))
    except msgspec.ValidationError:
        raise _bad(at, f"a prompt of token ids is a list of at least one integer from 0 to {MAX_TOKEN_ID}") from None


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    if not isinstance(stop, str):
        return tuple(stop or ())
    if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
        raise _bad("stop", f"a stop text has 1 to {MAX_STOP_CHARACTERS} characters")
    return (stop,)


def _logit_bias(raw: msgspec.Raw) -> dict[int, float]:
    if len(bytes(raw)) > MAX_LOGIT_BIAS_BYTES:
        raise _bad("logit_bias", f"more than {MAX_LOGIT_BIAS_BYTES} bytes")
    try:
        given = _LOGIT_BIAS.decode(raw) or {}
    except msgspec.DecodeError as error:
        raise _translated(str(error), "logit_bias") from None
    except UnicodeDecodeError:  # The body's own decoder does not look into what it keeps raw.
        raise _bad("logit_bias", "'logit_bias' is not UTF-8") from None
    if len(given) > MAX_LOGIT_BIAS:
        raise _bad("logit_bias", f"more than {MAX_LOGIT_BIAS} entries")
    for key in given:
        if not _TOKEN_ID.fullmatch(key) or int(key) > MAX_TOKEN_ID:
            raise _bad("logit_bias", f"the keys are token ids: integers from 0 to {MAX_TOKEN_ID}, as strings")
    return {int(key): bias for key, bias in given.items()}


_Body = TypeVar("_Body", ChatBody, CompletionBody)
_CHAT: Final = msgspec.json.Decoder(ChatBody)
_COMPLETION: Final = msgspec.json.Decoder(CompletionBody)
_LOGIT_BIAS: Final[msgspec.json.Decoder[dict[str, float] | None]] = msgspec.json.Decoder(LogitBias)


def _decode(decoder: msgspec.json.Decoder[_Body], body: bytes) -> _Body:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _translated(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise RequestError(400, "the body is not JSON in UTF-8", code="invalid_json") from None
    except RecursionError:
        raise RequestError(400, "the body is nested too deeply", code="invalid_json") from None


def _translated(text: str, inside: str = "") -> RequestError:
    """msgspec's message, ``Expected `int`, got `str` - at `$.n```, its path, from ``inside`` on, as ``param``."""
    where = _WHERE.search(text)
    param = inside + (where.group(1) if where else "")
    reason = _WHERE.sub("", text)
    missing = _MISSING.fullmatch(reason)
    if missing:
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return _bad(param, f"'{param}' is required", "missing_required_parameter")
    code = "invalid_type" if ", got `" in reason else "invalid_value"
    return _bad(param or None, f"'{param}': {reason}" if param else reason, code)


def _bad(param: str | None, message: str, code: str = "invalid_value") -> RequestError:
    return RequestError(400, message, code=code, param=param)
