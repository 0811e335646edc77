"""A device agent that answers at once, over the real wire: what is measured with it is the gateway, no model.

    PYTHONPATH=.:tests python -m bench.api.answering_agent --gateway ws://127.0.0.1:8000

Each answer has the same few words, a token each, one every ``--gap-ms``; a request that asks for more tokens than there
are words hears them again. With ``--spans FILE`` each request is a line there: when it came and when it was answered,
by the machine's monotonic clock; for so long the gateway has let it in, and a little longer.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from wire.connection import Role
from wire.errors import ConnectionFailed
from wire.limits import GATEWAY_LINK
from wire.messages import AnyMessage
from wire.request_messages import (
    Accepted,
    AgentHello,
    Cancel,
    Delta,
    Done,
    Finished,
    GatewayWelcome,
    Generate,
    ServedModel,
)
from wire.stream import Stream, dial

MODEL = "answering"
CAPACITY = 4096
WORDS = ("Hello", " there", ",", " how", " may", " I", " help", "?")
PROMPT_TOKENS = 12


class AnsweringAgent:
    """Answers what comes on a connection."""

    def __init__(self, stream: Stream, gap_s: float, answered: Callable[[float], object]) -> None:
        """answered: called with when a request came, once it was answered."""
        self._stream = stream
        self._gap_s = gap_s
        self._answered = answered
        self._paced: dict[int, asyncio.Task[None]] = {}

    async def listen(self) -> None:
        """Until the connection ends, of which ``ConnectionFailed`` says why."""
        while True:
            message = (await self._stream.receive()).message
            if isinstance(message, Cancel):
                if (task := self._paced.pop(message.request, None)) is not None:
                    task.cancel()
            elif isinstance(message, Generate):
                if self._gap_s:
                    self._paced[message.request] = asyncio.create_task(self._answer_slowly(message))
                else:
                    came = self._begin(message)
                    for number in range(message.max_tokens or len(WORDS)):
                        self._say(message, number)
                    self._end(message, came)

    async def _answer_slowly(self, asked: Generate) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        came = self._begin(asked)
        for number in range(asked.max_tokens or len(WORDS)):
            await asyncio.sleep(began + number * self._gap_s - loop.time())
            self._say(asked, number)
        self._paced.pop(asked.request, None)
        self._end(asked, came)

    def _begin(self, asked: Generate) -> float:
        self._post(Accepted(asked.request, PROMPT_TOKENS))
        return time.monotonic()

    def _say(self, asked: Generate, number: int) -> None:
        self._post(Delta(asked.request, 0, WORDS[number % len(WORDS)], 1))

    def _end(self, asked: Generate, came: float) -> None:
        self._answered(came)
        self._post(Finished(asked.request, 0, "length"))
        self._post(Done(asked.request, PROMPT_TOKENS, asked.max_tokens or len(WORDS)))

    def _post(self, message: AnyMessage) -> None:
        with suppress(ConnectionFailed):
            self._stream.post(message)


async def serve(gateway: str, name: str, gap_s: float, answered: Callable[[float], object]) -> None:
    """Until the connection ends."""
    async with dial(f"{gateway}/device", Role.AGENT, GATEWAY_LINK) as stream:
        stream.post(AgentHello(name, "", [ServedModel(MODEL, 2**16, 1_700_000_000)], CAPACITY))
        assert isinstance((await stream.receive()).message, GatewayWelcome)
        with suppress(ConnectionFailed):
            await AnsweringAgent(stream, gap_s, answered).listen()


def main() -> None:
    """Serve until a signal, or until the gateway has gone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--name", default="answering")
    parser.add_argument("--gap-ms", type=float, default=0.0, help="between tokens; 0: all at once")
    parser.add_argument("--spans", type=Path, help="file for when each request came and was answered")
    options = parser.parse_args()
    served = partial(serve, options.gateway, options.name, options.gap_ms / 1e3)
    if options.spans is None:
        return asyncio.run(served(lambda came: None))
    with options.spans.open("w", buffering=1) as file:
        asyncio.run(served(lambda came: file.write(f"{came} {time.monotonic()}\n")))


if __name__ == "__main__":
    main()
