"""Whatever devices ask, in any order, the cloud's book adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ledgers import LIMITS, pages_by_state

from cloud_server.cache.moving import Key
from cloud_server.engine.entries import SessionState
from cloud_server.engine.ledger import Ledger
from cloud_server.engine.shares import expired, victim
from wire.errors import SessionFailed

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
