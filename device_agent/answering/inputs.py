"""What a request wants to have read: texts as token ids, refused where they cannot fit, or images still undecoded."""

from __future__ import annotations

from dataclasses import dataclass, replace

from device_agent.answering.prompt import COUNTED_FROM, check_known
from device_agent.answering.tokenizer import SLICE, Tokenizer
from wire.errors import Code, SessionFailed
from wire.reading_messages import Read


@dataclass(frozen=True)
class TextLimits:
    """What a model takes of a text.

    Attributes:
        max_positions: tokens that it reads.
        vocabulary: ids are below this.
        token_types: whether it tells two texts apart.
        prefix, lowers: what is put before a text that is to become a vector, and whether that is in lower case.
    """

    max_positions: int
    vocabulary: int
    token_types: bool
    prefix: str = ""
    lowers: bool = False


def named(request: Read, at: int) -> str:
    """What the client calls input ``at`` of this message."""
    return "input" if request.first is None else f"input[{request.first + at}]"


def read_texts(request: Read, tokenizer: Tokenizer, limits: TextLimits) -> list[tuple[list[int], list[int] | None]]:
    """Ids and token types of each input. Takes time for long text: call it on a thread.

    Raises:
        SessionFailed: ``context_length_exceeded`` or ``invalid_request``, saying which input it is.
    """
    if request.task != "embed":
        limits = replace(limits, prefix="", lowers=False)
    if request.texts:
        return [_text(each, tokenizer, limits, named(request, at)) for at, each in enumerate(request.texts)]
    return [(_ids(each, limits, named(request, at)), None) for at, each in enumerate(request.ids)]


def _text(texts: list[str], tokenizer: Tokenizer, limits: TextLimits, name: str) -> tuple[list[int], list[int] | None]:
    if len(texts) > 1 and not limits.token_types:
        raise SessionFailed(Code.INVALID_REQUEST, f"{name} has two texts: this model reads one at a time", param=name)
    texts = [limits.prefix + each for each in texts]
    if limits.lowers:
        texts = [each.lower() for each in texts]
    for each in texts:
        if len(each) > max(SLICE, COUNTED_FROM * limits.max_positions):
            least = tokenizer.least(each, limits.max_positions)
            if least > limits.max_positions:
                raise _too_long(name, f"at least {least}", limits)
    ids, types = tokenizer.typed(texts)
    if len(ids) > limits.max_positions:
        raise _too_long(name, str(len(ids)), limits)
    if not ids:
        raise SessionFailed(Code.INVALID_REQUEST, f"{name} has no tokens", param=name)
    check_known(ids, limits.vocabulary, name)
    return ids, types if limits.token_types and types is not None and any(types) else None


def _ids(ids: list[int], limits: TextLimits, name: str) -> list[int]:
    if not ids:
        raise SessionFailed(Code.INVALID_REQUEST, f"{name} is empty", param=name)
    if len(ids) > limits.max_positions:
        raise _too_long(name, str(len(ids)), limits)
    if max(ids) >= limits.vocabulary:
        raise SessionFailed(Code.INVALID_REQUEST, f"token ids go from 0 to {limits.vocabulary - 1}", param=name)
    return ids


def _too_long(name: str, tokens: str, limits: TextLimits) -> SessionFailed:
    text = f"this model's maximum context length is {limits.max_positions} tokens, and {name} has {tokens}: shorten it"
    return SessionFailed(Code.CONTEXT_LENGTH_EXCEEDED, text, param=name)
