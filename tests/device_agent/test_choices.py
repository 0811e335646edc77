"""Several choices of one prompt: it is prefilled once, and each choice's tokens are those it would have alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import pytest
from checkpoints import DEMO
from clouds import Cloud, cloud_here, device_hello, remote_middle, rows_in, until
from oracle import oracle_tokens, prompt_for
from samples import sample
from served_chains import expected, served

from device_agent.answering.answer import ServedChain, answer
from device_agent.answering.sampling import seed_of
from device_agent.cloud.remote import RemoteSubmodel
from device_agent.speculative.drafters import Drafters
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.request_messages import Delta, Done, Finished, Generate, Sampling

TOKENS = 8
GREEDY, SAMPLED = Sampling(temperature=0.0), Sampling(temperature=1.0, seed=5)
PROMPT = prompt_for(DEMO, 60)


def request(ids: tuple[int, ...] = PROMPT, **changed: Any) -> Generate:
    """A greedy answer to these."""
    asked = Generate(1, "id", "demo", "", list(ids), 1, TOKENS, ignore_eos=True, logprobs=0, sampling=GREEDY)
    return msgspec.structs.replace(asked, **changed)


async def ask(
    model: ServedChain, asked: Generate, heard: Callable[[AnyMessage], None] = lambda message: None
) -> tuple[list[bytes], Done]:
    """The bytes of each choice's tokens, and the last message."""
    tokens: list[list[bytes]] = [[] for _ in range(asked.n)]
    said: list[AnyMessage] = []

    def post(message: AnyMessage) -> None:
        said.append(message)
        if isinstance(message, Delta):
            tokens[message.index] += [each.chosen.raw for each in message.logprobs or []]
        heard(message)

    await answer(model, asked, post)
    done = said[-1]
    assert isinstance(done, Done) and sum(isinstance(message, Finished) for message in said) == asked.n
    return [b"".join(each) for each in tokens], done


def forks_of(cloud: Cloud) -> int:
    """Sessions that began as forks."""
    return int(cloud.server.engine.metrics.forks._value.get())


@pytest.mark.parametrize("tail", [0, 2])
async def test_eight_choices_have_one_prefill(tail: int, drafters: Drafters, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt's rows come to the cloud once, and each choice's own behind it; all say what transformers says; the
    prompt counts once, and what is kept goes on in the next turn."""
    prompt = prompt_for(DEMO, 300)
    async with (
        cloud_here(DEMO, 2, tail) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, tail)) as remote,
        served(remote, drafters, tail=tail, permits=16) as model,
    ):
        rows = rows_in(cloud, monkeypatch)
        said, done = await ask(model, request(prompt, n=8))
        assert said == [expected(model, prompt, TOKENS)] * 8
        assert sum(rows) == 300 + 8 * (TOKENS - 1)
        assert forks_of(cloud) == 7
        assert (done.prompt_tokens, done.cached_tokens, done.completion_tokens) == (300, 0, 8 * TOKENS)
        await until(lambda: len(cloud.server.engine.ledger.entries) == len(model.conversations) == 1)

        rows.clear()
        second = (*prompt, *oracle_tokens(DEMO, prompt, TOKENS), *prompt_for(DEMO, 10, seed=9))
        said, done = await ask(model, request(second, n=3))
        held = 300 + TOKENS - 1
        assert said == [expected(model, second, TOKENS)] * 3
        assert (done.prompt_tokens, done.cached_tokens) == (len(second), held)
        assert sum(rows) == len(second) - held + 3 * (TOKENS - 1)


@pytest.mark.parametrize(
    ("where", "draft"), sample(product(("cloud", "here"), ("none", "lookup", "itself")), "cloud-lookup here-itself")
)
async def test_each_choice_is_what_it_is_alone(where: str, draft: str, drafters: Drafters) -> None:
    """Sampled, by its own seed: forked or not, drafted or not, with the middle layers in a cloud or here."""
    async with (
        cloud_here(DEMO, 2, 0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served(remote if where == "cloud" else None, drafters, permits=16) as model,
    ):
        said, _ = await ask(model, request(n=4, sampling=SAMPLED, draft=draft, max_tokens=24))
        assert len(set(said)) == 4
        for index, each in enumerate(said):
            own = msgspec.structs.replace(SAMPLED, seed=seed_of(5, index))
            alone, _ = await ask(model, request(sampling=own, draft="none", max_tokens=24, tenant=str(index)))
            assert alone == [each]
        assert forks_of(cloud) == (3 if where == "cloud" else 0)


@pytest.mark.parametrize("permits", [1, 2])
async def test_choices_may_begin_long_after_the_first_has_ended(
    permits: int, drafters: Drafters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer permits than choices the prompt stays until the last of them has begun, and none waits for ever; then
    it is kept for the next turn like any other."""
    async with (
        cloud_here(DEMO, 2, 0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served(remote, drafters, permits=permits) as model,
    ):
        rows = rows_in(cloud, monkeypatch)
        opened: list[int] = []
        said, _ = await ask(model, request(n=5), lambda message: opened.append(len(cloud.server.engine.ledger.entries)))
        assert said == [expected(model, PROMPT, TOKENS)] * 5
        assert sum(rows) == len(PROMPT) + 5 * (TOKENS - 1)
        assert max(opened) <= permits + 2, "those that wait hold nothing"
        await until(lambda: len(cloud.server.engine.ledger.entries) == len(model.conversations) == 1)


@pytest.mark.parametrize("permits", [1, 16])
async def test_an_end_in_the_middle_ends_all(permits: int, drafters: Drafters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled while it prefills, when the first token is there, or when the first choice has ended and others have
    not begun; or where the first fails: nothing is left of any choice but, where the first has ended, its turn."""
    async with (
        cloud_here(DEMO, 2, 0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served(remote, drafters, permits=permits) as model,
    ):
        engine = cloud.server.engine
        for number, kind in enumerate((None, Delta, Finished)):
            tenant = str(number)
            ended = asyncio.Event()

            def heard(message: AnyMessage, kind: type | None = kind, ended: asyncio.Event = ended) -> None:
                if kind is None or isinstance(message, kind):
                    ended.set()

            asked = request(n=3, max_tokens=40, tenant=tenant, sampling=SAMPLED)
            task = asyncio.create_task(ask(model, asked, heard))
            await ended.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            kept = len(model.conversations)
            assert kept <= (kind is Finished)
            await until(lambda kept=kept: len(engine.ledger.entries) == kept)

        async def broken(*_: Any) -> None:
            raise RuntimeError("broken")

        kept = len(model.conversations)
        monkeypatch.setattr(engine._runner, "run", broken)
        with pytest.raises(SessionFailed) as failed:
            await ask(model, request(n=3, tenant="failing"))
        assert failed.value.code is Code.INTERNAL
        monkeypatch.undo()
        await until(lambda: len(engine.ledger.entries) == kept)
        said, _ = await ask(model, request(n=3, tenant="again"))
        assert said == [expected(model, PROMPT, TOKENS)] * 3


@pytest.mark.parametrize("code", [Code.UNKNOWN_SESSION, Code.BAD_POSITION, Code.SESSION_LIMIT, Code.INTERNAL])
async def test_a_fork_that_is_refused_is_replayed(
    code: Code, drafters: Drafters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From what the device has: the rows go over the link, and no token is another."""
    async with (
        cloud_here(DEMO, 2, 0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served(remote, drafters, permits=16) as model,
    ):

        def refusing(*_: Any) -> None:
            raise SessionFailed(code, "no", retry_after_s=0.01)

        rows = rows_in(cloud, monkeypatch)
        monkeypatch.setattr(cloud.server.engine.sessions, "fork", refusing)
        said, done = await ask(model, request(n=3))
        assert said == [expected(model, PROMPT, TOKENS)] * 3
        assert sum(each for each in rows if each > 1) == 3 * len(PROMPT)
        assert done.prompt_tokens == len(PROMPT)


@pytest.mark.parametrize(
    ("draft", "after"), sample(product(("none", "itself"), (1, 2, 4, 9, 15)), "none-1 none-15 itself-4")
)
async def test_a_cloud_that_dies_costs_no_choice_a_token(
    draft: str, after: int, drafters: Drafters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While forks begin, or later: what they share is replayed to another cloud for each, and the answers go on."""
    async with (
        cloud_here(DEMO, 2, 0) as first,
        cloud_here(DEMO, 2, 0) as second,
        remote_middle([first.url, second.url], device_hello(DEMO, 2, 0)) as remote,
        served(remote, drafters, permits=3) as model,
    ):
        deltas = 0

        def heard(message: AnyMessage) -> None:
            nonlocal deltas
            deltas += isinstance(message, Delta)
            if deltas == after:
                deltas += 1
                kill(remote, 0)

        said, _ = await ask(model, request(n=5, draft=draft, max_tokens=16), heard)
        assert said == [expected(model, PROMPT, 16)] * 5
        assert deltas > after and not remote.clouds.links[0].ready
        model.conversations.close()
        await until(lambda: not second.server.engine.ledger.entries)


def kill(remote: RemoteSubmodel, cloud: int) -> None:
    """A cloud server is gone, and does not come back."""
    link = remote.clouds.links[cloud]
    assert link.stream is not None
    link.url = "ws://127.0.0.1:9/device"
    link.stream._transport._websocket.transport.abort()  # type: ignore[attr-defined]


@pytest.mark.system
@pytest.mark.usefixtures("forked_stages")
async def test_forks_in_a_pipeline(drafters: Drafters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage copies its own layers' keys and values."""
    async with (
        cloud_here(DEMO, 2, 0, stages=3, threads=1) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served(remote, drafters, permits=16) as model,
    ):
        await until(lambda: cloud.server.engine.alive, 60)
        rows = rows_in(cloud, monkeypatch)
        said, _ = await ask(model, request(n=6))
        assert said == [expected(model, PROMPT, TOKENS)] * 6
        assert sum(rows) == len(PROMPT) + 6 * (TOKENS - 1) and forks_of(cloud) == 5
