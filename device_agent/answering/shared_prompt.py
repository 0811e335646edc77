"""One prompt for all choices of a request: the first choice prefills it, the others begin as forks of its session.

The session is the first choice's, and goes on with its answer meanwhile. It is there until the first choice is done
with it and every other has begun, however much later they have their permits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from device_agent.chain.chain import ChainSession


class SharedPrompt:
    """The session in which the prompt is.

    Args:
        others: choices that begin as forks of it.
    """

    def __init__(self, others: int) -> None:
        self._others = others
        self._session: ChainSession | None = None
        self._is_in = asyncio.Event()
        self._left: Callable[[], None] | None = None

    def begin(self, session: ChainSession) -> None:
        """The prompt is in: the others may begin. Further calls change nothing."""
        self._session = session
        self._is_in.set()

    async def ready(self) -> None:
        """Wait until the prompt is in. Whoever cancels the choices when the first has failed ends this too."""
        await self._is_in.wait()

    async def fork(self) -> ChainSession:
        """A session for one of the others, where the prompt ends. Raises ``SessionFailed``."""
        assert self._session is not None and self._others > 0
        forked = await self._session.fork()
        self._others -= 1
        self._look()
        return forked

    def leave(self, left: Callable[[], None]) -> None:
        """The first choice is done with the session: ``left`` is called once nobody needs it any more."""
        self._left = left
        self._look()

    def close(self) -> None:
        """Nobody begins any more."""
        self._others = 0
        self._look()

    def _look(self) -> None:
        if self._left is not None and not self._others:
            left, self._left = self._left, None
            left()
