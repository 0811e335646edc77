"""Scripts for the gateway tests' scripted agent, to read."""

from __future__ import annotations

import struct
from typing import Any

from wire.reading_messages import Read, Vector
from wire.request_messages import Accepted, Done


async def read_back(agent: Any, asked: Read) -> None:
    """Of each input its first id and its length, the last input first."""
    agent.post(Accepted(asked.request, len(asked.ids)))
    say(agent, asked)


def say(agent: Any, asked: Read) -> None:
    """The same of one that was accepted."""
    for at, ids in reversed(list(enumerate(asked.ids))):
        agent.post(Vector(asked.request, at, struct.pack("<2f", ids[0], len(ids))))
    agent.post(Done(asked.request, len(asked.ids), 0))


async def hang_reading(agent: Any, asked: Read) -> None:
    """Accept, and nothing more."""
    agent.post(Accepted(asked.request, len(asked.ids)))
