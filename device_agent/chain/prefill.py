"""A prompt's way through a chain, in chunks: while one is on its way or in the cloud, the next is computed here."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from functools import partial

import torch

from device_agent.chain.chain import ChainSession
from device_agent.cloud.chunks import DEFAULT_CHUNK, Chunker
from device_agent.sharing.served_request import served_request
from wire.limits import FIRST_CHUNK

WHOLE_PROMPT = sys.maxsize
"""The chunk of a prompt that is not cut: as many rows as the cloud takes in one forward."""

MAX_AHEAD = 16
"""Chunks computed here and not yet answered. While the cloud is busy with others, the link goes on with ours; so many
of a common size are as many rows as a cloud takes ahead of its answers."""


async def prefill(session: ChainSession, ids: Sequence[int], want: int) -> torch.Tensor:
    """Run new tokens, a long prompt when it is its tenant's turn where the cloud has part in it; the deep hidden states
    ``[want, hidden_size]`` of the last ``want`` of them.

    A fork begins with no new token, ``want`` being 1: that of the prompt's last is there.

    Raises:
        SessionFailed: the cloud refused, failed or is gone; the session must be closed.
    """
    if not ids:
        assert session.prompt_deep is not None and session.position == session.prompt_end and want == 1
        return session.prompt_deep
    async with aclosing(prefilled(session, ids, want)) as chunks:
        outputs = [rows async for rows in chunks]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


async def prefilled(session: ChainSession, ids: Sequence[int], want: int) -> AsyncGenerator[torch.Tensor, None]:
    """Run new tokens, one at least, as ``prefill`` does; of each chunk the deep hidden states that are among the last
    ``want``, once they are there. What whoever takes them does not keep is forgotten: of a prompt of any length no more
    than ``MAX_AHEAD`` chunks are here at once.

    Raises what ``prefill`` does.
    """
    if len(ids) == 1 or not session.waits:
        turn: AbstractAsyncContextManager[None] = nullcontext()
    else:
        turn = session.chain.prompts.turn(session.compute.tenant, len(ids))
    async with turn, aclosing(_run(session, ids, want)) as chunks:
        async for rows in chunks:
            yield rows


async def begun(session: ChainSession, ids: Sequence[int], wanted: int) -> asyncio.Future[torch.Tensor]:
    """Run new tokens, no more than one forward takes: once they are on their way, the answer to wait for, the deep
    hidden states ``[wanted, hidden_size]`` of the last ``wanted`` of them."""
    chain, drafts = session.chain, session.drafts
    shallow = await session.front.forward_from(partial(chain.parts.embedding.forward, ids), len(ids))
    rows = shallow if shallow.is_cpu else await session.compute.submit(partial(session.outward, shallow))
    answer = session.deepen(rows, wanted, len(ids) if chain.download_all else 0)
    if drafts is not None:
        session.compute.submit(partial(drafts.observe, ids, shallow, None))
    return answer


async def _run(session: ChainSession, ids: Sequence[int], want: int) -> AsyncGenerator[torch.Tensor, None]:
    chain, start, begin, progress = session.chain, session.position, 0, served_request.get().progress
    chunker = _chunker(session, len(ids))
    hints = session.hints if not chain.chunk and len(ids) > 1 else None
    answers: deque[asyncio.Future[torch.Tensor]] = deque()
    while True:
        if hints is not None and (advice := hints.take_advice()) is not None:
            chunker.advise(advice[0] - start, advice[1])
        size = chunker.next()
        if not size:
            break
        chunk = ids[begin : begin + size]
        begin += size
        answers.append(await begun(session, chunk, max(0, min(size, want - (len(ids) - begin)))))
        progress.chunk(size, answers[-1])
        while len(answers) > MAX_AHEAD or (len(answers) > 1 and answers[0].done()):
            yield await answers.popleft()
    while answers:  # All of them: a failure anywhere is a hole in a cache.
        deep = await answers.popleft()
        if not answers and want and start < session.prompt_end == start + len(ids):
            session.prompt_deep = deep[-1:].clone()
        yield deep


def _chunker(session: ChainSession, rows: int) -> Chunker:
    """How ``rows`` new rows are cut: by our own size where there is one, else as the cloud advises for any prompt."""
    chain, middle = session.chain, session.chain.middle
    hints = middle.hints if middle is not None else None
    limit = min(chain.front.max_rows, middle.max_rows) if middle is not None else chain.front.max_rows
    default = chain.chunk or (hints.chunk if hints is not None else None) or DEFAULT_CHUNK
    first = (hints.first_chunk or FIRST_CHUNK) if hints is not None and not chain.chunk else None
    return Chunker(rows, default, limit, first)
