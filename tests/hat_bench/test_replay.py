"""Replayed acceptance: a real device and a real cloud take the rounds that were recorded, and the text is right."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from zlib import crc32

import httpx
import pytest
import torch
from bench.acceptance import HAT
from bench.draft_runs import CountedLength, TimedDrafter, answer
from bench.hat import tape as tapes
from bench.hat.replay import ReplayedDrafter, Script
from bench.hat.replay_device import load_replayed
from bench.hat.tape import Draft, Tape
from bench.hat.tape_rounds import chain as chain_of
from bench.hat.tape_rounds import rounds, tree
from bench.hat.wide_model import SMALL, SPLIT, TINY_WIDE, made, next_token, prompt, small_model
from clouds import chain_over, cloud_here, device_hello, remote_middle
from forked import ForkedProcess
from installation import wait_until
from processes import Process, free_port

from device_agent.answering.tokenizer import Tokenizer
from device_agent.chain.chain import Chain
from device_agent.chain.model_ends import DeviceParts
from device_agent.sharing.compute import Compute
from device_agent.speculative.drafters import Drafters, load_drafters
from device_agent.speculative.way import DraftingWay
from drafting.distill.served import Rule, StatedCosts
from drafting.medusa import TREE_NODES
from service.draft_settings import DraftSettings
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams
from wire.request_messages import ChatTurn

VOCAB = TINY_WIDE.vocab
TOKENS = 96


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small one."""
    return made(tmp_path_factory.mktemp("wide") / "wide", TINY_WIDE)


@pytest.fixture(scope="module")
def drafters(wide: Path) -> Drafters:
    """All kinds, replayed."""
    checkpoint = Checkpoint.open(wide)
    parts = DeviceParts.load(checkpoint, SPLIT, 0, torch.float32)
    wanted = ["hybrid", "adapter", "lookup", "medusa", str(small_model(wide))]
    return load_replayed(wanted, wide / "drafters", checkpoint, SPLIT, torch.float32, parts)


@asynccontextmanager
async def device_and_cloud(wide: Path) -> AsyncIterator[Chain]:
    """The middle layers in a cloud server."""
    compute = Compute()
    async with cloud_here(wide, SPLIT) as cloud, remote_middle(cloud.url, device_hello(wide, SPLIT, 0)) as middle:
        yield chain_over(wide, SPLIT, 0, middle, compute, 0)
    compute.stop()


def asked(wide: Path, seed: int, tokens: int = 150) -> list[int]:
    """A prompt."""
    return Tokenizer.load(wide, ()).chat([ChatTurn("user", prompt(tokens, seed, VOCAB))])


def start(ids: Sequence[int]) -> int:
    """The place of the recording that its answer begins at."""
    return crc32(array("I", ids).tobytes())


def expected_text(ids: Sequence[int], tokens: int) -> tuple[int, ...]:
    """The answer."""
    found = [next_token(ids[-1], VOCAB)]
    while len(found) < tokens:
        found.append(next_token(found[-1], VOCAB))
    return tuple(found)


async def run(
    chain: Chain, drafters: Drafters, name: str, ids: Sequence[int], settings: DraftSettings
) -> tuple[DraftingWay, list[tuple[int, int]]]:
    """One answer, which must be right, and its rounds; what drafting costs is stated, not this machine's."""
    drafter = drafters.get(name)
    assert drafter is not None
    way = Rule(name, settings, StatedCosts() if settings.draft_length == "auto" else None).way(drafter)
    way.length = length = CountedLength(way.length)
    found = await answer(chain, ids, TOKENS, SamplingParams(), way)
    assert found.tokens == expected_text(ids, TOKENS)
    return way, length.rounds


@pytest.mark.parametrize("name", ["adapter", "fused", "hybrid", "lookup", SMALL])
async def test_hats_rule_takes_the_rounds_of_the_recording(wide: Path, drafters: Drafters, name: str) -> None:
    """Drafted and accepted tokens of every one, and so tau."""
    tape = tapes.load()[name]
    async with device_and_cloud(wide) as chain:
        ids = asked(wide, 1)
        _, found = await run(chain, drafters, name, ids, HAT)
    assert found == rounds(tape, start(ids), TOKENS, 0.6, 8)


async def test_medusa_takes_the_trees_of_the_recording(wide: Path, drafters: Drafters) -> None:
    """As many of a path's tokens are accepted in every round; equal products may choose another node seldom."""
    tape = tapes.load()["medusa"]
    async with device_and_cloud(wide) as chain:
        ids = asked(wide, 5)
        _, found = await run(chain, drafters, "medusa", ids, HAT)
    at, differing = 0, 0
    for proposed, accepted in found:
        if at + 1 + TREE_NODES < TOKENS:  # Near the end of its positions there are no trees.
            differing += (proposed, accepted) != tree(tape, start(ids) + at, TREE_NODES, TREE_NODES)
        at += accepted + 1
    assert at == TOKENS - 1 and len(found) < 60
    assert differing <= len(found) / 20


@pytest.mark.parametrize("name", ["hybrid", "adapter"])
async def test_the_cost_aware_rule_keeps_what_is_right_by_the_recording(
    wide: Path, drafters: Drafters, name: str
) -> None:
    """However long its drafts are, no more and no less of each is accepted than was recorded."""
    tape = tapes.load()[name]
    async with device_and_cloud(wide) as chain:
        ids = asked(wide, 3)
        way, found = await run(chain, drafters, name, ids, DraftSettings(prepare="none", stream_rows="off"))
    at = 0
    for proposed, accepted in found:
        weights, right = chain_of(tape, start(ids) + at, proposed, 0.0)
        assert (len(weights), right) == (proposed, accepted)
        at += accepted + 1
    assert way.tally.accepted > TOKENS / 4


async def test_the_drafter_underneath_does_its_work(wide: Path) -> None:
    """It observes the text, and is asked about every node."""
    checkpoint = Checkpoint.open(wide)
    parts = DeviceParts.load(checkpoint, SPLIT, 0, torch.float32)
    real = load_drafters(["adapter"], wide / "drafters", checkpoint, SPLIT, torch.float32, parts).get("adapter")
    assert real is not None
    timed = TimedDrafter(real)
    replayed = ReplayedDrafter(timed, tapes.load()["adapter"], "adapter", VOCAB)
    async with device_and_cloud(wide) as chain:
        way = DraftingWay.of(replayed, HAT)
        await answer(chain, asked(wide, 1), TOKENS, SamplingParams(), way)
    assert timed.steps >= way.tally.proposed - way.tally.rounds > 0


def test_runners_up_stand_where_they_stood() -> None:
    """Of the first wrong token the text's is the recorded one of the others; behind it a draft begins anew."""
    wrong = Draft((0.9, 0.4, 0.8), (False,) * 3, 1, 2)
    fresh = Draft((0.7, 0.7), (False,) * 2, 2, 0)
    script = Script(Tape((0.4, 0.2, 0.1), ((wrong, fresh, fresh, fresh),)), "adapter", VOCAB)
    token = 100
    right = next_token(token, VOCAB)
    first = script.said(0, 0, token)
    assert first is not None and first.logits is not None and first.source == "adapter"
    chances = first.logits.softmax(0)
    assert int(chances.argmax()) == right and float(chances.max()) == pytest.approx(0.9, rel=1e-5)
    assert script.child(0, 0, token, right) == (0, 1)
    second = script.said(0, 1, right)
    assert second is not None and second.logits is not None
    best = second.logits.softmax(0).topk(4)
    true = next_token(right, VOCAB)
    assert best.indices.tolist().index(true) == 2
    assert best.values.tolist() == pytest.approx([0.4, 0.24, 0.12, 0.06], rel=1e-4)
    assert script.child(0, 1, right, int(best.indices[0])) == (0, 2)
    assert script.child(0, 1, right, true) == (2, 0)
    assert script.said(0, 3, 200) is None


@pytest.mark.slow
@pytest.mark.system
def test_the_agent_serves_with_it_and_says_so(wide: Path, tmp_path: Path) -> None:
    """The device's own command line; a client gets the text."""
    port = free_port()
    gateway = ForkedProcess("gateway", "--port", str(port), log=tmp_path / "gateway.log", port=port)
    agent = Process(
        "bench.hat.replay_device",
        *f"--model {wide} --mode local --split 1 --draft adapter --draft {small_model(wide)}".split(),
        *("--draft-length", "fixed", "--gateway", f"ws://127.0.0.1:{port}"),
        log=tmp_path / "agent.log",
    )
    words = prompt(60, 1, VOCAB)
    with gateway, agent:
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", trust_env=False, timeout=30)
        body = {"model": "wide", "messages": [{"role": "user", "content": words}], "max_tokens": 40, "temperature": 0}
        tokenizer = Tokenizer.load(wide, ())
        wait_until(lambda: bool(client.get("/models").json()["data"]))
        response = client.post("/chat/completions", json=body)
        assert response.status_code == 200, response.text
        answered = tokenizer.text(response.json()["choices"][0]["message"]["content"])
        client.close()
    assert tuple(answered) == expected_text(tokenizer.chat([ChatTurn("user", words)]), 40)
    assert "acceptance is replayed" in agent.output
