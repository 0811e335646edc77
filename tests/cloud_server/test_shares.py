"""What a tenant may take of a cloud server: whatever others announce and open, a newcomer finds its share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_server.engine.entries import Limits, SessionState
from cloud_server.engine.ledger import Ledger
from cloud_server.engine.shares import NEWCOMERS, WATERMARK, Holding, may_open, room, tenant_of
from wire.errors import SessionFailed

LIMITS = Limits(
    sessions=64,
    device_sessions=16,
    positions=1000,
    window_rows=64,
    rows=32,
    pages=100,
    page_positions=10,
    parked_sessions=4,
    idle_s=60,
    resume_s=30,
)


def tried(ledger: Ledger, key: tuple[int, int], tenant: str, prompt: int, replay: bool = False) -> bool:
    """Whether a session was opened."""
    try:
        ledger.open(key, tenant, max(prompt, 1), prompt, 0.0, replay)
    except SessionFailed:
        return False
    return True


def send(ledger: Ledger, key: tuple[int, int], rows: int, paged: bool) -> None:
    """Rows of a session that is open come; pages are taken for them where ``paged``, as a step does."""
    entry = ledger.entries.get(key)
    if entry is None:
        return
    try:
        ledger.forward(key, entry.sequence, entry.position, rows, 0, 0.0)
    except SessionFailed:
        return
    if paged and ledger.pages.extend(key, entry.position):
        ledger.answered(key, rows, 0.0)


ACTS = st.one_of(
    st.tuples(st.just("open"), st.integers(0, 1000), st.booleans()),
    st.tuples(st.just("send"), st.integers(1, 32), st.booleans()),
    st.tuples(st.just("park"), st.integers(0, 100), st.booleans()),
    st.tuples(st.just("close"), st.integers(0, 100), st.booleans()),
)


@given(
    acts=st.lists(st.tuples(st.integers(1, 8), st.integers(0, 15), ACTS), max_size=120),
    tenants=st.integers(1, 3),
    part=st.floats(0, 1),
)
@settings(max_examples=150, deadline=None)
def test_nobody_shuts_a_newcomer_out(
    acts: list[tuple[int, int, tuple[str, int, bool]]], tenants: int, part: float
) -> None:
    """Whatever up to three tenants do over eight connections, the first session of another is opened as long as its
    prompt is within its share and that many pages are not really held; its replays as long as pages are not held."""
    ledger = Ledger(LIMITS)
    for connection, number, (act, size, flag) in acts:
        key, tenant = (connection, number), f"greedy {connection % tenants}"
        entry = ledger.entries.get(key)
        if act == "open":
            tried(ledger, key, tenant, size, flag)
        elif act == "send":
            send(ledger, key, size, flag)
        elif act == "park" and entry is not None and not entry.window.in_flight and entry.state is SessionState.OPEN:
            for each in ledger.park(key, 0.0):
                ledger.close(each)
        elif act == "close":
            ledger.close(key)
    held = sum(ledger.pages.held(key) for key, entry in ledger.entries.items() if entry.state is SessionState.OPEN)
    share = (LIMITS.pages - LIMITS.pages // WATERMARK) // (tenants + 1)
    modest = min(share, LIMITS.pages - LIMITS.pages // WATERMARK - held - (tenants - 1) * share)
    if modest >= 0:
        assert tried(ledger, (9, 0), "newcomer", int(part * modest) * LIMITS.page_positions)
        ledger.close((9, 0))
    left = (LIMITS.pages - held) * LIMITS.page_positions
    replayed = int(part * left) // LIMITS.page_positions * LIMITS.page_positions
    assert tried(ledger, (9, 1), "newcomer", replayed, replay=True)
    assert tried(ledger, (9, 2), "newcomer", left - replayed, replay=True) == may_have_two(ledger)


def may_have_two(ledger: Ledger) -> bool:
    """Whether the newcomer may hold a second session beside those of the others."""
    others: dict[str, Holding] = {}
    for entry in ledger.entries.values():
        if entry.state is SessionState.OPEN and entry.tenant != "newcomer":
            others.setdefault(entry.tenant, Holding()).add(0, 0)
    return may_open(LIMITS.sessions, Holding(1), others.values())


@pytest.mark.parametrize("replay", [False, True])
def test_promises_are_not_pages(replay: bool) -> None:
    """A tenant that announces all pages on every connection and sends nothing costs another nothing but its share."""
    ledger = Ledger(replace(LIMITS, sessions=256))
    for connection in range(4):
        for number in range(LIMITS.device_sessions):
            tried(ledger, (connection, number), "greedy", LIMITS.positions, replay)
    assert ledger.pages.used == 0 and ledger.count(SessionState.OPEN)
    assert tried(ledger, (8, 1), "modest", 47 * LIMITS.page_positions)
    assert tried(ledger, (8, 2), "modest", 53 * LIMITS.page_positions, replay=True)


def test_what_is_held_counts() -> None:
    """Pages that sessions really hold are nobody else's, and rows that have come are their tenant's own load."""
    ledger = Ledger(LIMITS)
    ledger.open((1, 1), "holder", 1000, 0, 0.0)
    for _ in range(30):
        send(ledger, (1, 1), 32, True)
    assert ledger.pages.held((1, 1)) == 96
    assert not tried(ledger, (2, 1), "late", 10)
    assert not tried(ledger, (2, 1), "late", 50, replay=True)
    assert tried(ledger, (2, 1), "late", 40, replay=True)


def test_a_tenant_that_is_alone_gets_nearly_all_sessions() -> None:
    """And leaves one to each of those who come later, however much each of them wants."""
    taken: list[int] = []
    for _ in range(16):
        others = [Holding(each) for each in taken]
        mine = Holding()
        while may_open(256, mine, others):
            mine.add(0, 0)
        taken.append(mine.sessions)
    assert taken[0] > 0.8 * 256 and min(taken) >= 1
    assert sum(taken) <= 256
    assert may_open(4, Holding(3), []), "a server of few sessions gives all of them to who is alone"
    assert len(taken) == 256 // NEWCOMERS


def test_no_session_of_a_full_server() -> None:
    """Nobody gets more than there are."""
    assert not may_open(4, Holding(), [Holding(4)])
    assert not may_open(4, Holding(4), [])


def test_who_is_alone_announces_all_pages() -> None:
    """The first session of an empty server may have all of it; later ones leave some to grow into."""
    assert room(100, Holding(), [], False) == 100
    assert room(100, Holding(1, 10, 20), [], False) == 75
    assert room(100, Holding(1, 10, 20), [], True) == 80


def test_a_tenant_is_a_credential_and_a_name() -> None:
    """Either tells tenants apart, joined as they may be, and neither can be read from what names the tenant."""
    tenants = [tenant_of("secret", "kitchen"), tenant_of("secretk", "itchen"), tenant_of("", "kitchen")]
    assert len(set(tenants)) == 3 and tenant_of("secret", "kitchen") == tenants[0]
    assert not any("kitchen" in each or "secret" in each for each in tenants)
