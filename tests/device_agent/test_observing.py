"""What an agent says of its work while somebody watches, and where the tokens of its answers came from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from checkpoints import DEMO
from clouds import cloud_here, device_hello, local_middle, remote_middle, until
from msgspec.structs import replace
from oracle import oracle_tokens, prompt_for
from served_chains import LONG_DRAFTS, served

from device_agent.agent import Agent
from device_agent.answering.answer import answer
from device_agent.answering.origins import Origins
from device_agent.sharing.compute import Compute
from device_agent.sharing.observing import Observing
from device_agent.sharing.progress import Marks, Progress
from device_agent.speculative.drafters import Drafters
from drafting.choosing import Chosen
from split_model.hints import TimeSpent, TurnSpent
from wire.message import Failed
from wire.messages import AnyMessage
from wire.observed_messages import MAX_MARKS, CloudFigures, Observe, Observed, ObservedRequest, Wire
from wire.origins import Origin, Spent
from wire.request_messages import AgentHello, Delta, Done, Generate, Sampling, ServedModel

PROMPT = prompt_for(DEMO, 200)
GREEDY = Sampling(temperature=0.0)
WIRE = Wire("10.0.0.2:8001", "ready", 1000, 2, 3)


class Said(list[AnyMessage]):
    """Stands for the connection to a gateway."""

    queued_bytes = 0

    def post(self, message: AnyMessage) -> None:
        self.append(message)

    def withdraw(self, number: int) -> bool:
        return False

    @property
    def observed(self) -> list[Observed]:
        return [each for each in self if isinstance(each, Observed)]


def agent_of(model: Any, wires: Callable[[], list[Wire]]) -> tuple[Agent, Said]:
    """An agent that serves a model, and what it says."""
    hello, said = AgentHello("a", "", [ServedModel("m", 1024, 1)], 32), Said()
    agent = Agent(["ws://127.0.0.1:9"], hello, model, lambda: None, mode="hat", wires=wires)
    agent._stream = said  # type: ignore[assignment]
    return agent, said


def steps(said: Said) -> int:
    """Steps of the only cloud, as it was told last."""
    figures = said.observed[-1].wires[0].cloud
    return 0 if figures is None else figures.steps


async def test_it_says_nothing_unasked_and_stops_when_it_is_told_to() -> None:
    """And then as often as it is asked, but never too often."""
    told: list[Observed] = []
    observing = Observing("local", lambda: [WIRE], told.append)
    observing.begin(1).verdict(2, 3, 0.1)
    observing.asked(1)
    await until(lambda: len(told) == 2)
    assert told[0] == told[1] and told[0].marks == [] and told[0].wires == [WIRE] and told[0].mode == "local"
    assert told[0].requests == [ObservedRequest(1, "reads", tokens=2, rounds=1, drafted=2, accepted=1)]
    observing.begin(2).verdict(1, 1, 0.25)
    observing.end(1)
    observing.end(1)
    await until(lambda: len(told) == 3)
    assert [each.request for each in told[2].requests] == [2]
    [mark] = told[2].marks
    assert (mark.request, mark.kind, mark.took_us, mark.rows, mark.accepted) == (2, "round", 250_000, 1, 0)
    observing.asked(0)
    await asyncio.sleep(0.25)
    assert len(told) == 3
    observing.stop()


async def test_what_a_slow_link_has_no_room_for_waits() -> None:
    """Nothing is told while the link is behind, and then all of it."""
    told: list[Observed] = []
    behind = True
    observing = Observing("local", list, told.append, lambda: behind)
    observing.asked(1)
    observing.begin(1).verdict(2, 3, 0.1)
    await asyncio.sleep(0.25)
    assert not told
    behind = False
    await until(lambda: told)
    assert [mark.rows for each in told for mark in each.marks] == [3]
    observing.stop()


def test_marks_are_bounded() -> None:
    """The oldest are lost, and counted; while nobody wants any, none is kept."""
    marks = Marks()
    marks.add(1, "chunk", 0.1, 1)
    assert marks.take() == ([], 0)
    marks.wanted = True
    for number in range(MAX_MARKS + 3):
        marks.add(number, "chunk", 0.1, 1)
    kept, lost = marks.take()
    assert len(kept) == MAX_MARKS and kept[0].request == lost == 3
    assert marks.take() == ([], 0)


async def test_chunks_that_fail_are_not_answered() -> None:
    """They were sent, and that is all."""
    marks = Marks()
    marks.wanted = True
    progress, loop = Progress(marks, 7), asyncio.get_running_loop()
    answers = [loop.create_future() for _ in range(3)]
    for each in answers:
        progress.chunk(10, each)
    answers[0].set_result(None)
    answers[1].set_exception(ValueError())
    answers[2].cancel()
    await asyncio.sleep(0)
    told = progress.told()
    assert (told.sent_rows, told.answered_rows) == (30, 10)
    assert [each.rows for each in marks.take()[0]] == [10]


async def test_what_is_done_for_a_request_over_a_cloud(drafters: Drafters) -> None:
    """Its chunks and rounds, each once, with their rows; the cloud's load; nothing of its text."""
    hello = replace(device_hello(DEMO, 2, 0), takes_state=True)
    async with (
        cloud_here(DEMO, 2) as cloud,
        remote_middle(cloud.url, hello) as middle,
        served(middle, drafters, LONG_DRAFTS, split=2) as model,
    ):
        agent, said = agent_of(model, middle.wires)
        agent._handle(Observe(100))
        ask = Generate(3, "r-1", "m", "", list(PROMPT), max_tokens=30, ignore_eos=True, sampling=GREEDY)
        agent._handle(ask)
        await until(lambda: any(isinstance(each, (Done, Failed)) for each in said))
        [done] = [each for each in said if isinstance(each, Done)]
        await until(lambda: said.observed and not said.observed[-1].requests)
        await cloud.server.look_again()
        await until(lambda: steps(said) > 0)
        agent._observing.stop()
    marks = [mark for each in said.observed for mark in each.marks]
    chunks, rounds = ([mark for mark in marks if mark.kind == kind] for kind in ("chunk", "round"))
    assert sum(mark.rows for mark in chunks) == len(PROMPT) and all(mark.request == 3 for mark in marks)
    assert sum(mark.rows - 1 for mark in rounds) == done.proposed
    assert sum(1 + mark.accepted for mark in rounds) >= done.completion_tokens - 1
    assert all(mark.took_us > 0 for mark in marks)
    [wire] = said.observed[-1].wires
    figures = wire.cloud
    assert isinstance(figures, CloudFigures) and wire.state == "ready" and wire.to in cloud.url
    assert figures.rows >= len(PROMPT) and figures.step_us > 0 and figures.devices == 1 and figures.pages > 0
    assert figures.id == cloud.server._id != ""
    assert wire.sent_bytes > 4 * len(PROMPT) and wire.received_bytes > 0


async def test_a_device_that_does_not_take_it_is_not_told(drafters: Drafters) -> None:
    """An older one would not know the message."""
    async with cloud_here(DEMO, 2) as cloud, remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as middle:
        await cloud.server.look_again()
        [link] = cloud.server.links.values()
        assert link._told is None and middle.clouds.links[0].figures is None and middle.wires()[0].state == "ready"


@pytest.mark.parametrize("draft", ["none", "lookup", "itself"])
async def test_where_tokens_come_from(drafters: Drafters, draft: str) -> None:
    """Each token has one origin; as many are drafted as are accepted; each round ends with the model's own word, and
    its first token says what it took. The tokens are what they were."""
    compute = Compute()
    async with served(local_middle(DEMO, 2, 0, compute), drafters, LONG_DRAFTS, compute=compute) as model:
        ask = Generate(1, "r-1", "m", "", list(PROMPT), max_tokens=40, ignore_eos=True, sampling=GREEDY, draft=draft)
        ask = replace(ask, return_token_ids=True, return_token_origins=True)
        said: list[AnyMessage] = []
        await answer(model, ask, said.append)
        plain: list[AnyMessage] = []
        await answer(model, replace(ask, return_token_origins=False), plain.append)
    deltas = [each for each in said if isinstance(each, Delta)]
    assert all(each.origins is not None and len(each.origins) == each.tokens for each in deltas)
    origins = [origin for each in deltas for origin in each.origins or ()]
    assert [id for each in deltas for id in each.ids or ()] == oracle_tokens(DEMO, PROMPT, 40)
    [done] = [each for each in said if isinstance(each, Done)]
    drafted = [each for each in origins if each.source]
    assert len(drafted) == done.accepted and len({each.source for each in drafted}) <= 1
    assert bool(drafted) or draft != "itself"
    rounds = [each.round for each in origins]
    assert rounds == sorted(rounds) and set(rounds) == set(range(rounds[-1] + 1)) and origins[0].source == ""
    for number in range(rounds[-1]):
        of_round = [each for each in origins if each.round == number]
        assert of_round[-1].source == "" and all(each.source for each in of_round[:-1])
        assert of_round[0].took_us > 0 and all(each.took_us == 0 for each in of_round[1:])
    assert all(each.origins is None for each in plain if isinstance(each, Delta))


def test_the_time_of_each_round_is_its_own() -> None:
    """The prompt's first, and then what was added since the round before."""

    class Session:
        spent: TurnSpent | None = None

    moments = iter([1.0, 1.5, 1.75, 2.0])
    origins, session = Origins(lambda: next(moments)), Session()
    session.spent = TurnSpent(TimeSpent(0.1, 0.2, 0.0, 0.1), TimeSpent(), 0)
    found: list[Origin] = [origins.of(Chosen(5), session)]  # type: ignore[arg-type]
    session.spent = TurnSpent(TimeSpent(0.1, 0.2, 0.0, 0.1), TimeSpent(0.0, 0.2, 0.01, 0.04), 1)
    for chosen in (Chosen(6, source="lookup"), Chosen(7)):
        found.append(origins.of(chosen, session))  # type: ignore[arg-type]
    session.spent = TurnSpent(TimeSpent(0.1, 0.2, 0.0, 0.1), TimeSpent(0.05, 0.3, 0.02, 0.08), 2)
    found.append(origins.of(Chosen(8), session))  # type: ignore[arg-type]
    assert [(each.round, each.source, each.took_us) for each in found] == [
        (0, "", 500_000), (1, "lookup", 250_000), (1, "", 0), (2, "", 250_000),
    ]  # fmt: skip
    assert [each.spent for each in found[:3]] == [
        Spent(100_000, 200_000, 0, 100_000), Spent(0, 200_000, 10_000, 40_000), None,
    ]  # fmt: skip
    last = found[-1].spent
    assert last is not None
    assert last.device_us == pytest.approx(50_000, abs=1)
    assert last.link_us == pytest.approx(100_000, abs=1)
