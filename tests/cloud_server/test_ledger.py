"""The rules at the door: admission, order, credit, and who stays when pages run out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ledgers import LIMITS, filled, pages_by_state, refused

from cloud_server.cache.moving import Key
from cloud_server.engine.entries import SessionState
from cloud_server.engine.ledger import PROMISE_S, Ledger
from cloud_server.engine.shares import expired, victim
from wire.errors import Code, SessionFailed
from wire.limits import MAX_BRANCHING_ROWS


def test_admission() -> None:
    """Sessions are refused by number, by device and by length, and there is room again when one ends."""
    ledger = Ledger(LIMITS)
    for positions in (0, 101):
        assert refused(lambda n=positions: ledger.open((1, 1), "t", n, 0, 0)) is Code.TOKEN_LIMIT  # type: ignore[misc]
    for prompt in (-1, 51):
        assert refused(lambda n=prompt: ledger.open((1, 1), "t", 50, n, 0)) is Code.TOKEN_LIMIT  # type: ignore[misc]
    for key in ((1, 1), (1, 2), (2, 1)):
        ledger.open(key, "t", 100, 0, 0)
    assert refused(lambda: ledger.open((1, 1), "t", 1, 0, 0)) is Code.DUPLICATE_SESSION
    assert refused(lambda: ledger.open((1, 3), "t", 1, 0, 0)) is Code.SESSION_LIMIT
    ledger.open((2, 2), "t", 1, 0, 0)
    assert refused(lambda: ledger.open((3, 1), "t", 1, 0, 0)) is Code.SESSION_LIMIT
    assert ledger.close((1, 1)) and not ledger.close((1, 1))
    ledger.open((3, 1), "t", 100, 0, 0)
    ledger.close((3, 1))
    ledger.draining = True
    assert refused(lambda: ledger.open((4, 1), "t", 1, 0, 0)) is Code.DRAINING


def test_a_fork_is_a_session_like_others() -> None:
    """It counts as open, needs pages that are not promised to anybody, and stands where its source has been."""
    ledger = Ledger(replace(LIMITS, sessions=5, device_sessions=5, pages=20))
    filled(ledger, (1, 1), "t", 60, 0)
    for position in (0, 61):
        assert refused(lambda at=position: ledger.fork((1, 1), (1, 2), at, 0)) is Code.BAD_POSITION  # type: ignore[misc]
    assert refused(lambda: ledger.fork((1, 1), (1, 1), 5, 0)) is Code.DUPLICATE_SESSION
    assert refused(lambda: ledger.fork((1, 7), (1, 2), 5, 0)) is Code.UNKNOWN_SESSION
    ledger.fork((1, 1), (1, 2), 35, 0)
    assert (ledger.pages.held((1, 1)), ledger.pages.held((1, 2))) == (6, 4)
    ledger.forward((1, 2), 0, 35, 5, 0, 0)
    ledger.truncate((1, 1), 10, 0)
    ledger.close((1, 1))
    assert ledger.entries[1, 2].position == 40 and ledger.pages.held((1, 2)) == 4

    ledger.open((1, 3), "t", 100, 90, 0)  # Pages for 90 positions are promised; 4 of 20 are held.
    ledger.fork((1, 2), (1, 4), 40, 0)
    with pytest.raises(SessionFailed) as failure:
        ledger.fork((1, 2), (1, 5), 40, 0)
    assert failure.value.code is Code.SESSION_LIMIT and failure.value.retry_after_s
    ledger.close((1, 4))
    ledger.draining = True
    assert refused(lambda: ledger.fork((1, 2), (1, 4), 10, 0)) is Code.DRAINING
    ledger.draining = False
    ledger.park((1, 3), 0)
    ledger.answered((1, 2), 5, 0)
    ledger.orphan(1, 0)
    assert refused(lambda: ledger.fork((1, 2), (1, 4), 10, 0)) is Code.UNKNOWN_SESSION


def test_a_session_longer_than_all_pages_is_refused_for_good() -> None:
    """No waiting would make room for it, so it is not told to try again."""
    ledger = Ledger(replace(LIMITS, pages=5))
    assert refused(lambda: ledger.open((1, 1), "t", 51, 0, 0)) is Code.TOKEN_LIMIT
    ledger.open((1, 1), "t", 50, 50, 0)


def test_admission_asks_for_pages_for_the_prompt() -> None:
    """Held and announced pages of open sessions are not there for others, and some stay theirs to grow into."""
    ledger = Ledger(replace(LIMITS, pages=20))
    ledger.open((1, 1), "t", 100, 95, 0)
    assert ledger.pages.used == 0
    with pytest.raises(SessionFailed) as failure:
        ledger.open((1, 2), "t", 100, 91, 0)  # Ten pages of the ten that were not announced; one stays.
    assert failure.value.code is Code.SESSION_LIMIT and failure.value.retry_after_s
    ledger.open((1, 2), "t", 100, 91, 0, replay=True)
    ledger.close((1, 2))
    ledger.open((1, 2), "t", 100, 90, 0)
    assert refused(lambda: ledger.open((2, 1), "t", 100, 11, 0, replay=True)) is Code.SESSION_LIMIT
    ledger.open((2, 1), "t", 100, 10, 0, replay=True)


def test_an_announced_prompt_is_promised_until_it_has_come() -> None:
    """From then on the pages count that its rows need, also before they are taken."""
    ledger = Ledger(replace(LIMITS, pages=10))
    ledger.open((1, 1), "t", 40, 40, 0)
    for sequence in range(2):
        ledger.forward((1, 1), sequence, 20 * sequence, 20, 0, 0)
        ledger.answered((1, 1), 20, 0)
        assert refused(lambda: ledger.open((2, 1), "t", 100, 51, 0)) is Code.SESSION_LIMIT
    ledger.truncate((1, 1), 20, 0)
    ledger.open((2, 1), "t", 100, 51, 0)


def test_a_parked_session_announces_nothing() -> None:
    """What it said would come soon is not kept for it when it goes on."""
    ledger = Ledger(replace(LIMITS, pages=10))
    ledger.open((1, 1), "t", 100, 100, 0)
    ledger.park((1, 1), 0)
    ledger.truncate((1, 1), 0, 0)
    ledger.open((2, 1), "t", 100, 90, 0)


def test_pages_of_the_parked_and_of_orphans_are_there_for_others() -> None:
    """They may be ended, so what they hold is no obstacle to a new session."""
    ledger = Ledger(replace(LIMITS, pages=20))
    filled(ledger, (1, 1), "t", 100, 0)
    filled(ledger, (2, 1), "t", 100, 0)
    assert ledger.pages.free == 0
    assert refused(lambda: ledger.open((3, 1), "t", 100, 10, 0)) is Code.SESSION_LIMIT
    ledger.park((1, 1), 0)
    ledger.open((3, 1), "t", 90, 90, 0)
    ledger.orphan(2, 0)
    ledger.open((3, 2), "t", 90, 90, 0)
    assert pages_by_state(ledger) == {SessionState.OPEN: 0, SessionState.PARKED: 10, SessionState.ORPHAN: 10}


def test_forwards_come_in_order() -> None:
    """A repeated, skipped, misplaced, empty or oversized forward is refused and changes nothing."""
    ledger = Ledger(LIMITS)
    ledger.open((1, 1), "t", 50, 0, 0)
    ledger.forward((1, 1), 0, 0, 10, 0, 0)
    for sequence, position in ((0, 10), (2, 10), (1, 0), (1, 11)):
        assert (
            refused(lambda s=sequence, p=position: ledger.forward((1, 1), s, p, 5, 5, 0))  # type: ignore[misc]
            is Code.BAD_POSITION
        )
    for rows, want in ((0, 0), (21, 0), (5, 6), (5, -1)):
        assert (
            refused(lambda r=rows, w=want: ledger.forward((1, 1), 1, 10, r, w, 0))  # type: ignore[misc]
            is Code.SHAPE_MISMATCH
        )
    assert refused(lambda: ledger.forward((2, 1), 1, 10, 5, 5, 0)) is Code.UNKNOWN_SESSION
    ledger.forward((1, 1), 1, 10, 20, 20, 0)
    assert refused(lambda: ledger.forward((1, 1), 2, 30, 3, 3, 0)) is Code.CREDIT_EXCEEDED
    ledger.answered((1, 1), 10, 0)
    ledger.forward((1, 1), 2, 30, 12, 0, 0)
    ledger.answered((1, 1), 20, 0)
    assert refused(lambda: ledger.forward((1, 1), 3, 42, 9, 0, 0)) is Code.TOKEN_LIMIT
    for position in (43, -1):
        assert refused(lambda p=position: ledger.truncate((1, 1), p, 0)) is Code.BAD_POSITION  # type: ignore[misc]
    ledger.truncate((1, 1), 5, 0)
    ledger.forward((1, 1), 3, 5, 9, 0, 0)


def test_rows_that_branch() -> None:
    """They move nothing: only a path of them that is kept does. Until then nothing else comes but a truncation."""
    ledger = Ledger(LIMITS)
    ledger.open((1, 1), "t", 50, 0, 0)
    ledger.forward((1, 1), 0, 0, 10, 0, 0)
    for parents in ([-2], [0], [-1, 1], [-1], [-1, 0, 0], []):
        assert refused(lambda p=parents: ledger.forward((1, 1), 1, 10, 2, 0, 0, p)) is Code.BAD_POSITION  # type: ignore[misc]
    assert refused(lambda: ledger.keep((1, 1), [], 0)) is Code.BAD_POSITION
    ledger.forward((1, 1), 1, 10, 4, 4, 0, [-1, -1, 0, 2])
    ledger.answered((1, 1), 14, 0)
    entry = ledger.entries[1, 1]
    assert entry.position == 10
    assert refused(lambda: ledger.forward((1, 1), 2, 10, 1, 1, 0)) is Code.BAD_POSITION
    assert refused(lambda: ledger.forward((1, 1), 2, 10, 1, 1, 0, [-1])) is Code.BAD_POSITION
    assert refused(lambda: ledger.park((1, 1), 0)) is Code.BAD_POSITION
    assert refused(lambda: ledger.truncate((1, 1), 11, 0)) is Code.BAD_POSITION
    for nodes in ([2], [0, 1], [0, 3], [0, 2, 2], [4], [-1], [2, 0]):
        assert refused(lambda n=nodes: ledger.keep((1, 1), n, 0)) is Code.BAD_POSITION  # type: ignore[misc]
    ledger.keep((1, 1), [0, 2], 0)
    assert entry.position == 12
    assert refused(lambda: ledger.keep((1, 1), [], 0)) is Code.BAD_POSITION
    ledger.forward((1, 1), 2, 12, 2, 0, 0, [-1, 0])
    ledger.truncate((1, 1), 12, 0)
    ledger.forward((1, 1), 3, 12, 2, 0, 0)
    assert entry.position == 14


def test_rows_that_branch_have_limits() -> None:
    """Few at once, none that stands beyond what the session may reach, and pages for all of them."""
    ledger = Ledger(replace(LIMITS, rows=100, window_rows=100, pages=5))
    ledger.open((1, 1), "t", 41, 0, 0)
    many = MAX_BRANCHING_ROWS + 1
    assert refused(lambda: ledger.forward((1, 1), 0, 0, many, 0, 0, [-1] * many)) is Code.BAD_POSITION
    assert refused(lambda: ledger.forward((1, 1), 0, 0, 51, 0, 0, [-1] * 51)) is Code.TOKEN_LIMIT
    ledger.forward((1, 1), 0, 0, 40, 0, 0)
    assert refused(lambda: ledger.forward((1, 1), 1, 40, 3, 0, 0, [-1, -1, 0])) is Code.TOKEN_LIMIT
    assert refused(lambda: ledger.open((2, 1), "t", 50, 11, 0)) is Code.SESSION_LIMIT
    ledger.forward((1, 1), 1, 40, 3, 0, 0, [-1, -1, -1])
    assert refused(lambda: ledger.open((2, 1), "t", 50, 1, 0, replay=True)) is Code.SESSION_LIMIT
    ledger.truncate((1, 1), 40, 0)
    ledger.open((2, 1), "t", 50, 1, 0, replay=True)


def test_nodes_end_with_their_connection() -> None:
    """Who comes back sends them again."""
    ledger = Ledger(LIMITS)
    filled(ledger, (1, 1), "t", 20, 0)
    ledger.forward((1, 1), 1, 20, 2, 0, 0, [-1, -1])
    ledger.orphan(1, 1)
    ledger.resume((1, 1), (2, 1), 20, 90, 2)
    ledger.forward((2, 1), 0, 20, 2, 0, 3, [-1, -1])
    ledger.keep((2, 1), [1], 3)
    assert ledger.entries[2, 1].position == 21


def test_parking() -> None:
    """A parked session keeps its pages and its place, makes room for another, and goes on with the next forward."""
    ledger = Ledger(LIMITS)
    filled(ledger, (1, 1), "t", 40, 0)
    ledger.forward((1, 1), 2, 40, 1, 1, 0)
    assert refused(lambda: ledger.park((1, 1), 1)) is Code.BAD_POSITION
    ledger.answered((1, 1), 1, 1)
    assert ledger.park((1, 1), 2) == []
    assert ledger.entries[1, 1].state is SessionState.PARKED and ledger.pages.held((1, 1)) == 4
    assert (ledger.pages.used, ledger.pages_open) == (4, 0), "what anybody may have is not what fills a server"
    ledger.open((1, 2), "t", 10, 0, 2)
    ledger.open((1, 3), "t", 10, 0, 2)
    assert refused(lambda: ledger.forward((1, 1), 3, 41, 5, 0, 3)) is Code.SESSION_LIMIT
    assert ledger.entries[1, 1].state is SessionState.PARKED
    ledger.close((1, 3))
    ledger.forward((1, 1), 3, 41, 5, 0, 4)
    assert ledger.count(SessionState.PARKED) == 0 and ledger.of_device(1) == 2
    assert refused(lambda: ledger.park((2, 1), 5)) is Code.UNKNOWN_SESSION


def test_a_truncation_wakes_a_parked_session() -> None:
    """It is the beginning of its next turn."""
    ledger = Ledger(LIMITS)
    filled(ledger, (1, 1), "t", 40, 0)
    ledger.park((1, 1), 1)
    ledger.truncate((1, 1), 30, 2)
    assert ledger.entries[1, 1].state is SessionState.OPEN and ledger.entries[1, 1].active == 2


def test_a_tenant_parks_so_many() -> None:
    """One more ends the one it parked longest ago, and nobody else's."""
    ledger = Ledger(LIMITS)
    for session, tenant in enumerate(("other", "t", "t", "t", "t")):
        ledger.open((session, 0), tenant, 10, 0, 0)
        evicted = ledger.park((session, 0), session)
        assert evicted == ([(session - 2, 0)] if session >= 3 else [])
        for key in evicted:
            ledger.close(key)
    assert set(ledger.entries) == {(0, 0), (3, 0), (4, 0)}
    none = Ledger(replace(LIMITS, parked_sessions=0))
    none.open((1, 1), "t", 10, 0, 0)
    assert none.park((1, 1), 0) == [(1, 1)]


def test_resuming_an_orphan() -> None:
    """What a lost connection left goes on under another, where the device wants it to, as old as it was."""
    ledger = Ledger(LIMITS)
    filled(ledger, (1, 1), "t", 45, 1)
    ledger.open((2, 1), "t", 50, 0, 2)
    ledger.forward((1, 1), 3, 45, 20, 1, 3)
    ledger.orphan(1, 4)
    assert ledger.of_device(1) == 0 and ledger.entries[2, 1].state is SessionState.OPEN
    assert refused(lambda: ledger.forward((1, 1), 4, 65, 1, 1, 5)) is Code.UNKNOWN_SESSION
    ledger.answered((1, 1), 20, 5)
    assert ledger.entries[1, 1].state is SessionState.ORPHAN and ledger.entries[1, 1].active == 4
    assert refused(lambda: ledger.resume((1, 2), (3, 1), 0, 90, 6)) is Code.UNKNOWN_SESSION
    assert refused(lambda: ledger.resume((1, 1), (2, 1), 0, 90, 6)) is Code.DUPLICATE_SESSION
    assert refused(lambda: ledger.resume((1, 1), (3, 1), 66, 90, 6)) is Code.BAD_POSITION
    assert refused(lambda: ledger.resume((1, 1), (3, 1), -1, 90, 6)) is Code.BAD_POSITION
    assert refused(lambda: ledger.resume((1, 1), (3, 1), 30, 29, 6)) is Code.TOKEN_LIMIT
    assert refused(lambda: ledger.resume((1, 1), (3, 1), 30, 101, 6)) is Code.TOKEN_LIMIT
    ledger.resume((1, 1), (3, 1), 23, 90, 6)
    entry = ledger.entries[3, 1]
    assert (entry.opened, entry.order, entry.position, entry.sequence, entry.positions) == (1, 1, 23, 0, 90)
    assert entry.state is SessionState.OPEN and ledger.pages.held((3, 1)) == 3 and (1, 1) not in ledger.entries
    ledger.forward((3, 1), 0, 23, 20, 0, 7)


def test_a_resumed_session_has_room_for_what_it_now_may_reach() -> None:
    """Others begin behind its new end, not behind the one it was opened with."""
    ledger = Ledger(LIMITS)
    ledger.open((1, 1), "t", 10, 0, 0)
    ledger.resume((1, 1), (2, 1), 0, 100, 0)
    ledger.open((3, 1), "t", 100, 0, 0)
    for positions in range(10, 101, 10):
        for key in ((2, 1), (3, 1)):
            assert ledger.pages.extend(key, positions)
    assert len(ledger.pages.runs((2, 1))) == len(ledger.pages.runs((3, 1))) == 1


def test_resuming_keeps_to_the_limits() -> None:
    """It needs a free session like an open does, unless it is open itself and only changes its name."""
    ledger = Ledger(LIMITS)
    for key in ((1, 1), (2, 1), (2, 2), (3, 1)):
        ledger.open(key, "t", 10, 0, 0)
    ledger.resume((1, 1), (4, 1), 0, 10, 0)
    assert refused(lambda: ledger.resume((4, 1), (2, 3), 0, 10, 0)) is Code.SESSION_LIMIT
    ledger.orphan(4, 0)
    ledger.open((5, 1), "t", 10, 0, 0)
    assert refused(lambda: ledger.resume((4, 1), (6, 1), 0, 10, 0)) is Code.SESSION_LIMIT
    ledger.close((5, 1))
    ledger.draining = True
    assert refused(lambda: ledger.resume((4, 1), (6, 1), 0, 10, 0)) is Code.DRAINING


def test_orphans_do_not_pile_up() -> None:
    """However often a device dials and drops, no more are kept than may be open; the longest gone are ended."""
    ledger = Ledger(LIMITS)
    for connection in range(5):
        ledger.open((connection, 0), "t", 10, 0, 0)
        assert ledger.orphan(connection, connection) == ([(0, 0)] if connection == 4 else [])


def test_expiry() -> None:
    """Orphans after ``resume_s``; others that nothing came for in ``idle_s``, but none that waits for an answer."""
    ledger = Ledger(LIMITS)
    ledger.open((1, 1), "t", 50, 0, 0)
    ledger.open((1, 2), "t", 50, 0, 0)
    ledger.open((2, 1), "t", 50, 0, 0)
    ledger.forward((2, 1), 0, 0, 1, 1, 5)
    ledger.park((1, 2), 20)

    def gone(now: float) -> list[Key]:
        return expired(ledger.entries, ledger.limits, now)

    assert gone(59) == [] and gone(60) == [(1, 1)]
    assert gone(80) == [(1, 1), (1, 2)]
    ledger.answered((2, 1), 1, 100)
    assert (2, 1) not in gone(159) and (2, 1) in gone(160)
    ledger.orphan(2, 170)
    ledger.orphan(2, 190)
    assert (2, 1) not in gone(199) and (2, 1) in gone(200)


def test_victims() -> None:
    """The longest idle parked, the longest idle orphan, then the youngest open of the tenant with most pages."""
    ledger = Ledger(replace(LIMITS, sessions=9, device_sessions=9))
    filled(ledger, (1, 0), "empty", 0, 9)
    for order, (connection, tenant, positions) in enumerate(
        ((1, "few", 30), (2, "many", 20), (3, "many", 10), (3, "many", 20), (4, "few", 10), (5, "few", 0)), start=1
    ):
        filled(ledger, (connection, order), tenant, positions, 9)
    filled(ledger, (6, 1), "parker", 10, 8)
    filled(ledger, (6, 2), "parker", 10, 8)
    ledger.park((6, 2), 10)
    ledger.park((6, 1), 11)
    ledger.orphan(1, 10)
    ledger.orphan(4, 9)
    ended: list[tuple[Key, SessionState]] = []
    while (found := victim(ledger.entries, ledger.pages)) is not None:
        ended.append(found)
        ledger.close(found[0])
    assert ended == [
        ((6, 2), SessionState.PARKED),
        ((6, 1), SessionState.PARKED),
        ((4, 5), SessionState.ORPHAN),
        ((1, 1), SessionState.ORPHAN),
        ((3, 4), SessionState.OPEN),
        ((3, 3), SessionState.OPEN),
        ((2, 2), SessionState.OPEN),
    ]
    assert set(ledger.entries) == {(1, 0), (5, 6)}


def test_a_promise_lapses() -> None:
    """Pages for a prompt that was announced are kept free for a while, not for as long as its device likes."""
    whole = LIMITS.pages * LIMITS.page_positions
    ledger = Ledger(replace(LIMITS, positions=whole))
    fair = (whole - whole // 20) // 2
    ledger.open((1, 1), "one", whole, whole, 0.0)
    for tenant, prompt in (("one", 10), ("two", fair + 10)):
        with pytest.raises(SessionFailed) as refused:
            ledger.open((2, 1), tenant, prompt, prompt, PROMISE_S - 0.1)
        assert refused.value.code is Code.SESSION_LIMIT
    ledger.truncate((1, 1), 0, PROMISE_S - 0.1)
    ledger.open((2, 1), "one", 10, 10, PROMISE_S)
    ledger.open((2, 2), "two", fair + 10, fair + 10, PROMISE_S)
