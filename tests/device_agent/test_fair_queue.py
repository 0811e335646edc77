"""Whose work is next: in order within a tenant, by turns among them, whatever any of them asks for."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from device_agent.sharing.compute import FairQueue
from device_agent.sharing.permit_queue import NOBODY

Item = TypeVar("Item")

MOST = 4.0
"""Cost of the dearest work here."""
EVENTS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "run", "done"]), st.floats(0.0, MOST)), max_size=80)


def taken(queue: FairQueue[Item]) -> tuple[str, Item]:
    """What runs next."""
    found = queue.take()
    assert found is not None
    return found


@given(EVENTS, st.integers(1, 3))
def test_all_work_runs_once_and_in_order(events: list[tuple[str, float]], threads: int) -> None:
    """However it comes, and however many run at once; what waits and runs is counted."""
    queue: FairQueue[tuple[str, int]] = FairQueue()
    added: Counter[str] = Counter()
    ran: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    running: list[str] = []

    def take() -> None:
        tenant, (of, number) = taken(queue)
        assert tenant == of
        ran[of].append(number)
        running.append(tenant)

    for what, cost in events:
        if what == "run":
            if len(queue) and len(running) < threads:
                take()
        elif what == "done":
            if running:
                queue.done(running.pop(0), cost)
        else:
            queue.add(what, (what, added[what]))
            added[what] += 1
        assert len(queue) == sum(added.values()) - sum(map(len, ran.values()))
        assert queue.idle == (not len(queue) and not running)
    while len(queue):
        take()
    assert ran == {tenant: list(range(added[tenant])) for tenant in ran}


@given(st.lists(st.floats(0.01, MOST), min_size=40, max_size=80), st.integers(0, 20), st.data())
def test_a_newcomer_waits_for_its_share_only(costs: list[float], before: int, data: st.DataObject) -> None:
    """Beside a tenant with any amount of work waiting, one that comes at any time has had, whenever it has had work
    waiting, as much time as the other since it came, but for one work of each."""
    queue: FairQueue[str] = FairQueue()
    for _ in costs:
        queue.add("greedy", "work")
    had = {"greedy": 0.0, "late": 0.0}
    for at, cost in enumerate(costs):
        if at == before:
            for _ in range(len(costs)):
                queue.add("late", "work")
            had = dict.fromkeys(had, 0.0)
        tenant, _ = taken(queue)
        queue.done(tenant, cost)
        had[tenant] += cost
        if at >= before:
            assert abs(had["late"] - had["greedy"]) <= 2 * MOST


def test_a_newcomer_is_next() -> None:
    """While one of many works of another tenant runs: it does not wait for what that has queued."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(24):
        queue.add("greedy", "work")
    assert taken(queue) == ("greedy", "work")
    queue.add("late", "first")
    queue.done("greedy", 0.001)
    assert taken(queue) == ("late", "first")


def test_whether_others_wait() -> None:
    """Somebody else's work, and not what runs."""
    queue: FairQueue[int] = FairQueue()
    assert not queue.others_wait("a")
    queue.add("a", 0)
    assert queue.others_wait("b") and not queue.others_wait("a")
    queue.add("b", 1)
    assert queue.others_wait("a")
    assert taken(queue) == ("a", 0) and not queue.others_wait("b")


def test_nobody_saves_up_turns() -> None:
    """Who was away while another worked alone begins beside it, not ahead by all that time."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(60):
        queue.add("a", "work")
    queue.add("b", "work")
    for _ in range(31):
        queue.done(taken(queue)[0], 1.0)
    for _ in range(10):
        queue.add("b", "work")
    whose = []
    for _ in range(10):
        tenant, _ = taken(queue)
        queue.done(tenant, 1.0)
        whose.append(tenant)
    assert Counter(whose) == {"a": 5, "b": 5}


def test_what_runs_counts_before_it_is_done() -> None:
    """Of two threads, a tenant does not get the second as well while another waits that has had as little."""
    queue: FairQueue[str] = FairQueue()
    queue.add("a", "long")
    queue.add("a", "long")
    queue.add("b", "short")
    assert [taken(queue)[0], taken(queue)[0]] == ["a", "b"]


def test_a_limit_of_what_one_has_running() -> None:
    """Who has as many running as it may waits, and others go; where there are no keys nobody has a limit."""
    queue: FairQueue[int] = FairQueue(most=1)
    for tenant in ("a", "a", "b", NOBODY, NOBODY):
        queue.add(tenant, len(queue))
    assert sorted(taken(queue)[0] for _ in range(4)) == [NOBODY, NOBODY, "a", "b"]
    assert queue.take() is None and len(queue) == 1
    queue.done("a", 1.0)
    assert taken(queue) == ("a", 1)


def test_tenants_that_are_gone_are_forgotten() -> None:
    """However many come and go beside one that always has work."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(4000):
        queue.add("always", "work")
    for number in range(1000):
        queue.add(f"once {number}", "work")
        for _ in range(2):
            queue.done(taken(queue)[0], 1.0)
        assert len(queue._times) < 10
