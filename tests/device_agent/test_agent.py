"""The agent's own books: what it says of its load, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from clouds import until

from device_agent import agent as agent_module
from device_agent.agent import Agent
from wire.message import Failed
from wire.messages import AnyMessage
from wire.request_messages import AgentHello, AgentState, Cancel, Finished, Generate, ServedModel


class Said:
    """Stands for the connection: what the agent says."""

    def __init__(self) -> None:
        self.messages: list[AnyMessage] = []

    def post(self, message: AnyMessage) -> None:
        self.messages.append(message)

    def withdraw(self, number: int) -> bool:
        return False

    @property
    def loads(self) -> list[int]:
        """Each load told, told twice or not."""
        told = [message.running for message in self.messages if isinstance(message, AgentState)]
        return [each for at, each in enumerate(told) if not at or told[at - 1] != each]


class Answering:
    """Stands for ``answer``: each choice ends when it is told to."""

    def __init__(self) -> None:
        self.posts: dict[int, Callable[[AnyMessage], None]] = {}
        self.ends: dict[int, asyncio.Event] = {}

    async def __call__(self, model: Any, request: Generate, post: Callable[[AnyMessage], None]) -> None:
        self.posts[request.request] = post
        self.ends[request.request] = asyncio.Event()
        await self.ends[request.request].wait()

    def finish(self, request: int, index: int) -> None:
        self.posts[request](Finished(request, index, "stop"))


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    standing_in = Answering()
    monkeypatch.setattr(agent_module, "answer", standing_in)
    return standing_in


def an_agent(capacity: int) -> tuple[Agent, Said]:
    class Model:
        name = "m"

    hello = AgentHello("a", "", [ServedModel("m", 9, 1)], capacity)
    agent, said = Agent(["ws://127.0.0.1:9"], hello, Model(), lambda: None), Said()  # type: ignore[arg-type]
    agent._stream = said  # type: ignore[assignment]
    return agent, said


def asked(number: int, n: int = 1, at_once: int = 0) -> Generate:
    return Generate(number, "id", "m", "Hi", n=n, at_once=at_once)


async def test_load_is_counted_in_answers(answering: Answering) -> None:
    """Of each request those unfinished, no more than may be generated at once; none of what nobody waits for."""
    agent, said = an_agent(8)
    agent._handle(asked(1, n=5, at_once=3))
    agent._handle(asked(2, n=2))
    await until(lambda: len(answering.posts) == 2)
    for index in range(4):
        answering.finish(1, index)
    assert said.loads == [3, 5, 4, 3]
    agent._handle(Cancel(2))
    await until(lambda: said.loads[-1] == 1)
    answering.finish(1, 4)
    answering.ends[1].set()
    await until(lambda: said.loads[-1] == 0)
    assert said.loads == [3, 5, 4, 3, 1, 0]


async def test_a_full_agent_refuses(answering: Answering) -> None:
    """By answers, not by requests; one request may be larger than what is left, so that it is not refused for ever."""
    agent, said = an_agent(4)
    agent._handle(asked(1, n=3))
    agent._handle(asked(2, n=128))
    agent._handle(asked(3))
    failed = [message for message in said.messages if isinstance(message, Failed)]
    assert [(each.subject, each.code) for each in failed] == [(3, "overloaded")]
    await agent._cancel_all()
    await until(lambda: said.loads[-1] == 0)
