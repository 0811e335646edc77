"""A cloud server's load as its devices are told it. Names and numbers; of no device more than that it is there."""

from __future__ import annotations

from cloud_server.engine.engine import Engine
from cloud_server.engine.entries import SessionState
from service.version import VERSION
from wire.observed_messages import CloudFigures


def figures_of(engine: Engine, devices: int, id: str) -> CloudFigures:
    """Return the load of the engine now, which so many devices share, and which is that of the server of this name."""
    ledger, done, pages = engine.ledger, engine.steps.done, engine.ledger.pages
    running = ledger.count(SessionState.OPEN)
    return CloudFigures(
        version=VERSION,
        steps=done.steps,
        rows=done.rows,
        step_us=int(done.seconds * 1e6),
        sessions=running,
        parked=len(ledger.entries) - running,
        waiting_rows=engine.sessions.scheduler.waiting_rows,
        most_rows=engine.pace.step_rows,
        pages_used=pages.used,
        pages=pages.count,
        devices=devices,
        id=id,
    )
