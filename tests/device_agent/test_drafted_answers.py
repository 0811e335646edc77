"""What a client sees of a drafted answer is what it would see without: text, log-probabilities, ends, turns."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from checkpoints import DEMO
from clouds import cloud_here, device_hello, local_middle, remote_middle
from fault_proxy import FaultProxy, Faults
from oracle import oracle_tokens
from samples import named_sample, sample
from served_chains import served

from device_agent.answering.answer import ServedChain, answer
from device_agent.sharing.compute import Compute, FairThreads
from device_agent.speculative.drafters import Drafters
from service.draft_settings import DraftSettings
from split_model.submodel import Submodel
from wire.messages import AnyMessage
from wire.request_messages import ChatTurn, Delta, Done, Finished, Generate, Sampling

SPLIT = 2
STORY = [ChatTurn("user", "Tell me a story about a fox who loses a key.")]


def served_by(
    drafters: Drafters, middle: Submodel | None = None, tail: int = 0
) -> AbstractAsyncContextManager[ServedChain]:
    """The demo model; its middle layers here where nobody else has them."""
    compute = Compute()
    rest = middle if middle is not None else local_middle(DEMO, SPLIT, tail, compute)
    return served(rest, drafters, tail=tail, conversations=8, compute=compute)


async def ask(model: ServedChain, draft: str, **changed: Any) -> tuple[list[str], list[str], list[Any], Done]:
    """Text and reason of every choice, the log-probabilities of the first, and the last message."""
    request = Generate(1, "id", "demo", STORY, max_tokens=60, sampling=Sampling(temperature=0.0), draft=draft)
    request = msgspec.structs.replace(request, **changed)
    said: list[AnyMessage] = []
    await answer(model, request, said.append)
    text, reasons, logprobs = [""] * request.n, [""] * request.n, []
    tokens = 0
    for message in said:
        if isinstance(message, Delta):
            text[message.index] += message.text
            tokens += message.tokens
            logprobs += (message.logprobs or []) if message.index == 0 else []
        elif isinstance(message, Finished):
            reasons[message.index] = message.reason
    done = said[-1]
    assert isinstance(done, Done) and done.completion_tokens == tokens, "every token is in a delta"
    return text, reasons, logprobs, done


SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11)
ASKED: dict[str, dict[str, Any]] = {
    "length": {"max_tokens": 37},
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "stop string": {"stop": ["a fox", "lived in"]},
    "stop string in the middle of a token": {"stop": ["e"]},
    "end token": {"max_tokens": 200},
    "choices": {"n": 3, "sampling": SAMPLED},
    "log-probabilities": {"logprobs": 3},
    "penalties": {"sampling": Sampling(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.4)},
    "bias": {"sampling": Sampling(temperature=0.7, seed=5, logit_bias={300: 4.0, 17: -100.0})},
}


@pytest.mark.parametrize(
    "asked", named_sample(ASKED, ["one token", "stop string", "end token", "choices", "penalties"])
)
async def test_it_is_what_it_is_without(asked: dict[str, Any], drafters: Drafters) -> None:
    """Text, reasons, counts and log-probabilities are equal, wherever in an accepted draft the answer ends."""
    async with served_by(drafters) as model:
        text, reasons, logprobs, done = await ask(model, "none", **asked)
        assert (done.proposed, done.accepted) == (0, 0)
        for draft in ("lookup", "itself"):
            found = await ask(model, draft, **asked)
            assert (found[0], found[1]) == (text, reasons)
            assert found[3].completion_tokens == done.completion_tokens
            assert found[3].accepted <= found[3].proposed
            assert len(found[2]) == len(logprobs)
            for one, other in zip(found[2], logprobs, strict=True):
                assert one.chosen.raw == other.chosen.raw
                assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-4)
                assert [each.raw for each in one.top] == [each.raw for each in other.top]
        if done.completion_tokens > 8:
            assert found[3].proposed > 0, "the model as its own drafter does draft"


@pytest.mark.parametrize("stop", [[], pytest.param(["lived in"], marks=pytest.mark.slow)])
async def test_a_next_turn_goes_on_with_its_drafter(stop: list[str], drafters: Drafters) -> None:
    """What was kept of a drafted turn serves the next, exactly, also where a reader stopped inside a draft."""
    async with served_by(drafters) as model:
        for draft in ("none", "lookup", "itself"):
            text, *_ = await ask(model, draft, stop=stop, tenant=draft)
            turns = [*STORY, ChatTurn("assistant", text[0]), ChatTurn("user", "And then?")]
            prompt = model.tokenizer.chat(turns)
            again, _, _, done = await ask(model, draft, prompt=turns, tenant=draft, max_tokens=24, ignore_eos=True)
            assert done.cached_tokens > 0
            assert again[0] == model.tokenizer.decode(oracle_tokens(DEMO, tuple(prompt), 24))


async def test_another_drafter_begins_anew(drafters: Drafters) -> None:
    """A conversation is kept for the drafter that has followed it; a request with another gets the same text."""
    async with served_by(drafters) as model:
        first = await ask(model, "itself", max_tokens=8)
        other = await ask(model, "lookup", max_tokens=8)
        assert other[0] == first[0] and other[3].cached_tokens == 0
        same = await ask(model, "itself", max_tokens=8)
        assert same[0] == first[0] and same[3].cached_tokens > 0


@pytest.mark.parametrize("draft", sample(["none", "lookup", "itself"], "none itself"))
async def test_all_of_a_request_is_done_for_its_tenant(
    draft: str, drafters: Drafters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading, prefill, decoding, drafting, preparing and keeping, the work that answers of the cloud lead to included;
    and what its drafts teach. Another tenant's request that gives up what this one has kept changes nothing in that."""
    tenants: list[str] = []
    submit = FairThreads.submit

    def watched(threads: FairThreads, work: Any, tenant: str, free: bool = False) -> Any:
        tenants.append(tenant)
        return submit(threads, work, tenant, free)

    async with (
        cloud_here(DEMO, SPLIT, 1) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, SPLIT, 1)) as remote,
        served_by(drafters, remote, tail=1) as model,
    ):
        monkeypatch.setattr(FairThreads, "submit", watched)
        monkeypatch.setattr(model.conversations, "_limit", 1)
        both = [ask(model, draft, tenant=tenant, n=2, max_tokens=20) for tenant in ("a", "b")]
        await asyncio.gather(*(asyncio.create_task(each) for each in both))
        assert set(tenants) == {"a", "b"} and len(tenants) > 40
        tenants.clear()
        await asyncio.create_task(ask(model, draft, tenant="a", max_tokens=20))
        assert set(tenants) == {"a"} or (set(tenants) == {"a", "b"} and tenants.count("b") == (draft != "none"))
        assert {tenant for tenant, _ in model.ways._ways} == ({"a", "b"} if draft != "none" else set())


@pytest.mark.parametrize("seed", sample(range(4), "0"))
async def test_a_bad_network_changes_nothing(seed: int, drafters: Drafters) -> None:
    """Lost, doubled and cut frames during verifications, with rows sent one by one or together: the same text."""
    async with (
        cloud_here(DEMO, SPLIT, 0, resume_s=5.0) as cloud,
        FaultProxy(cloud.url, Faults(rate=0.04, most=5, kinds=("drop", "duplicate", "cut", "delay")), seed) as proxy,
        remote_middle([proxy.url, cloud.url], device_hello(DEMO, SPLIT, 0)) as remote,
        served_by(drafters, remote) as model,
    ):
        model.ways._settings = DraftSettings(
            draft_length="fixed", draft_threshold=0.0, draft_cap=4, stream_rows="on" if seed % 2 else "off"
        )
        prompt = tuple(model.tokenizer.chat(STORY))
        truth = model.tokenizer.decode(oracle_tokens(DEMO, prompt, 48))
        for draft in ("itself", "lookup"):
            text, *_ = await ask(model, draft, max_tokens=48, ignore_eos=True)
            assert text[0] == truth


async def test_a_cloud_that_dies_during_verifications_costs_no_token(drafters: Drafters) -> None:
    """Each verification in turn is broken off with rows on their way: another cloud server verifies it again."""
    async with (
        cloud_here(DEMO, SPLIT, 0) as one,
        cloud_here(DEMO, SPLIT, 0) as two,
        remote_middle([one.url, two.url], device_hello(DEMO, SPLIT, 0)) as remote,
        served_by(drafters, remote) as model,
    ):
        truth = model.tokenizer.decode(oracle_tokens(DEMO, tuple(model.tokenizer.chat(STORY)), 40))
        for stream in ("off", "on"):
            model.ways._settings = DraftSettings(
                draft_length="fixed", draft_threshold=0.0, draft_cap=5, stream_rows=stream
            )
            model.ways._ways.clear()
            breaks = 0

            async def break_off() -> None:
                nonlocal breaks
                while True:
                    await asyncio.sleep(0.07)
                    for link in remote.clouds.links:
                        for session in link.sessions:
                            if session._log.waiting and breaks < 4:  # type: ignore[attr-defined]
                                assert link.stream is not None
                                link.stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]
                                breaks += 1
                                break

            breaking = asyncio.create_task(break_off())
            text, *_ = await ask(model, "itself", max_tokens=40, ignore_eos=True)
            breaking.cancel()
            assert text[0] == truth
