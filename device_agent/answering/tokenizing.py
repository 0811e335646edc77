"""What is asked of the tokenizer alone: the tokens of a prompt, as a request with it would have them, and back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from device_agent.answering.answer import ServedChain
from device_agent.answering.prompt import check_length, rendered_turns, too_long
from device_agent.answering.tokenizer import Tokenizer
from device_agent.sharing.compute import served_tenant
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.request_messages import Accepted, Done
from wire.text_messages import Tokenize, Tokens

MAX_NAMES: Final = 2**16
"""Tokens whose names are told: all of them go in one message."""


async def tokenize(model: ServedChain, request: Tokenize, post: Callable[[AnyMessage], None]) -> None:
    """Answer ``request``, from Accepted to Done. It takes no permit: nothing is computed with the model.

    Raises:
        SessionFailed: ``context_length_exceeded`` or ``invalid_request``, as of a request with this prompt.
    """
    served_tenant.set(request.tenant)
    limit = min(model.max_positions, model.chain.max_positions)
    reading = partial(read_tokens, request, model.tokenizer, limit, model.chain.parts.spec.vocab_size)
    tokens = await model.readers.submit(reading, request.tenant)
    post(Accepted(request.request, 0))
    post(tokens)
    post(Done(request.request, 0, 0))


def read_tokens(request: Tokenize, tokenizer: Tokenizer, max_positions: int, vocabulary: int) -> Tokens:
    """The answer; raises as ``tokenize``. Takes time for long text: call it on a thread."""
    number, prompt = request.request, request.prompt
    if request.ids is not None:
        if len(request.ids) > max_positions:
            raise too_long(str(len(request.ids)), max_positions, "tokens")
        if any(each >= vocabulary for each in request.ids):
            raise SessionFailed(Code.INVALID_REQUEST, f"token ids go from 0 to {vocabulary - 1}", param="tokens")
        return Tokens(number, 0, max_positions, text=tokenizer.whole_text(request.ids))
    param = "prompt" if isinstance(prompt, str) else "messages"
    if isinstance(prompt, str):
        check_length(prompt, tokenizer, max_positions, param)
        text = prompt
    else:
        text = rendered_turns(prompt, request.rendering, tokenizer, max_positions)
    ids = tokenizer.text(text) if request.special else tokenizer.rendered(text)
    if len(ids) > max_positions:
        raise too_long(str(len(ids)), max_positions, param)
    if request.names and len(ids) > MAX_NAMES:
        told = f"the names of {len(ids)} tokens are more than the {MAX_NAMES} that are told at once: leave them out"
        raise SessionFailed(Code.INVALID_REQUEST, told, param="return_token_strs")
    return Tokens(number, 0, max_positions, ids, tokenizer.names(ids) if request.names else None)
