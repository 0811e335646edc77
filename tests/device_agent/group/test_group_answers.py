"""A client of a device whose layers are in a group is told what it would be told by one that has them all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import torch
from checkpoints import DEMO
from groups import PORTAL, group_here, plan_of
from oracle import oracle_tokens, prompt_for
from samples import sample
from served_chains import expected, served

from device_agent.answering.answer import ServedChain, answer
from device_agent.speculative.drafters import Drafters
from drafting.drafter import Drafter
from drafting.lookup import LookupDrafter
from drafting.small_model import SmallModelDrafter
from split_model.checkpoint import Checkpoint
from split_model.reference import Reference
from split_model.sampling import SamplingParams
from wire.messages import AnyMessage
from wire.request_messages import Delta, Done, Generate, Grammar, Sampling

TOKENS = 16
SEED = 11
DRAFTS = ("none", "lookup", "itself")
SPEC = Checkpoint.open(DEMO).spec
FORM = Grammar(
    "json", '{"type":"object","properties":{"name":{"type":"string","maxLength":5}},"required":["name"]}', "form"
)


@pytest.fixture(scope="module")
def drafters() -> Drafters:
    """Nothing, suffixes, and the model itself, of which all is accepted."""
    by_name: dict[str, Drafter | None] = {
        "none": None,
        "lookup": LookupDrafter(),
        "itself": SmallModelDrafter.load(str(DEMO), DEMO, SPEC, torch.float32),
    }
    return Drafters(by_name, 0)


@asynccontextmanager
async def in_a_group(form: str, split: int, drafters: Drafters) -> AsyncIterator[ServedChain]:
    """The demo model, its layers from ``split`` on shared between this device and another one."""
    plan = plan_of(SPEC, form, (PORTAL, "other"), (2.0, 1.0), SPEC.num_layers - split)
    with group_here(DEMO, plan, split) as group:
        async with served(group, drafters, split=split) as model:
            yield model


async def ask(model: ServedChain, ids: tuple[int, ...], **changed: Any) -> tuple[list[bytes], Done]:
    """The bytes of each choice's tokens, and the last message."""
    asked = Generate(1, "id", "demo", "", list(ids), 1, TOKENS, ignore_eos=True, logprobs=0)
    asked = msgspec.structs.replace(asked, **{"sampling": Sampling(temperature=0.0), **changed})
    said: list[AnyMessage] = []
    await answer(model, asked, said.append)
    tokens = [b""] * asked.n
    for message in said:
        if isinstance(message, Delta):
            tokens[message.index] += b"".join(each.chosen.raw for each in message.logprobs or [])
    done = said[-1]
    assert isinstance(done, Done)
    return tokens, done


@pytest.mark.parametrize(("form", "split"), sample([("galaxy-1", 0), ("voltage", 2), ("pipeline", 1)], "voltage-2"))
async def test_drafted_or_not(form: str, split: int, drafters: Drafters) -> None:
    """Greedy as transformers, three choices of one prompt; with a seed as one process says it; and the next turn, which
    goes on from what was kept. Held to a schema it says what a device does that has all layers."""
    prompt = prompt_for(DEMO, 90)
    async with served(None, drafters) as alone:
        held, _ = await ask(alone, prompt, grammar=FORM, max_tokens=40)
    drawn = Reference.load(DEMO).generate(prompt, TOKENS, SamplingParams(temperature=0.8, seed=SEED))
    async with in_a_group(form, split, drafters) as model:
        for draft in DRAFTS:
            said, done = await ask(model, prompt, n=3, draft=draft, tenant=draft)
            assert said == [expected(model, prompt, TOKENS)] * 3
            second = (*prompt, *oracle_tokens(DEMO, prompt, TOKENS), *prompt_for(DEMO, 10, seed=9))
            said, done = await ask(model, second, draft=draft, tenant=draft)
            assert said == [expected(model, second, TOKENS)] and done.cached_tokens == len(prompt) + TOKENS - 1
            assert draft != "itself" or done.accepted > 0
            assert (await ask(model, prompt, draft=draft, grammar=FORM, max_tokens=40))[0] == held
            said, _ = await ask(model, prompt, draft=draft, sampling=Sampling(temperature=0.8, seed=SEED))
            pieces = [model.tokenizer.piece(token)[1] for token in drawn]
            assert said == [b"".join(pieces)] or drawn[-1] in SPEC.eos_token_ids
