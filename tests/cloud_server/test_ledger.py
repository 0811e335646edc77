"""The rules at the door: admission, order, credit, and who stays when pages run out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cloud_server.cache.moving import Key
from cloud_server.engine.entries import Limits, SessionState
from cloud_server.engine.ledger import PROMISE_S, Ledger
from cloud_server.engine.shares import expired, victim
from wire.errors import Code, SessionFailed
from wire.limits import MAX_BRANCHING_ROWS

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


KEYS = st.tuples(st.integers(0, 3), st.integers(0, 2))


class AnyUse(RuleBasedStateMachine):
    """Whatever devices try and the engine does in between, the books stay right and a refusal leaves no mark."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(replace(LIMITS, pages=12))
        self.now = 0.0

    def tried(self, call: Callable[[], object]) -> bool:
        """Whether ``call`` was not refused; if it was, that nothing has changed."""
        before = deepcopy((self.books(), vars(self.ledger.pages)))
        try:
            call()
        except SessionFailed:
            assert (self.books(), vars(self.ledger.pages)) == before
            return False
        return True

    def books(self) -> object:
        """All entries in a form that can be compared."""
        return {
            key: {
                **vars(entry),
                "window": entry.window.in_flight,
                "tree": None if entry.tree is None else (entry.tree.trunk, tuple(entry.tree.parents)),
            }
            for key, entry in self.ledger.entries.items()
        }

    def end(self, keys: list[Key]) -> None:
        """End sessions as the engine does."""
        for key in keys:
            assert self.ledger.close(key)

    @rule(
        key=KEYS,
        tenant=st.sampled_from("ab"),
        positions=st.integers(0, 110),
        part=st.floats(0, 1),
        replay=st.booleans(),
    )
    def open(self, key: Key, tenant: str, positions: int, part: float, replay: bool) -> None:
        """Who is admitted finds the pages for what it announced, once the parked and the orphans are ended."""
        prompt = round(part * positions)
        if self.tried(lambda: self.ledger.open(key, tenant, positions, prompt, self.now, replay)):
            held = pages_by_state(self.ledger)
            assert self.ledger.pages.needed(prompt) <= self.ledger.pages.count - held[SessionState.OPEN]

    @rule(key=KEYS, rows=st.integers(0, 21), slip=st.sampled_from([0] * 8 + [1]), paged=st.booleans())
    def forward(self, key: Key, rows: int, slip: int, paged: bool) -> None:
        """Rows in the right place are taken in as long as limits allow, and find pages while there are any."""
        entry = self.ledger.entries.get(key)
        sequence, position = (entry.sequence, entry.position) if entry else (0, 0)
        if self.tried(lambda: self.ledger.forward(key, sequence + slip, position, rows, 0, self.now)) and paged:
            assert not slip
            self.ledger.pages.extend(key, position + rows)

    @rule(key=KEYS, data=st.data(), slip=st.sampled_from([0] * 8 + [1]), paged=st.booleans())
    def branch(self, key: Key, data: st.DataObject, slip: int, paged: bool) -> None:
        """Rows that branch move nothing, and nothing but their end may follow."""
        entry = self.ledger.entries.get(key)
        sequence, position = (entry.sequence, entry.position) if entry else (0, 0)
        parents = [data.draw(st.integers(-1, node - 1 + slip)) for node in range(data.draw(st.integers(1, 12)))]
        rows = len(parents)
        if self.tried(lambda: self.ledger.forward(key, sequence, position, rows, 0, self.now, parents)):
            assert entry is not None and entry.position == position
            assert not self.tried(lambda: self.ledger.forward(key, sequence + 1, position, 1, 0, self.now))
            if paged:
                self.ledger.pages.extend(key, position + rows)

    @rule(key=KEYS, nodes=st.lists(st.integers(0, 12), max_size=3, unique=True).map(sorted))
    def keep(self, key: Key, nodes: list[int]) -> None:
        """A path goes on as positions."""
        entry = self.ledger.entries.get(key)
        before = entry.position if entry else 0
        if self.tried(lambda: self.ledger.keep(key, nodes, self.now)):
            assert entry is not None and entry.position == before + len(nodes) and entry.tree is None
            self.ledger.pages.truncate(key, entry.position)

    @rule(key=KEYS, rows=st.integers(1, 40))
    def answered(self, key: Key, rows: int) -> None:
        """Answers never bring a session back that is parked or an orphan."""
        entry = self.ledger.entries.get(key)
        state = entry.state if entry else None
        self.ledger.answered(key, min(rows, entry.window.in_flight) if entry else rows, self.now)
        assert (entry.state if entry else None) is state

    @rule(key=KEYS, position=st.integers(0, 100))
    def truncate(self, key: Key, position: int) -> None:
        """It is open afterwards, or was refused."""
        if self.tried(lambda: self.ledger.truncate(key, position, self.now)):
            self.ledger.pages.truncate(key, position)
            assert self.ledger.entries[key].state is SessionState.OPEN

    @rule(key=KEYS)
    def park(self, key: Key) -> None:
        """Only what is answered in full is parked, and so many of a tenant."""
        evicted: list[Key] = []
        if self.tried(lambda: evicted.extend(self.ledger.park(key, self.now))):
            assert not self.ledger.entries[key].window.in_flight
            self.end(evicted)

    @rule(connection=st.integers(0, 3))
    def orphan(self, connection: int) -> None:
        """Nothing of the connection is open any more."""
        self.end(self.ledger.orphan(connection, self.now))
        assert self.ledger.of_device(connection) == 0

    @rule(old=KEYS, new=KEYS, position=st.integers(0, 100), positions=st.integers(0, 110))
    def resume(self, old: Key, new: Key, position: int, positions: int) -> None:
        """It has its new name, its place, and no page beyond."""
        if self.tried(lambda: self.ledger.resume(old, new, position, positions, self.now)):
            entry = self.ledger.entries[new]
            assert old not in self.ledger.entries and entry.position == position and not entry.window.in_flight
            assert self.ledger.pages.held(new) <= self.ledger.pages.needed(position)

    @property
    def standing(self) -> dict[Key, tuple[object, ...]]:
        """Where each session stands, and in which pages."""
        return {
            key: (entry.position, entry.sequence, entry.state, entry.active, tuple(self.ledger.pages.table(key)))
            for key, entry in self.ledger.entries.items()
        }

    @rule(source=KEYS, key=KEYS, position=st.integers(0, 100))
    def fork(self, source: Key, key: Key, position: int) -> None:
        """It stands where it was made, with pages of its own for that; its source, and all others, as before."""
        before = self.standing
        if self.tried(lambda: self.ledger.fork(source, key, position, self.now)):
            entry, of = self.ledger.entries[key], self.ledger.entries[source]
            assert 0 < entry.position == position <= of.position and entry.state is SessionState.OPEN
            assert (entry.tenant, entry.positions, entry.sequence) == (of.tenant, of.positions, 0)
            assert self.ledger.pages.held(key) == self.ledger.pages.needed(position)
            assert {each: at for each, at in self.standing.items() if each != key} == before

    @rule(seconds=st.integers(1, 40))
    def time(self, seconds: int) -> None:
        """What has expired is ended, and then nothing has."""
        self.now += seconds
        self.end(expired(self.ledger.entries, self.ledger.limits, self.now))
        assert expired(self.ledger.entries, self.ledger.limits, self.now) == []

    @rule(key=KEYS)
    def close(self, key: Key) -> None:
        """Closing a session twice is nothing."""
        known = key in self.ledger.entries
        assert self.ledger.close(key) == known
        assert not self.ledger.close(key)

    @precondition(lambda self: self.ledger.pages.used)
    @rule()
    def preempt(self) -> None:
        """There is a victim as long as anybody holds pages."""
        ledger = self.ledger
        holding = {key for key in ledger.entries if ledger.pages.held(key)}
        found = victim(ledger.entries, ledger.pages)
        assert (found is None) == (not holding)
        if found is not None:
            key, state = found
            assert key in holding and ledger.entries[key].state is state
            states = {ledger.entries[each].state for each in holding}
            assert state is next(
                each for each in (SessionState.PARKED, SessionState.ORPHAN, SessionState.OPEN) if each in states
            )
            ledger.close(key)

    @invariant()
    def adds_up(self) -> None:
        """Limits hold, pages belong to sessions, and nobody has come further than it may."""
        ledger, limits = self.ledger, self.ledger.limits
        ledger.pages.check()
        assert sum(ledger.pages.held(key) for key in ledger.entries) == ledger.pages.used
        assert sum(pages_by_state(ledger).values()) == ledger.pages.used
        assert (
            ledger.count(SessionState.OPEN) <= limits.sessions and ledger.count(SessionState.ORPHAN) <= limits.sessions
        )
        assert all(ledger.of_device(connection) <= limits.device_sessions for connection in range(4))
        parked = Counter(entry.tenant for entry in ledger.entries.values() if entry.state is SessionState.PARKED)
        assert all(number <= limits.parked_sessions for number in parked.values())
        for key, entry in ledger.entries.items():
            assert 0 <= entry.position <= entry.positions <= limits.positions
            assert 0 <= entry.window.in_flight <= limits.window_rows
            assert entry.opened <= entry.active <= self.now
            nodes = 0 if entry.tree is None else len(entry.tree)
            assert ledger.pages.held(key) <= ledger.pages.needed(entry.position + nodes)
            assert entry.tree is None or entry.state is not SessionState.PARKED


AnyUse.TestCase.settings = settings(max_examples=150, stateful_step_count=50)
test_any_use = AnyUse.TestCase
