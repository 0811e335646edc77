"""How likely tokens are, as gateways are told: those of an answer, and those of a prompt that is scored."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from device_agent.answering.prompt import Prompt
from device_agent.answering.tokenizer import Tokenizer
from device_agent.chain.chain import ChainSession
from device_agent.speculative.scoring import scores
from drafting.choosing import Chosen
from wire.request_messages import Alternative, Generate, PromptToken, Scored, TokenLogprob


def chosen_token(tokenizer: Tokenizer, chosen: Chosen) -> TokenLogprob:
    """One token of an answer, whose log-probability was asked for."""
    assert chosen.logprob is not None
    top = [_alternative(tokenizer, *each) for each in chosen.top]
    return TokenLogprob(_alternative(tokenizer, chosen.token, chosen.logprob), top)


async def prompt_scores(
    request: Generate, prompt: Prompt, tokenizer: Tokenizer, session: ChainSession
) -> AsyncGenerator[Scored, None]:
    """Prefill the prompt of a request that asks for its scores, and tell them for the first choice, piece by piece.

    Raises what ``scores`` does.
    """
    assert request.prompt_logprobs is not None
    offsets, done = prompt.offsets or [0] * len(prompt.ids), 0
    async with aclosing(scores(session, prompt.ids, request.prompt_logprobs)) as pieces:
        async for piece in pieces:
            begin, done = done, done + len(piece)
            end = offsets[done] if done < len(offsets) else len(prompt.text)
            tokens = [
                PromptToken(
                    _alternative(tokenizer, each.token, each.logprob),
                    each.rank,
                    offset,
                    [_alternative(tokenizer, *other) for other in each.top],
                )
                for each, offset in zip(piece, offsets[begin:done], strict=True)
            ]
            yield Scored(request.request, 0, prompt.text[offsets[begin] : end], tokens)


def _alternative(tokenizer: Tokenizer, token: int, logprob: float) -> Alternative:
    text, raw = tokenizer.piece(token)
    return Alternative(text, logprob, raw, token)
