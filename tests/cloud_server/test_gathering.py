"""Decoders that come back at once are waited for, the others are not, and no wait is long."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_server.schedule.gathering import LATE, PATIENCE, SMOOTHING, Gathering

STEP_S = 0.1
FAST_S = 0.05 * STEP_S
SLOW_S = 0.6 * STEP_S
ROUNDING_S = 1e-9


class Steps:
    """A server that runs one step of ``STEP_S`` after another, as the engine does, for sessions of one row at a time.

    Args:
        back_s: from a session's answer to its next row, by session and turn.
        begin: when each session sends its first row.
        chunks: whether rows of prompts always wait too.
    """

    def __init__(self, back_s: Callable[[int, int], float], begin: Sequence[float], chunks: bool = False) -> None:
        self.gathering = Gathering[int]()
        self.batches: list[frozenset[int]] = []
        self.waited_s = 0.0
        self._back_s = back_s
        self._chunks = chunks
        self._arrivals = [(at, key) for key, at in enumerate(begin)]
        heapq.heapify(self._arrivals)
        self._turns = dict.fromkeys(range(len(begin)), 0)
        self._ready: set[int] = set()
        self._now = 0.0

    def run(self, steps: int) -> list[frozenset[int]]:
        """Run so many steps more; which sessions were in each of them."""
        first = len(self.batches)
        while len(self.batches) < first + steps:
            if not self._ready and not self._chunks:
                self._arrive(max(self._now, self._arrivals[0][0]))
            wait_s = self.gathering.wait_s(self._now, STEP_S)
            if wait_s > 0:
                until = min([self._now + wait_s, *(at for at, _ in self._arrivals[:1])])
                self.waited_s += until - self._now
                self._arrive(until)
                continue
            batch, self._ready = frozenset(self._ready), set()
            self.gathering.began(self._now, self._chunks)
            self._arrive(self._now + STEP_S)
            for key in batch:
                self.gathering.answered(key, self._now)
                heapq.heappush(self._arrivals, (self._now + self._back_s(key, self._turns[key]), key))
                self._turns[key] += 1
            self.batches.append(batch)
        return self.batches[first:]

    def _arrive(self, until: float) -> None:
        while self._arrivals and self._arrivals[0][0] <= until:
            at, key = heapq.heappop(self._arrivals)
            self.gathering.arrived(key, at)
            self._ready.add(key)
        self._now = until


def everybody(begin: Sequence[float]) -> frozenset[int]:
    """All sessions."""
    return frozenset(range(len(begin)))


begins = st.lists(st.floats(0, 3 * STEP_S), min_size=2, max_size=8)
jitter = st.randoms(use_true_random=False)


@settings(max_examples=40)
@given(begins, jitter, st.booleans())
def test_those_who_are_back_at_once_run_together(begin: list[float], noise: Random, chunks: bool) -> None:
    """However they begin, sessions that come back within a small part of a step soon share every step, also where rows
    of a prompt wait all the while, with which the next step might begin at once."""
    steps = Steps(lambda key, turn: noise.uniform(0.8, 1.2) * FAST_S, begin, chunks)
    steps.run(12)
    assert set(steps.run(20)) == {everybody(begin)}


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(1, 4), jitter)
def test_the_fast_do_not_wait_for_the_slow(fast: int, slow: int, noise: Random) -> None:
    """Beside slow sessions the fast ones still run in every step, and the waits are theirs alone."""
    steps = Steps(lambda key, turn: noise.uniform(0.9, 1.1) * (FAST_S if key < fast else SLOW_S), [0.0] * (fast + slow))
    steps.run(10)
    before = steps.waited_s
    assert all(set(range(fast)) <= batch for batch in steps.run(20))
    assert steps.waited_s - before <= 20 * LATE * 1.1 * FAST_S + ROUNDING_S


def test_who_has_become_slower_is_not_waited_for_in_vain() -> None:
    """A session that was back soon and now never is costs the other no more than the other's own way."""
    quick_s, soon_s = 0.01 * STEP_S, 0.15 * STEP_S
    steps = Steps(lambda key, turn: quick_s if key == 0 else soon_s if turn < 10 else SLOW_S, [0.0, 0.0])
    steps.run(40)
    before = steps.waited_s
    steps.run(20)
    assert steps.waited_s - before <= 20 * LATE * quick_s + ROUNDING_S


@given(
    st.lists(
        st.tuples(st.sampled_from(("answered", "arrived", "closed", "began")), st.integers(0, 3), st.floats(0, 1))
    ),
    st.floats(1e-4, 1),
)
def test_no_wait_is_long(events: list[tuple[str, int, float]], step_s: float) -> None:
    """Whatever has happened, a wait is a part of a step at most, and when it is over the step begins."""
    gathering, now = Gathering[int](), 0.0
    for what, key, later in events:
        now += later * step_s
        if what == "began":
            gathering.began(now, bool(key))
        else:
            getattr(gathering, what)(key, now) if what != "closed" else gathering.closed(key)
        wait_s = gathering.wait_s(now, step_s)
        assert 0 <= wait_s <= PATIENCE * step_s + ROUNDING_S
    over = now + PATIENCE * step_s + ROUNDING_S
    assert gathering.wait_s(over, step_s) == 0


def learnt(*keys: int, usual_s: float = FAST_S) -> Gathering[int]:
    """Sessions that are usually back after so many seconds, all just answered, at time 1."""
    gathering = Gathering[int]()
    for key in keys:
        gathering.answered(key, 0.0)
        gathering.arrived(key, usual_s)
    gathering.began(usual_s, False)
    for key in keys:
        gathering.answered(key, 1.0)
    return gathering


def test_a_wait_ends_with_the_last_who_is_expected() -> None:
    """The others are waited for while they are due, and not once the last of them is here."""
    gathering = learnt(1, 2, 3)
    gathering.arrived(1, 1.0 + 0.5 * FAST_S)
    assert 0 < gathering.wait_s(1.0 + 0.5 * FAST_S, STEP_S) <= LATE * FAST_S
    gathering.arrived(2, 1.0 + 0.9 * FAST_S)
    assert gathering.wait_s(1.0 + 0.9 * FAST_S, STEP_S) > 0
    gathering.arrived(3, 1.0 + FAST_S)
    assert gathering.wait_s(1.0 + FAST_S, STEP_S) == 0


def test_those_who_are_long_away_are_not_waited_for() -> None:
    """Who is usually back after most of a step costs the others no time."""
    gathering = learnt(1, 2, usual_s=SLOW_S)
    gathering.arrived(1, 1.0)
    assert gathering.wait_s(1.0, STEP_S) == 0


def test_the_late_and_the_closed_are_not_waited_for() -> None:
    """A wait ends when who is missing is overdue, and at once when its session ends."""
    gathering = learnt(1, 2)
    gathering.arrived(1, 1.0 + FAST_S)
    assert gathering.wait_s(1.0 + 1.01 * LATE * FAST_S, STEP_S) == 0
    gathering = learnt(1, 2)
    gathering.arrived(1, 1.0 + FAST_S)
    gathering.closed(2)
    assert gathering.wait_s(1.0 + FAST_S, STEP_S) == 0


def test_who_is_late_by_little_is_still_expected() -> None:
    """Beside what a step takes it is nothing that everybody is a little late; only later than that nobody is due."""
    gathering = learnt(1, 2)
    late = 1.0 + FAST_S + PATIENCE * STEP_S
    assert gathering.due(late - ROUNDING_S, lambda rows: STEP_S) == (2, 0.0)
    assert gathering.due(late + ROUNDING_S, lambda rows: STEP_S) == (0, 0.0)


def test_nobody_is_due_for_longer_than_a_step() -> None:
    """However long somebody usually takes, a session that hangs holds chunks up for one step of decoders at most."""
    gathering = learnt(1, usual_s=20 * STEP_S)
    latest = 1.0 + 21 * STEP_S
    assert gathering.due(latest - ROUNDING_S, lambda rows: STEP_S)[0] == 1
    assert gathering.due(latest + ROUNDING_S, lambda rows: STEP_S)[0] == 0


def test_who_waits_for_more_answers_is_not_expected_back() -> None:
    """A session of whose rows some were answered and some wait still is neither due nor waited for, and what it sends
    meanwhile says nothing of how long it takes to come back."""
    gathering = learnt(1, 2)
    gathering.closed(2)
    gathering.arrived(1, 1.0 + FAST_S)
    gathering.answered(1, 2.0, more=True)
    gathering.arrived(3, 2.0)
    assert gathering.due(2.0, lambda rows: STEP_S) == (0, 0.0) and gathering.wait_s(2.0, STEP_S) == 0
    gathering.arrived(1, 2.0 + SLOW_S)
    gathering.answered(1, 3.0)
    assert gathering.due(3.0, lambda rows: STEP_S) == pytest.approx((1, FAST_S))


def test_the_shortest_usual_time_away_is_told() -> None:
    """Of all sessions that are open, whether they are back or not; nothing where none has come back yet."""
    assert Gathering[int]().away_s == 0
    gathering = learnt(1, 2, usual_s=SLOW_S)
    gathering.answered(3, 1.0)
    assert gathering.away_s == SLOW_S
    gathering.arrived(3, 1.0 + FAST_S)
    assert gathering.away_s == pytest.approx(FAST_S)
    gathering.closed(3)
    assert gathering.away_s == SLOW_S
    gathering.arrived(1, 1.0 + 2 * SLOW_S)
    gathering.arrived(2, 1.0 + 3 * SLOW_S)
    assert gathering.away_s == pytest.approx((SMOOTHING + 2 * (1 - SMOOTHING)) * SLOW_S)
    gathering.closed(1)
    gathering.closed(2)
    assert gathering.away_s == 0


def test_a_pause_makes_nobody_seem_far_away() -> None:
    """One stall of ten seconds counts as twice the usual time; who stays slower is known as that in the end."""
    gathering = learnt(1, usual_s=FAST_S)
    gathering.answered(1, 5.0)
    gathering.arrived(1, 15.0)
    assert gathering.away_s <= 1.21 * FAST_S
    now = 20.0
    for _ in range(60):
        gathering.answered(1, now)
        now += 50 * FAST_S
        gathering.arrived(1, now)
    assert gathering.away_s >= 45 * FAST_S


def test_nobody_is_waited_for_where_nothing_waits() -> None:
    """Without rows there is no step to hold up, and without answers nobody to come back."""
    assert learnt(1, 2).wait_s(1.0, STEP_S) == 0
    gathering = Gathering[int]()
    gathering.arrived(1, 0.0)
    assert gathering.wait_s(0.0, STEP_S) == 0
