"""A log for what a peer can cause at will: refusals, connections that come and go.

    log = SparingLog()
    log.info("refused", "not_found", path=path)

says each line while there are few of its kind, and one now and then where there are many; ``more`` is how many were
left out before it. Those at the end of a flood are told of a little later by a line of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import structlog

from service.ration import Ration

TOLD_AFTER_S: Final = 5.0
"""How long after a line that was left out it is told, at the latest, that there were some."""

_log = structlog.get_logger()


class SparingLog:
    """Lines of many kinds, each with its ration."""

    def __init__(self) -> None:
        self._ration = Ration()
        self._telling: asyncio.TimerHandle | None = None

    def info(self, event: str, kind: str = "", **fields: Any) -> None:
        """Say something, or count it.

        Args:
            kind: what shares a ration with others of this ``event``: a code, never a peer's own words.
        """
        self._say(_log.info, event, kind, fields)

    def warning(self, event: str, kind: str = "", **fields: Any) -> None:
        """The same for what an operator should look at."""
        self._say(_log.warning, event, kind, fields)

    def _say(self, say: Callable[..., Any], event: str, kind: str, fields: dict[str, Any]) -> None:
        more = self._ration.spend(f"{event} {kind}".strip(), monotonic())
        if more is None:
            self._tell_later()
        elif more:
            say(event, **fields, more=more)
        else:
            say(event, **fields)

    def _tell_later(self) -> None:
        if self._telling is None:
            try:
                self._telling = asyncio.get_running_loop().call_later(TOLD_AFTER_S, self._tell)
            except RuntimeError:  # Said outside a loop: the next line of its kind tells.
                return

    def _tell(self) -> None:
        self._telling = None
        structlog.contextvars.unbind_contextvars("request_id", "trace_id")  # It is about many.
        for kind, lines in self._ration.left_out().items():
            _log.info("lines were left out", of=kind, lines=lines)
