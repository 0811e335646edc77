"""Which request is being served: what its logs, its spans and the cloud call it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from device_agent.sharing.progress import NOBODYS, Progress
from service.errands import plain_id
from service.traces import UNTRACED, Span
from wire.errand import Errand


@dataclass(frozen=True)
class ServedRequest:
    """A request, by its id; ``span``: all that this device does for it; ``progress``: what it has come to."""

    id: str = ""
    span: Span = UNTRACED
    progress: Progress = field(default=NOBODYS, compare=False, repr=False)

    @property
    def named(self) -> dict[str, str]:
        """What lines of a log say of it that are written elsewhere than where it is served."""
        return {"request_id": self.id} if self.id else {}

    @property
    def errand(self) -> Errand | None:
        """What a cloud server is told; None where there is nothing to tell."""
        id, traceparent = plain_id(self.id), self.span.traceparent
        return Errand(id, traceparent) if id or traceparent else None


served_request: Final[ContextVar[ServedRequest]] = ContextVar("served_request", default=ServedRequest())  # noqa: B039
"""Whose session is opened, or taken up again; nobody's outside any request."""
