"""Where the time of an answer goes: parts that add up, whatever becomes of the cloud, and none where it has no part."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from checkpoints import DEMO
from clouds import cloud_here, device_hello, remote_middle
from hypothesis import given
from hypothesis import strategies as st
from oracle import prompt_for
from served_chains import LONG_DRAFTS, served

from device_agent.answering.answer import ServedChain, answer
from device_agent.answering.times import cut
from device_agent.cloud.asked import Turn
from device_agent.cloud.attachment import LONGEST_US, count
from device_agent.cloud.remote import RemoteSubmodel
from device_agent.speculative.drafters import Drafters
from drafting.small_model import SmallModelDrafter
from split_model.checkpoint import Checkpoint
from wire.connection import Connection, Role, State
from wire.limits import CLOUD_LINK, MAX_TIMES
from wire.messages import AnyMessage
from wire.outbox import Outgoing
from wire.request_messages import Finished, Generate, Sampling, Spent, Timings
from wire.session_messages import Timing

PROMPT = prompt_for(DEMO, 60)
TOKENS = 12
moments = st.floats(0, 1e4)
counts = st.integers(0, 2**32 - 1)


def total(spent: Spent) -> int:
    """All of it, in microseconds; none of its parts is less than nothing."""
    parts = spent.device_us, spent.link_us, spent.queue_us, spent.step_us
    assert min(parts) >= 0
    return sum(parts)


def begun(at: float) -> Turn:
    """A turn of which rows were handed over at once."""
    return Turn(1, at, asked_at=at)


def answered(turn: Turn, posted: float, now: float, queue_us: int, step_us: int) -> None:
    """A wanted answer behind the prompt's end."""
    count(turn, Timing([], []), 1, posted, now, queue_us, step_us)


@given(
    st.lists(moments, min_size=2, max_size=12), st.lists(st.tuples(moments, counts, counts), min_size=12, max_size=12)
)
def test_the_parts_are_the_whole(at: list[float], told: list[tuple[float, int, int]]) -> None:
    """Whatever the cloud says and however early a piece was sent: they add up to the time between the answers."""
    began, *answers = sorted(at)
    times = begun(began)
    assert times.spent is None
    for now, (posted, queue_us, step_us) in zip(answers, told, strict=False):
        answered(times, min(posted, now), now, queue_us, step_us)
    found = times.spent
    assert found is not None and found.answers == len(answers) - 1
    for spent, seconds in ((found.prompt, answers[0] - began), (found.decode, answers[-1] - answers[0])):
        assert seconds * 1e6 - 5 <= total(cut(spent)) <= seconds * 1e6 + 1e-3


def test_a_fork_has_its_prompt_and_a_time_of_its_own() -> None:
    """The prompt's time is that of the session which prefilled it; the rest begins where the fork did."""
    times = begun(1.0)
    answered(times, 1.5, 2.0, 100_000, 200_000)
    answered(times, 2.5, 3.0, 0, 0)
    fork = times.fork(1, 5.0)
    fork.asked_at = 5.0
    answered(fork, 5.25, 6.0, 0, 500_000)
    one, other = times.spent, fork.spent
    assert one is not None and other is not None
    assert other.prompt == one.prompt and (one.answers, other.answers) == (1, 1)
    assert cut(other.decode) == Spent(250_000, 250_000, 0, 500_000)


def test_one_by_hand() -> None:
    """A prompt of 100 ms, 40 of them until its last piece was sent; then a round whose second row, sent before the
    answer to the first came, took the device no time."""
    times = begun(1.0)
    answered(times, 1.04, 1.1, 10_000, 20_000)
    answered(times, 1.13, 1.15, 1_000, 4_000)
    answered(times, 1.14, 1.16, 2_000, 5_000)
    spent = times.spent
    assert spent is not None and spent.answers == 2
    for each, parts in ((spent.prompt, (40, 30, 10, 20)), (spent.decode, (30, 18, 3, 9))):
        found = each.device_s, each.link_s, each.queue_s, each.step_s
        assert found == pytest.approx([part / 1000 for part in parts], abs=2e-6)


def test_times_that_are_told_are_never_more_than_fit() -> None:
    """In microseconds, prompts and rounds apart; what is beyond one message is left out, and one message fits a
    frame even where each is as long as a number can be."""
    turn, took = Turn(1, 0.0, asked_at=0.5), Timing([], [])
    count(turn, took, 0, 0.6, 0.7, 0, 0)
    assert took == Timing([], [])  # The prompt is not answered yet.
    count(turn, took, 1, 0.6, 0.75, 0, 0)
    for number in range(1, MAX_TIMES + 5):
        count(turn, took, 1, 0.6, number * 1e9, 0, 0)
    assert took.ttft_us == [250_000] and took.tbt_us == [LONGEST_US] * MAX_TIMES
    for number in range(1000):
        count(Turn(1, 0.0, asked_at=0.0), took, 1, 0.0, 1e9 + number, 0, 0)
    connection = Connection(Role.DEVICE, CLOUD_LINK, 0.0)
    connection.state = State.OPEN
    assert len(took.ttft_us) == MAX_TIMES and len(connection.frame(took, (), 0.0)) > 2 * MAX_TIMES


def served_over(middle: RemoteSubmodel | None, split: int, **settings: Any) -> AbstractAsyncContextManager[ServedChain]:
    """The demo model, which drafts with itself where that is asked for."""
    spec = Checkpoint.open(DEMO).spec
    drafters = Drafters({"none": None, "itself": SmallModelDrafter.load(str(DEMO), DEMO, spec, torch.float32)}, 0)
    return served(middle, drafters, replace(LONG_DRAFTS, draft_cap=3, **settings), split=split)


async def ask(
    model: ServedChain, draft: str = "none", n: int = 1, **changed: Any
) -> tuple[list[Timings | None], float]:
    """The timings of every choice, and how long whoever asked has waited for the first to be complete."""
    asked = Generate(
        1, "id", "demo", "", list(PROMPT), n, TOKENS, ignore_eos=True, sampling=Sampling(temperature=0.0), draft=draft,
        **changed,
    )  # fmt: skip
    clock = asyncio.get_running_loop().time
    finished: list[tuple[Timings | None, float]] = []

    def hear(message: AnyMessage) -> None:
        if isinstance(message, Finished):
            finished.append((message.timings, clock()))

    began = clock()
    await answer(model, asked, hear)
    return [timings for timings, _ in finished], finished[0][1] - began


def check(timings: Timings | None, waited_s: float) -> Timings:
    """The cloud had part in prompt and rounds, and all of it is within what the client has waited."""
    assert timings is not None
    for spent in (timings.prompt, timings.decode):
        assert spent.step_us > 0 and spent.device_us > 0
    assert total(timings.prompt) + total(timings.decode) <= waited_s * 1e6
    return timings


@pytest.mark.parametrize("stream", ["off", "on"])
async def test_a_cloud_and_a_device(stream: str) -> None:
    """Plain and drafted, rows sent together or one by one; the next turn of a conversation has times of its own."""
    async with (
        cloud_here(DEMO, 2) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served_over(remote, 2, stream_rows=stream) as model,
    ):
        for draft in ("none", "itself"):
            for _ in range(2):
                (timings,), waited_s = await ask(model, draft)
                rounds = check(timings, waited_s).rounds
                assert rounds == TOKENS - 1 if draft == "none" else (TOKENS - 1) / 4 <= rounds < TOKENS - 1
        several, _ = await ask(model, n=3)
        assert len(several) == 3 and None not in several


async def test_a_lost_connection_changes_nothing() -> None:
    """Cut in the prompt and in a round: what is replayed is time of the answer, and no round counts twice."""
    async with (
        cloud_here(DEMO, 2, resume_s=5.0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served_over(remote, 2) as model,
    ):
        link, posts = remote.clouds.links[0], 0
        post = link.post

        def cut(message: AnyMessage, tensors: Any = (), left: Any = None) -> Outgoing:
            nonlocal posts
            entry = post(message, tensors, left)
            posts += 1
            if posts in (3, 12) and link.stream is not None:
                link.stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]
            return entry

        link.post = cut  # type: ignore[method-assign]
        (timings,), waited_s = await ask(model)
        assert posts > 12 and check(timings, waited_s).rounds == TOKENS - 1


async def test_without_a_cloud_or_a_device() -> None:
    """All layers on one side: nothing goes back and forth that could be told apart."""
    async with served_over(None, Checkpoint.open(DEMO).spec.num_layers) as model:
        assert (await ask(model))[0] == [None] == (await ask(model, "itself"))[0]
    async with (
        cloud_here(DEMO, 0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 0, 0)) as remote,
        served_over(remote, 0) as model,
    ):
        assert (await ask(model))[0] == [None]
