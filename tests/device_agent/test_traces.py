"""The device's part of a trace: what a request goes through there, one span after the other, with counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from clouds import until
from kept_spans import KeptTraces
from served_chains import served

from device_agent.agent import Agent
from device_agent.answering.choice_phases import MAX_TRACED
from device_agent.group.messages.notes import StepsDone
from device_agent.sharing.served_request import ServedRequest, served_request
from service.traces import Span
from wire.decision_messages import Decide, Question
from wire.errand import Errand
from wire.group_messages import GroupReport, ReportedMember
from wire.messages import AnyMessage
from wire.reading_messages import Read
from wire.request_messages import AgentHello, Cancel, Done, Generate, Sampling, ServedModel
from wire.text_messages import ChatTurn

ABOVE = f"00-{'a' * 32}-{'b' * 16}-01"
GREEDY = Sampling(temperature=0.0)
REPORT = GroupReport(
    "home", "galaxy", 3, True, "", [ReportedMember("one", "working", step_ms=1.5), ReportedMember("two", "lost")]
)


class Said(list[AnyMessage]):
    """Stands for the connection: what the agent says."""

    def post(self, message: AnyMessage) -> None:
        self.append(message)

    def withdraw(self, number: int) -> bool:
        return False


def agent_of(model: Any, traces: KeptTraces, group: GroupReport | None = None) -> tuple[Agent, Said]:
    """An agent that serves a model, and what it says."""
    hello = AgentHello("a", "", [ServedModel("m", 1024, 1)], 32)
    agent, said = Agent(["ws://127.0.0.1:9"], hello, model, lambda: None, lambda: group), Said()
    agent.traces = traces
    agent._stream = said  # type: ignore[assignment]
    return agent, said


@pytest.fixture
def traces() -> KeptTraces:
    """All spans."""
    return KeptTraces()


async def test_what_a_request_goes_through(traces: KeptTraces) -> None:
    """The prompt is read, a permit waited for, prefill and generation, with the answer's own counts; of many choices
    some."""
    async with served(None) as model:
        agent, said = agent_of(model, traces, REPORT)
        agent._handle(
            Generate(1, "r-1", "m", "Hello", n=10, max_tokens=5, ignore_eos=True, sampling=GREEDY, traceparent=ABOVE)
        )
        await until(lambda: any(isinstance(each, Done) for each in said) and traces.spans[0].ended)
    [done] = [each for each in said if isinstance(each, Done)]
    answer, *children = traces.spans
    assert answer.name == "answer" and answer.parent == ABOVE and not answer.code
    assert all(each.parent == answer.traceparent and each.ended == 1 and not each.code for each in children)
    assert [each.name for each in children][:4] == ["read prompt", "queue", "prefill", "generate"]
    assert len(traces.named("generate")) == len(traces.named("queue")) == MAX_TRACED
    assert len(traces.named("prefill")) == 1
    facts = {"request_id": "r-1", "how": "generate", "outcome": "done", "model": "m", "choices": 10}
    counts = {"prompt_tokens": done.prompt_tokens, "completion_tokens": 50, "drafted": 0, "accepted": 0}
    group = {"mode": "galaxy", "members": 2, "member_step_ms": [1.5, 0.0]}
    assert (facts | counts | group).items() <= answer.facts.items()
    # The first token is the prompt's: it takes no round.
    assert {(each.facts["completion_tokens"], each.facts["rounds"]) for each in traces.named("generate")} == {(5, 4)}


async def test_questions_and_their_phases(traces: KeptTraces) -> None:
    """A decision reads its conversation once and then decides."""
    async with served(None) as model:
        agent, said = agent_of(model, traces)
        question = Question("Is it?", ["yes", "no"])
        agent._handle(Decide(1, "r-1", "m", [ChatTurn("user", "It is.")], [question], traceparent=ABOVE))
        await until(lambda: any(isinstance(each, Done) for each in said) and traces.spans[0].ended)
    assert [each.name for each in traces.spans] == ["answer", "read prompt", "queue", "prefill", "decide"]
    assert traces.spans[0].facts["how"] == "decide" and all(each.ended == 1 for each in traces.spans)


async def test_a_request_that_cannot_be_answered(traces: KeptTraces) -> None:
    """Its span has the code, and says nothing of the message."""
    async with served(None) as model:
        agent, _ = agent_of(model, traces)
        agent._handle(Generate(1, "r-1", "m", "Wilhelmina " * 2000, traceparent=ABOVE))
        agent._handle(Read(2, "r-2", "m", "embed", [["Wilhelmina"]], traceparent=ABOVE))
        await until(lambda: len(traces.named("answer")) == 2 and all(each.ended for each in traces.spans))
    one, two = traces.named("answer")
    assert one.code == "context_length_exceeded" and two.code == "invalid_request"
    assert one.facts["outcome"] == "failed" and traces.named("read prompt")[0].code == "failed"
    assert "Wilhelmina" not in str([(each.name, each.facts, each.events, each.code) for each in traces.spans])


async def test_a_cancelled_request_and_one_that_crashes(traces: KeptTraces, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled is no error; what crashes is one, without its message."""

    async def crash(*_: Any) -> None:
        raise RuntimeError("Wilhelmina")

    async with served(None, permits=1) as model:
        agent, _ = agent_of(model, traces)
        async with model.permits.one(""):
            agent._handle(Generate(1, "r-1", "m", "Hello", max_tokens=5, traceparent=ABOVE))
            await until(lambda: traces.named("queue"))
            agent._handle(Cancel(1))
            await until(lambda: traces.spans[0].ended)
        monkeypatch.setattr("device_agent.agent.answer", crash)
        agent._handle(Generate(2, "r-2", "m", "Hello", traceparent=ABOVE))
        await until(lambda: len(traces.named("answer")) == 2 and traces.spans[-1].ended)
    cancelled, crashed = traces.named("answer")
    assert cancelled.facts["outcome"] == "cancelled" and not cancelled.code
    assert traces.named("queue")[0].code == "cancelled"
    assert crashed.code == "internal" and crashed.facts["outcome"] == "crashed"
    assert "Wilhelmina" not in str([(each.facts, each.code) for each in traces.spans])


async def test_the_cloud_is_told_of_the_device_span(traces: KeptTraces) -> None:
    """By its id and its span; who keeps no traces passes the gateway's on; nobody outside a request says anything."""
    span = traces.span("answer", ABOVE)
    assert ServedRequest("r-1", span).errand == Errand("r-1", span.traceparent)
    assert ServedRequest("r-1", Span(ABOVE)).errand == Errand("r-1", ABOVE)
    assert ServedRequest("two words", Span()).errand is None and ServedRequest().errand is None
    assert served_request.get() == ServedRequest() and ServedRequest().named == {}
    served_request.set(ServedRequest("r-2"))
    assert await asyncio.create_task(asyncio.sleep(0, served_request.get().named)) == {"request_id": "r-2"}


def test_a_members_step() -> None:
    """Its mean, in ms of its own computing."""
    assert StepsDone(1, 4, 0.01).step_ms == 2.5 and StepsDone(1, 0, 0.0).step_ms == 0.0
