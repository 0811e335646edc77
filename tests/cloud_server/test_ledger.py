"""The rules at the door: admission, order, credit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_server.ledger import Ledger, Limits
from wire.errors import Code, SessionFailed

LIMITS = Limits(sessions=4, device_sessions=2, positions=100, kv_positions=250, window_rows=32, rows=20)


def refused(call: Callable[[], object]) -> Code:
    """The code that ``call`` is refused with."""
    with pytest.raises(SessionFailed) as failure:
        call()
    return failure.value.code


def test_admission() -> None:
    """Sessions are refused by number, by device, by length and by room, and the room comes back when they end."""
    ledger = Ledger(LIMITS)
    assert refused(lambda: ledger.open((1, 1), 101)) is Code.TOKEN_LIMIT
    assert refused(lambda: ledger.open((1, 1), 0)) is Code.TOKEN_LIMIT
    ledger.open((1, 1), 100)
    assert refused(lambda: ledger.open((1, 1), 1)) is Code.DUPLICATE_SESSION
    ledger.open((1, 2), 100)
    assert refused(lambda: ledger.open((1, 3), 1)) is Code.SESSION_LIMIT
    assert refused(lambda: ledger.open((2, 1), 51)) is Code.SESSION_LIMIT
    ledger.open((2, 1), 50)
    assert ledger.close((1, 1)) and not ledger.close((1, 1))
    ledger.open((2, 2), 100)
    ledger.draining = True
    assert refused(lambda: ledger.open((4, 1), 1)) is Code.DRAINING


def test_forwards_come_in_order() -> None:
    """A repeated, skipped, misplaced, empty or oversized forward is refused and changes nothing."""
    ledger = Ledger(LIMITS)
    ledger.open((1, 1), 50)
    ledger.forward((1, 1), 0, 0, 10, 0)
    for sequence, position in ((0, 10), (2, 10), (1, 0), (1, 11)):
        assert refused(lambda s=sequence, p=position: ledger.forward((1, 1), s, p, 5, 5)) is Code.BAD_POSITION  # type: ignore[misc]
    assert refused(lambda: ledger.forward((1, 1), 1, 10, 0, 0)) is Code.SHAPE_MISMATCH
    assert refused(lambda: ledger.forward((1, 1), 1, 10, 21, 0)) is Code.SHAPE_MISMATCH
    assert refused(lambda: ledger.forward((1, 1), 1, 10, 5, 6)) is Code.SHAPE_MISMATCH
    assert refused(lambda: ledger.forward((2, 1), 1, 10, 5, 5)) is Code.UNKNOWN_SESSION
    ledger.forward((1, 1), 1, 10, 20, 20)
    assert refused(lambda: ledger.forward((1, 1), 2, 30, 3, 3)) is Code.CREDIT_EXCEEDED
    ledger.answered((1, 1), 10)
    ledger.forward((1, 1), 2, 30, 12, 0)
    ledger.answered((1, 1), 20)
    assert refused(lambda: ledger.forward((1, 1), 3, 42, 9, 0)) is Code.TOKEN_LIMIT
    assert refused(lambda: ledger.truncate((1, 1), 43)) is Code.BAD_POSITION
    ledger.truncate((1, 1), 5)
    ledger.forward((1, 1), 3, 5, 9, 0)


@given(st.lists(st.tuples(st.sampled_from(["open", "close", "answer", "forward"]), st.integers(1, 6)), max_size=80))
def test_reserved_positions_always_add_up(actions: list[tuple[str, int]]) -> None:
    """Whatever devices try, what is reserved is what the open sessions reserved, within every limit."""
    ledger = Ledger(LIMITS)
    for action, number in actions:
        key = (number % 3, number)
        try:
            if action == "open":
                ledger.open(key, number * 15)
            elif action == "close":
                ledger.close(key)
            elif action == "answer" and key in ledger.entries:
                ledger.answered(key, min(1, ledger.entries[key].window.in_flight))
            elif action == "forward" and key in ledger.entries:
                entry = ledger.entries[key]
                ledger.forward(key, entry.sequence, entry.position, number, 0)
        except SessionFailed:
            pass
        assert ledger.reserved == sum(entry.reserved for entry in ledger.entries.values()) <= LIMITS.kv_positions
        assert len(ledger.entries) <= LIMITS.sessions
        assert all(entry.position <= entry.reserved for entry in ledger.entries.values())
