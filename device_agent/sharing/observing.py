"""Telling a gateway, while somebody watches its page, what this agent does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from device_agent.sharing.progress import Marks, Progress
from service.version import VERSION
from wire.observed_messages import MAX_OBSERVED, MAX_WIRES, Observed, Wire

LEAST_EVERY_S: Final = 0.1
"""It is told no more often, whatever a gateway asks."""


class Observing:
    """What is told of all requests of an agent; nothing is sent before a gateway asks.

    Args:
        mode: how the model is divided.
        wires: the connections that this device has beside the gateway's, now.
        tell: sends a message.
        behind: whether the link is: then nothing is told, and marks wait or are counted as lost.
    """

    def __init__(
        self,
        mode: str,
        wires: Callable[[], list[Wire]],
        tell: Callable[[Observed], None],
        behind: Callable[[], bool] = lambda: False,
    ) -> None:
        self._mode = mode
        self._wires = wires
        self._tell = tell
        self._behind = behind
        self._marks = Marks()
        self._requests: dict[int, Progress] = {}
        self._telling: asyncio.Task[None] | None = None

    def begin(self, number: int) -> Progress:
        """A request begins; the gateway calls it by this number."""
        progress = self._requests[number] = Progress(self._marks, number)
        return progress

    def end(self, number: int) -> None:
        """It is over. Safe to call for one that is not known."""
        self._requests.pop(number, None)

    def asked(self, every_ms: int) -> None:
        """A gateway asks to be told so often from now on; 0: no more."""
        self.stop()
        if every_ms:
            self._marks.wanted = True
            self._telling = asyncio.get_running_loop().create_task(self._tell_every(max(LEAST_EVERY_S, every_ms / 1e3)))

    def stop(self) -> None:
        """Nobody is there to be told. Safe to call again."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self._marks.wanted = False
        self._marks.take()

    def observed(self) -> Observed:
        """Return what there is to say now; marks are told once."""
        requests = [each.told() for each in list(self._requests.values())[:MAX_OBSERVED]]
        marks, lost = self._marks.take()
        return Observed(VERSION, self._mode, requests, marks, self._wires()[:MAX_WIRES], lost)

    async def _tell_every(self, every_s: float) -> None:
        while True:
            if not self._behind():
                self._tell(self.observed())
            await asyncio.sleep(every_s)
