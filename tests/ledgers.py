"""A cloud's book of sessions, filled for a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cloud_server.cache.moving import Key
from cloud_server.engine.entries import Limits, SessionState
from cloud_server.engine.ledger import Ledger
from wire.errors import Code, SessionFailed

LIMITS = Limits(
    sessions=4,
    device_sessions=2,
    positions=100,
    window_rows=32,
    rows=20,
    pages=40,
    page_positions=10,
    parked_sessions=2,
    idle_s=60,
    resume_s=30,
)


def pages_by_state(ledger: Ledger) -> dict[SessionState, int]:
    """Pages that the sessions in each state hold."""
    held = dict.fromkeys(SessionState, 0)
    for key, entry in ledger.entries.items():
        held[entry.state] += ledger.pages.held(key)
    return held


def refused(call: Callable[[], object]) -> Code:
    """The code that ``call`` is refused with."""
    with pytest.raises(SessionFailed) as failure:
        call()
    return failure.value.code


def filled(ledger: Ledger, key: Key, tenant: str, positions: int, now: float) -> None:
    """An open session with so many answered rows in its pages."""
    ledger.open(key, tenant, 100, 0, now)
    for sequence, begin in enumerate(range(0, positions, 20)):
        rows = min(20, positions - begin)
        ledger.forward(key, sequence, begin, rows, 0, now)
        ledger.answered(key, rows, now)
    assert ledger.pages.extend(key, positions)
