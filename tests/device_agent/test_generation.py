"""Drafting changes no token: not the drafter, nor how long drafts are, how they are verified or what is prepared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from checkpoints import DEMO
from clouds import cloud_here, device_hello, plain, remote_middle, until
from line_submodel import LineSubmodel
from oracle import oracle_tokens
from samples import sample

from device_agent.answering.tokenizer import Tokenizer
from device_agent.chain.chain import Chain
from device_agent.chain.local import LocalSubmodel
from device_agent.chain.model_ends import DeviceParts
from device_agent.sharing.compute import Compute, Lane
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay
from drafting.adapter import AdapterDrafter
from drafting.adapter_layer import adapter_shapes
from drafting.choosing import Chooser
from drafting.drafter import Drafter
from drafting.drafter_file import write_drafter
from drafting.hybrid import HybridDrafter
from drafting.lookup import LookupDrafter
from drafting.medusa import MedusaDrafter, medusa_shapes
from drafting.small_model import SmallModelDrafter
from service.draft_settings import DraftSettings
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams
from split_model.slices import middle_slice
from split_model.stack import Stack
from wire.errors import Code, SessionFailed
from wire.request_messages import ChatTurn

SPLIT = 2
TOKENS = 32
FIXED = DraftSettings(draft_length="fixed", draft_threshold=0.3, draft_cap=5)


@lru_cache
def prompts() -> list[tuple[int, ...]]:
    """Chats as the demo model knows them, so that drafts are accepted now and then."""
    tokenizer = Tokenizer.load(DEMO, ())
    lines = [json.loads(line) for line in (DEMO / "heldout.jsonl").read_text().splitlines()]
    chats = [[ChatTurn(turn["role"], turn["content"]) for turn in line["messages"]] for line in lines[::25]]
    return [tuple(tokenizer.chat(chat)) for chat in chats]


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Drafter]:
    """One of every kind: some know nothing, one knows all."""
    checkpoint = Checkpoint.open(DEMO)
    parts = DeviceParts.load(checkpoint, SPLIT, 0, torch.float32)
    folder: Path = tmp_path_factory.mktemp("drafters")
    spec, digest = checkpoint.spec, checkpoint.digest()
    torch.manual_seed(0)
    made: dict[str, Drafter] = {}
    for kind in ("adapter", "fused"):
        tensors = {name: torch.randn(shape) * 0.02 for name, shape in adapter_shapes(spec, kind).items()}
        write_drafter(folder / f"{kind}.safetensors", kind, digest, SPLIT, {}, tensors)
        made[kind] = AdapterDrafter.load(
            folder / f"{kind}.safetensors", spec, digest, SPLIT, torch.float32, parts.head, kind=kind
        )
    heads = {name: torch.randn(shape) * 0.02 for name, shape in medusa_shapes(spec).items()}
    write_drafter(folder / "medusa.safetensors", "medusa", digest, SPLIT, {}, heads)
    made["medusa"] = MedusaDrafter.load(folder / "medusa.safetensors", spec, digest, SPLIT, torch.float32, parts.head)
    made["lookup"] = LookupDrafter()
    made["hybrid"] = HybridDrafter(made["fused"], LookupDrafter())
    made["itself"] = SmallModelDrafter.load(str(DEMO), DEMO, spec, torch.float32)
    return made


@asynccontextmanager
async def chain_here() -> AsyncIterator[Chain]:
    """All layers in this process, the middle ones behind the first ones."""
    compute = Compute()
    checkpoint = Checkpoint.open(DEMO)
    parts = DeviceParts.load(checkpoint, SPLIT, 0, torch.float32)
    middle = LocalSubmodel(Stack.load(checkpoint, middle_slice(checkpoint.spec, SPLIT, 0), torch.float32), compute)
    yield Chain(parts, middle, compute, 16)
    compute.stop()


@asynccontextmanager
async def chain_afar(tail: int = 0) -> AsyncIterator[Chain]:
    """The middle layers in a cloud server, over a real websocket."""
    compute = Compute()
    parts = DeviceParts.load(Checkpoint.open(DEMO), SPLIT, tail, torch.float32)
    async with (
        cloud_here(DEMO, SPLIT, tail) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, SPLIT, tail)) as middle,
    ):
        yield Chain(parts, middle, compute, 0)
    compute.stop()


async def drafted(
    chain: Chain, way: DraftingWay, prompt: tuple[int, ...], params: SamplingParams, tokens: int = TOKENS
) -> tuple[list[int], Generation]:
    """The answer's tokens, end tokens not ending it."""
    session = chain.open(len(prompt) + tokens, len(prompt), 0, way.drafter)
    chooser = Chooser(params, prompt, params.seed or 0, max_tokens=tokens)
    speculation = Generation(session, chooser, way)
    try:
        return [chosen.token async for chosen in speculation.run()], speculation
    finally:
        session.close()


async def undrafted(chain: Chain, prompt: tuple[int, ...], params: SamplingParams) -> list[int]:
    """The same without drafting."""
    return (await drafted(chain, plain(), prompt, params))[0]


KINDS = ("none", "adapter", "fused", "medusa", "lookup", "hybrid", "itself")


@pytest.mark.parametrize("kind", KINDS)
async def test_greedy_equals_transformers_here(kind: str, drafters: dict[str, Drafter]) -> None:
    """With all layers here, every drafter's greedy tokens are those of transformers."""
    async with chain_here() as chain:
        for prompt in prompts()[:2]:
            for settings in (FIXED, DraftSettings()):
                way = DraftingWay.of(drafters.get(kind), settings)
                tokens, _ = await drafted(chain, way, prompt, SamplingParams())
                assert tokens == oracle_tokens(DEMO, prompt, TOKENS)


@pytest.mark.parametrize(("kind", "tail"), sample(product(KINDS, (0, 1)), "adapter-1 fused-0 medusa-1 hybrid-1"))
async def test_greedy_equals_transformers_afar(kind: str, tail: int, drafters: dict[str, Drafter]) -> None:
    """With the middle layers in a cloud server, prepared for all verdicts, rows sent one by one or together."""
    async with chain_afar(tail) as chain:
        prompt = prompts()[1]
        for settings in (FIXED, replace(FIXED, stream_rows="on", prepare="last"), DraftSettings()):
            way = DraftingWay.of(drafters.get(kind), settings)
            tokens, _ = await drafted(chain, way, prompt, SamplingParams())
            assert tokens == oracle_tokens(DEMO, prompt, TOKENS)


@pytest.mark.parametrize("kind", sample(KINDS, "none fused medusa"))
async def test_the_text_of_a_seed_is_the_same(kind: str, drafters: dict[str, Drafter]) -> None:
    """Sampled with warpers and penalties, the text is that of plain decoding with the same seed."""
    params = SamplingParams(
        temperature=0.9, top_p=0.95, top_k=200, min_p=0.01, repetition_penalty=1.05, presence_penalty=0.2, seed=7
    )
    async with chain_here() as chain:
        prompt = prompts()[2]
        way = DraftingWay.of(drafters.get(kind), FIXED)
        tokens, _ = await drafted(chain, way, prompt, params)
        assert tokens == await undrafted(chain, prompt, params)


@pytest.mark.parametrize("rule", ["rejection", "block"])
async def test_the_other_rules_give_an_answer_again(rule: str, drafters: dict[str, Drafter]) -> None:
    """Rejection and block verification are reproducible with a seed, and a perfect drafter loses almost nothing."""
    params = SamplingParams(temperature=1.0, seed=3)
    async with chain_here() as chain:
        results = []
        for _ in range(2):
            way = DraftingWay.of(drafters["itself"], replace(FIXED, verify=rule, draft_threshold=0.0))  # type: ignore[arg-type]
            tokens, speculation = await drafted(chain, way, prompts()[0], params)
            assert speculation.tally.accepted >= 0.9 * speculation.tally.proposed > 0
            results.append(tokens)
        assert results[0] == results[1] and len(results[0]) == TOKENS


async def test_a_perfect_drafter_is_accepted(drafters: dict[str, Drafter]) -> None:
    """The model as its own drafter is accepted whole, and takes a round for every cap + 1 tokens."""
    async with chain_here() as chain:
        way = DraftingWay.of(drafters["itself"], replace(FIXED, draft_threshold=0.0, draft_cap=5))
        _, speculation = await drafted(chain, way, prompts()[0], SamplingParams())
        tally = speculation.tally
        assert tally.accepted == tally.proposed == TOKENS - 1 - tally.rounds + 0 and tally.rounds <= TOKENS // 6 + 1


async def test_what_was_prepared_is_used(drafters: dict[str, Drafter]) -> None:
    """While verdicts travel the device drafts on; what fits the verdict goes out without a row being run twice."""
    async with chain_afar() as chain:
        way = DraftingWay.of(drafters["itself"], replace(FIXED, draft_threshold=0.0, draft_cap=3))
        way.costs.drafted(1e-5)  # As if drafting took no time, so that all waiting is used.
        tokens, speculation = await drafted(chain, way, prompts()[0], SamplingParams())
        assert tokens == oracle_tokens(DEMO, prompts()[0], TOKENS)
        # On a busy machine verdicts take longer, and more is prepared for those that are less likely.
        assert 4 * speculation.tally.hits > speculation.tally.prepared > 0


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_nothing_is_prepared_where_drafts_are_drawn(
    rule: Literal["rejection", "block"], temperature: float, drafters: dict[str, Drafter]
) -> None:
    """What is prepared depends on what was sent, and would have the same noise. Greedy drafts are not drawn."""
    async with chain_afar() as chain:
        way = DraftingWay.of(drafters["itself"], replace(FIXED, draft_threshold=0.0, draft_cap=3, verify=rule))
        way.costs.drafted(1e-5)
        _, speculation = await drafted(chain, way, prompts()[0], SamplingParams(temperature=temperature, seed=3))
        assert bool(speculation.tally.prepared) == (temperature == 0.0)


async def test_end_tokens_and_limits_hold_inside_a_draft(drafters: dict[str, Drafter]) -> None:
    """Whatever was accepted, an answer ends at its end token or its last allowed one, and the session stands there."""
    async with chain_here() as chain:
        prompt = prompts()[0]
        truth = oracle_tokens(DEMO, prompt, TOKENS)
        for most in (1, 2, 5, 17):
            way = DraftingWay.of(drafters["itself"], FIXED)
            session = chain.open(len(prompt) + TOKENS, 0, 0, way.drafter)
            end = truth[20]
            first = truth.index(end)
            chooser = Chooser(SamplingParams(), prompt, 0, None, {end}, most)
            steps = [step async for step in Generation(session, chooser, way).run()]
            assert [step.token for step in steps] == truth[: min(most, first + 1)]
            assert steps[-1].reason == ("length" if most <= first else "stop")
            assert session.position == len(prompt) + len(steps) - 1
            session.close()


@pytest.mark.parametrize(
    ("kind", "tail", "stream"),
    sample(
        product(("none", "lookup", "fused", "itself", "medusa"), (0, 1), ("auto", "on")),
        "none-1-auto lookup-0-on fused-1-auto itself-1-on itself-0-auto medusa-0-auto medusa-1-on",
    ),
)
async def test_who_reads_no_further_leaves_the_session_usable(
    kind: str, tail: int, stream: Any, drafters: dict[str, Drafter]
) -> None:
    """A reader that stops in the middle of an accepted draft leaves a session to be parked, which goes on exactly."""
    async with chain_afar(tail) as chain:
        prompt = prompts()[0]
        truth = oracle_tokens(DEMO, prompt, TOKENS)
        way = DraftingWay.of(drafters.get(kind), replace(FIXED, stream_rows=stream))
        session = chain.open(len(prompt) + TOKENS, 0, 0, way.drafter)
        chooser = Chooser(SamplingParams(), prompt, 0, max_tokens=TOKENS)
        read: list[int] = []
        async with aclosing(Generation(session, chooser, way).run()) as steps:
            async for step in steps:
                read.append(step.token)
                if len(read) == 11:
                    break
        assert read == truth[:11]
        session.park()
        session.truncate(len(prompt) + 8)
        session.expect(3, len(prompt) + TOKENS)
        ids = (*prompt, *truth[:11])
        again = Generation(session, Chooser(SamplingParams(), ids, 0, max_tokens=12), way)
        assert [step.token async for step in again.run()] == truth[11:23]
        session.close()


async def test_a_long_draft_makes_way(drafters: dict[str, Drafter], monkeypatch: pytest.MonkeyPatch) -> None:
    """While another tenant's work waits for the thread a draft ends after a moment, and nobody's tokens change."""
    monkeypatch.setattr("device_agent.speculative.ahead.DRAFTING_S", 0.0)
    async with chain_here() as chain:
        prompt = prompts()[0]
        proposed = []
        for waits in (True, False):
            monkeypatch.setattr(Lane, "others_wait", waits)
            way = DraftingWay.of(drafters["itself"], FIXED)
            tokens, speculation = await drafted(chain, way, prompt, SamplingParams())
            assert tokens == oracle_tokens(DEMO, prompt, TOKENS)
            proposed.append(speculation.tally.proposed / speculation.tally.rounds)
        assert proposed[0] <= 1 < proposed[1]


async def test_many_at_once_are_as_alone(drafters: dict[str, Drafter]) -> None:
    """Answers that share a device and its way of drafting do not disturb one another."""
    async with chain_afar() as chain:
        ways = [DraftingWay.of(drafters.get(kind), DraftSettings()) for kind in KINDS]
        asked = [(way, prompt) for way in ways for prompt in prompts()[:2]]
        found = await asyncio.gather(*(drafted(chain, way, prompt, SamplingParams(), 24) for way, prompt in asked))
        for (tokens, _), (_, prompt) in zip(found, asked, strict=True):
            assert tokens == oracle_tokens(DEMO, prompt, 24)


@pytest.mark.parametrize("kind", sample(KINDS, "adapter medusa lookup"))
async def test_a_submodel_without_branching_serves_all_but_trees(kind: str, drafters: dict[str, Drafter]) -> None:
    """Drafts that are chains are verified in it; a drafter of trees drafts nothing and changes nothing."""
    async with chain_here() as chain:
        assert chain.middle is not None
        chain.middle = LineSubmodel(chain.middle)
        way, prompt = DraftingWay.of(drafters.get(kind), FIXED), prompts()[0]
        tokens, speculation = await drafted(chain, way, prompt, SamplingParams())
        assert tokens == await undrafted(chain, prompt, SamplingParams()) == oracle_tokens(DEMO, prompt, TOKENS)
        assert (speculation.tally.proposed == 0) == (kind in ("medusa", "none"))


@pytest.mark.parametrize("fewer", [1, 6])
async def test_a_tree_drafter_moves_to_a_smaller_cloud(fewer: int, drafters: dict[str, Drafter]) -> None:
    """Medusa's trees go whole to the first cloud server, and as far as they fit to the one that takes over: the answer
    goes on, also once the first one is back and it is by that one's limits that trees are made."""
    compute, prompt, way = Compute(), prompts()[0], DraftingWay.of(drafters["medusa"], FIXED)
    rows = 1 + way.tree_nodes - fewer
    parts = DeviceParts.load(Checkpoint.open(DEMO), SPLIT, 0, torch.float32)
    async with (
        cloud_here(DEMO, SPLIT, 0) as large,
        cloud_here(DEMO, SPLIT, 0, max_rows=rows, window_rows=rows + 2) as small,
        remote_middle([large.url, small.url], device_hello(DEMO, SPLIT, 0)) as middle,
    ):
        lost = middle.clouds.links[0]
        url, session = lost.url, Chain(parts, middle, compute, 0).open(len(prompt) + TOKENS, 0, 0, way.drafter)
        speculation = Generation(session, Chooser(SamplingParams(), prompt, 0, max_tokens=TOKENS), way)
        found = []
        async for step in speculation.run():
            found.append(step.token)
            if len(found) == 4:
                assert speculation.tally.proposed > 0 and lost.stream is not None
                lost.url = "ws://127.0.0.1:9/device"
                lost.stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]
            if len(found) == 10:
                lost.url, before = url, speculation.tally.proposed
                await until(lambda: lost.ready)
        assert found == oracle_tokens(DEMO, prompt, TOKENS)
        assert speculation.tally.proposed > before
        session.close()
    compute.stop()


async def test_a_session_that_fails_while_rows_are_streamed_says_why(drafters: dict[str, Drafter]) -> None:
    """Whoever waits gets the session's own failure, also when not a single row of the round could be sent."""
    async with chain_afar() as chain:
        way = DraftingWay.of(drafters["itself"], replace(FIXED, stream_rows="on"))
        prompt = prompts()[0]
        session = chain.open(len(prompt) + TOKENS, 0, 0, way.drafter)
        speculation = Generation(session, Chooser(SamplingParams(), prompt, 0, max_tokens=TOKENS), way)
        with pytest.raises(SessionFailed) as failed:
            async for _ in speculation.run():
                session.middle.fail(SessionFailed(Code.TIMEOUT, "gone"))  # type: ignore[union-attr]
        assert failed.value.code is Code.TIMEOUT
        session.close()


async def test_a_finished_answer_keeps_no_draft(drafters: dict[str, Drafter]) -> None:
    """What was drafted behind the end is forgotten: a conversation is kept for long."""
    async with chain_here() as chain:
        prompt = prompts()[0]
        truth = oracle_tokens(DEMO, prompt, TOKENS)
        way = DraftingWay.of(drafters["fused"], FIXED)
        session = chain.open(len(prompt) + TOKENS, 0, 0, way.drafter)
        speculation = Generation(session, Chooser(SamplingParams(), prompt, 0, None, {truth[20]}, TOKENS), way)
        assert [step async for step in speculation.run()]
        assert session.drafts is not None and session.drafts._tree is None  # type: ignore[attr-defined]
        session.close()
