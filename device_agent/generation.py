"""The one generation loop. It knows token ids and a chain of submodels; it knows no text and no network."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from device_agent.chain import ChainSession
from device_agent.choosing import Chooser, Chosen


@dataclass(frozen=True)
class Step:
    """One generated token; ``reason`` says why it is the last: ``stop`` (an end token, without text) or ``length``."""

    chosen: Chosen
    reason: Literal["stop", "length"] | None


async def generate(
    session: ChainSession, prompt: Sequence[int], chooser: Chooser, end_ids: Collection[int], max_tokens: int
) -> AsyncGenerator[Step, None]:
    """Prefill what ``session`` does not hold of ``prompt`` yet, then decode one token at a time until an end token or
    ``max_tokens``.

    Raises:
        SessionFailed: a submodel failed; the session must be closed.
    """

    def follow(chosen: Chosen) -> int | None:
        return None if chosen.token in end_ids or len(chooser.generated) >= max_tokens else chosen.token

    chosen = await session.forward(prompt[session.position :], 1, chooser, follow)
    for count in range(1, max_tokens + 1):
        if chosen.token in end_ids:
            yield Step(chosen, "stop")
            return
        if count == max_tokens:
            yield Step(chosen, "length")
            return
        yield Step(chosen, None)
        chosen = await session.forward([chosen.token], 1, chooser, follow)
