"""The one generation loop. It knows token ids and a chain of submodels; it knows no text and no network."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from device_agent.chain import ChainSession
from device_agent.choosing import Choice, Chooser


@dataclass(frozen=True)
class Step:
    """One generated token; ``reason`` says why it is the last: ``stop`` (an end token, without text) or ``length``."""

    choice: Choice
    reason: Literal["stop", "length"] | None


async def generate(
    session: ChainSession, prompt: Sequence[int], chooser: Chooser, end_ids: Collection[int], max_tokens: int
) -> AsyncGenerator[Step, None]:
    """Prefill ``prompt``, then decode one token at a time until an end token or ``max_tokens``.

    Raises:
        SessionFailed: a submodel failed; the session must be closed.
    """
    choice = await session.forward(prompt, 1, chooser)
    for count in range(1, max_tokens + 1):
        if choice.token in end_ids:
            yield Step(choice, "stop")
            return
        if count == max_tokens:
            yield Step(choice, "length")
            return
        yield Step(choice, None)
        choice = await session.forward([choice.token], 1, chooser)
