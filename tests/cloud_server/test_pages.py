"""Pages add up whatever happens, and a session's pages lie side by side while there is room for it."""

from __future__ import annotations

import random
from copy import deepcopy
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from cloud_server.cache.pages import Pages


class AnyUse(RuleBasedStateMachine):
    """Sessions that come, grow, shrink, move and go in a small pool, beside a plain account of what they have."""

    sessions = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self.pages = Pages[int](count=13, page_positions=4)
        self.reached: dict[int, int] = {}
        self.names = 0

    def name(self) -> int:
        self.names += 1
        return self.names

    @rule(target=sessions, hint=st.integers(0, 120))
    def open(self, hint: int) -> int:
        """Opening takes no page."""
        key, free = self.name(), self.pages.free
        self.pages.open(key, hint)
        self.reached[key] = 0
        assert self.pages.free == free and self.pages.held(key) == 0
        return key

    @rule(key=sessions, positions=st.integers(0, 60))
    def extend(self, key: int, positions: int) -> None:
        """It fails only for want of pages, and then changes nothing; what the session had keeps its place."""
        before = deepcopy(vars(self.pages))
        table, free = list(self.pages.table(key)), self.pages.free
        missing = max(0, self.pages.needed(positions) - len(table))
        assert self.pages.extend(key, positions) == (missing <= free)
        if missing <= free:
            assert self.pages.free == free - missing
            assert list(self.pages.table(key))[: len(table)] == table
            self.reached[key] = max(self.reached[key], positions)
        else:
            assert vars(self.pages) == before

    @rule(key=sessions, position=st.integers(0, 60))
    def truncate(self, key: int, position: int) -> None:
        """Exactly the pages with nothing below the position are given back."""
        table = list(self.pages.table(key))
        self.pages.truncate(key, position)
        self.reached[key] = min(self.reached[key], position)
        assert list(self.pages.table(key)) == table[: self.pages.needed(position)]

    @rule(target=sessions, source=sessions, positions=st.integers(0, 60))
    def fork(self, source: int, positions: int) -> object:
        """It has pages of its own, or there are none and nothing has changed; its source keeps what it had."""
        before, table, free = deepcopy(vars(self.pages)), list(self.pages.table(source)), self.pages.free
        key, needed = self.name(), self.pages.needed(positions)
        assert self.pages.fork(source, key, positions) == (needed <= free)
        assert list(self.pages.table(source)) == table
        if needed > free:
            assert vars(self.pages) == before
            return multiple()
        assert self.pages.free == free - needed and not set(table) & set(self.pages.table(key))
        self.reached[key] = positions
        return key

    @rule(target=sessions, key=consumes(sessions))
    def rename(self, key: int) -> int:
        """The pages stay the same."""
        new, table = self.name(), list(self.pages.table(key))
        self.pages.rename(key, new)
        self.reached[new] = self.reached.pop(key)
        assert list(self.pages.table(new)) == table
        return new

    @rule(key=sessions, hint=st.integers(0, 120))
    def expect(self, key: int, hint: int) -> None:
        """Another hint moves nothing."""
        table = list(self.pages.table(key))
        self.pages.expect(key, hint)
        assert list(self.pages.table(key)) == table

    @rule(target=sessions, key=consumes(sessions))
    def close(self, key: int) -> object:
        """All its pages come back, and it is not known any more."""
        held, free = self.pages.held(key), self.pages.free
        assert self.pages.close(key) == held and self.pages.free == free + held
        del self.reached[key]
        with pytest.raises(KeyError):
            self.pages.held(key)
        return multiple()

    @invariant()
    def adds_up(self) -> None:
        """Every page is free or in one table, and every table covers what its session has reached."""
        self.pages.check()
        assert self.pages.free + self.pages.used == self.pages.count == 13
        assert self.pages.used == sum(self.pages.held(key) for key in self.reached)
        for key, reached in self.reached.items():
            table = list(self.pages.table(key))
            assert len(table) == self.pages.held(key) >= self.pages.needed(reached)
            assert table == [page for begin, end in self.pages.runs(key) for page in range(begin, end)]
            assert all(0 <= page < 13 for page in table)
            runs = self.pages.runs(key)
            assert all(before[1] != after[0] for before, after in pairwise(runs))


AnyUse.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
test_any_use = AnyUse.TestCase


@pytest.mark.parametrize("seed", range(5))
def test_tables_are_single_runs_in_a_normal_load(seed: int) -> None:
    """Sixteen sessions at a time that grow within their hints, in a pool of twice what they need, hardly ever meet."""
    rng = random.Random(seed)
    longest, page_positions = 1024, 16
    pages = Pages[int](2 * 16 * longest // page_positions, page_positions)
    reach: dict[int, int] = {}
    position: dict[int, int] = {}
    whole = total = 0
    for name in range(600):
        while len(reach) == 16 or (reach and rng.random() < 0.9):
            key = rng.choice(list(reach))
            position[key] = min(reach[key], position[key] + rng.choice((1, 1, 4, 128)))
            assert pages.extend(key, position[key])
            if position[key] == reach[key]:
                total += 1
                whole += len(pages.runs(key)) == 1
                pages.close(key)
                del reach[key], position[key]
        hint = rng.randrange(64, longest + 1)
        pages.open(name, hint)
        reach[name], position[name] = rng.randrange(hint // 4, hint + 1), 0
    pages.check()
    assert total > 500
    assert whole >= 0.95 * total, (whole, total)


def test_sessions_that_grow_by_turns_stay_apart() -> None:
    """Each is placed behind what those before it are expected to take, so growing in turn never mixes their pages."""
    pages = Pages[str](32, 1)
    for name in "abcd":
        pages.open(name, 8)
    for positions in range(1, 9):
        for name in "abcd":
            assert pages.extend(name, positions)
    assert [pages.runs(name) for name in "abcd"] == [((0, 8),), ((8, 16),), ((16, 24),), ((24, 32),)]


def test_the_tightest_room_that_holds_all_is_taken() -> None:
    """A short session goes into a short gap and leaves the long one whole."""
    pages = Pages[str](32, 1)
    for name, length in (("a", 4), ("gap", 3), ("b", 4)):
        pages.open(name, length)
        pages.extend(name, length)
    pages.close("gap")
    pages.open("short", 3)
    pages.extend("short", 1)
    pages.open("long", 20)
    pages.extend("long", 20)
    assert pages.runs("short") == ((4, 5),) and pages.runs("long") == ((11, 31),)


def test_hints_beyond_the_pool_leave_room_to_the_others() -> None:
    """Sessions that might grow for ever halve what is free, and are single runs while they fit in their parts."""
    pages = Pages[int](64, 16)
    for key in range(4):
        pages.open(key, 32768)
    for positions in range(1, 16 * 16 + 1):
        for key in range(4):
            assert pages.extend(key, positions)
    assert sorted(tuple(pages.runs(key)) for key in range(4)) == [((0, 16),), ((16, 32),), ((32, 48),), ((48, 64),)]
    assert pages.free == 0 and not pages.extend(0, 16 * 16 + 1)


def test_a_claim_yields_when_there_is_no_other_room() -> None:
    """What a session might still take is no reservation: another gets every page that is free."""
    pages = Pages[str](10, 1)
    pages.open("first", 10)
    pages.extend("first", 2)
    pages.open("second", 8)
    assert pages.extend("second", 8) and pages.free == 0
    assert pages.held("second") == 8 and not pages.extend("first", 3)
    pages.check()


def test_an_overgrown_session_goes_on_elsewhere() -> None:
    """One that meets another is continued where the rest of it fits, and goes on there."""
    pages = Pages[str](20, 1)
    pages.open("a", 4)
    pages.open("b", 4)
    pages.extend("a", 4)
    pages.extend("b", 2)
    for positions in range(5, 10):
        assert pages.extend("a", positions)
    assert pages.runs("a") == ((0, 4), (8, 13))
    pages.truncate("a", 4)
    assert pages.runs("a") == ((0, 4),) and pages.table("a") == [0, 1, 2, 3]


def test_an_emptied_session_grows_again_where_it_was() -> None:
    """A truncation to the beginning gives up the pages but not the place."""
    pages = Pages[str](20, 1)
    pages.open("a", 10)
    pages.open("b", 5)
    pages.extend("b", 3)
    pages.truncate("b", 0)
    assert pages.free == 20
    pages.extend("b", 5)
    assert pages.runs("b") == ((10, 15),)
