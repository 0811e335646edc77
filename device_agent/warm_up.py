"""A first answer before the first request: kernels are compiled, memory is taken and modules are imported by it.

It runs on the device's own layers alone, so no cloud is needed and what it says is nonsense; it leaves no trace: what
drafting learns of it is learnt by a way of its own, which ends with it.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from functools import partial
from time import monotonic

import structlog
import torch

from device_agent.answering.answer import ServedChain
from device_agent.chain.chain import Chain
from device_agent.chain.prefill import prefill
from device_agent.chain.reader import AnyReader
from device_agent.chain.source import Source
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay
from drafting.choosing import Chooser
from drafting.hybrid import HybridDrafter
from service.draft_settings import DraftSettings
from split_model.sampling import SamplingParams
from split_model.warming import WARM_UP_S, Warming
from wire.errors import SessionFailed
from wire.request_messages import ChatTurn

WANTED_ROWS = 8
"""The head has so many rows of a verification at most, but for rare long ones."""

WARM_ROWS = 256
"""Rows of the longer input that a model reads at first."""

TOKENS = 12
"""Tokens of each of the answers: enough for a few rounds of drafting."""

log = structlog.get_logger()


async def warm_up(model: ServedChain, settings: DraftSettings) -> None:
    """Be ready for the first request of a model. Whatever fails here will tell whoever asks for it."""
    began = monotonic()
    try:
        with suppress(SessionFailed):  # A model without a chat template.
            await model.readers.submit(lambda: model.tokenizer.chat([ChatTurn("user", "Once upon a time")]), "")
        chain = model.chain
        middle = chain.middle
        if middle is not None and (
            middle.hints is not None or not middle.connected
        ):  # Neither cloud nor group is needed.
            chain = Chain(chain.parts, None, chain.compute, chain.chunk)
        source = await chain.sources.read([0] * WANTED_ROWS) if chain.sources is not None else None
        warming = Warming(min(model.max_positions, chain.max_positions) - 1, began)
        await _forwards(chain, warming, source)
        # A hybrid learns for all texts, but computes nothing that its parts do not, and they are drafters here too.
        drafters = [model.ways.drafters.get(name) for name in model.ways.drafters.names if name != HybridDrafter.name]
        for drafter in sorted(drafters, key=lambda each: each is not None):
            for temperature in (0.0, 1.0):
                await _answer(chain, DraftingWay.of(drafter, settings), temperature, warming.until, source)
    except Exception as error:
        log.warning("warming up failed", error=type(error).__name__, why=str(error)[:200])
    else:
        log.info("warmed up", seconds=round(monotonic() - began, 1), sizes=warming.done)


async def _forwards(chain: Chain, warming: Warming, source: Source | None) -> None:
    """Run prompts of the sizes that occur, one after the other."""
    while (rows := warming.next(monotonic())) is not None:
        session = chain.open(rows, source=source)
        try:
            deep = await prefill(session, [0] * rows, min(rows, WANTED_ROWS))
            await session.compute.submit(partial(chain.parts.head.forward, deep))
        finally:
            session.close()


async def _answer(chain: Chain, way: DraftingWay, temperature: float, until: float, source: Source | None) -> None:
    if monotonic() > until:
        return
    prompt = [0, 0]
    chooser = Chooser(SamplingParams(temperature=temperature), prompt, 0, max_tokens=TOKENS)
    session = chain.open(len(prompt) + TOKENS, drafter=way.drafter, source=source)
    try:
        async with aclosing(Generation(session, chooser, way).run()) as tokens:
            async for _ in tokens:
                if monotonic() > until:
                    return
    finally:
        session.close()


async def warm_up_reader(reader: AnyReader) -> None:
    """Be ready for the first request of a model that reads: one short input, one long; where its layers are elsewhere
    and not there yet, not."""
    if not reader.connected:
        return
    began = monotonic()
    try:
        patches, limit = reader.spec.patches, reader.spec.position_limit or WARM_ROWS
        for rows in (WANTED_ROWS, min(WARM_ROWS, limit, reader.max_positions)):
            image = None if patches is None else torch.zeros(patches.channels, *patches.image)
            await reader.read([([0] * rows, None) if image is None else image], lambda rows, lengths: None)
            if monotonic() > began + WARM_UP_S:
                break
    except Exception as error:
        log.warning("warming up failed", error=type(error).__name__, why=str(error)[:200])
    else:
        log.info("warmed up", seconds=round(monotonic() - began, 1))
