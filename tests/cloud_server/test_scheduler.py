"""Steps as lists: decoders first, nobody starves, the budget is kept, every session's order is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_server.scheduler import SHORT_ROWS, Plan, Portion, Scheduler, Truncation


def test_decoders_go_before_an_older_chunk() -> None:
    """A chunk that came first fills what the decode rows leave."""
    scheduler = Scheduler[object]()
    scheduler.add("prompt", 0, 100)
    for each in range(3):
        scheduler.add(f"decoder {each}", 7, 1)
    assert scheduler.plan(64) == Plan(
        (),
        (
            Portion("decoder 0", 7, 0, 1, True),
            Portion("decoder 1", 7, 0, 1, True),
            Portion("decoder 2", 7, 0, 1, True),
            Portion("prompt", 0, 0, 61, False),
        ),
    )
    assert scheduler.plan(64) == Plan((), (Portion("prompt", 0, 61, 39, True),))
    assert scheduler.plan(64) == Plan((), ())


def test_chunks_oldest_first() -> None:
    """The older prompt is finished before a younger one gets rows."""
    scheduler = Scheduler[object]()
    for name in ("old", "young"):
        scheduler.add(name, 0, 100)
    plan = scheduler.plan(150)
    assert [(portion.key, portion.rows) for portion in plan.portions] == [("old", 100), ("young", 50)]


def test_one_forward_of_a_session_in_a_step() -> None:
    """A session's second chunk waits for the next step: its rows stand behind the first's."""
    scheduler = Scheduler[object]()
    scheduler.add("a", 0, 40)
    scheduler.add("a", 1, 40)
    assert [portion.sequence for portion in scheduler.plan(100).portions] == [0]
    assert [portion.sequence for portion in scheduler.plan(100).portions] == [1]


def test_truncation_keeps_its_place() -> None:
    """It takes effect after the forwards before it and before the one behind it."""
    scheduler = Scheduler[object]()
    scheduler.add("a", 0, 5)
    scheduler.truncate("a", 2)
    scheduler.add("a", 1, 3)
    assert scheduler.plan(100) == Plan((), (Portion("a", 0, 0, 5, True),))
    assert scheduler.plan(100) == Plan((Truncation("a", 2),), (Portion("a", 1, 0, 3, True),))


def test_a_removed_session_is_forgotten() -> None:
    """Nothing of it runs any more."""
    scheduler = Scheduler[object]()
    scheduler.add("a", 0, 500)
    scheduler.plan(100)
    scheduler.remove("a")
    assert scheduler.plan(100) == Plan((), ()) and scheduler.waiting_rows == 0


def test_decoders_cannot_starve_a_chunk() -> None:
    """Though short work alone would fill every step, a waiting chunk gets its share of each."""
    scheduler = Scheduler[object]()
    scheduler.add("prompt", 0, 100)
    for step in range(10):
        for each in range(40):
            scheduler.add(each, step, 1)
        plan = scheduler.plan(32)
        assert sum(portion.rows for portion in plan.portions if portion.key == "prompt") >= 8
        if any(portion.last for portion in plan.portions if portion.key == "prompt"):
            return


Work = st.tuples(st.sampled_from("abcde"), st.integers(0, 120))


@given(st.lists(st.lists(Work, max_size=6), max_size=12), st.integers(8, 100))
def test_any_arrivals(arrivals: list[list[tuple[str, int]]], budget: int) -> None:
    """Whatever comes when: the budget holds, every row runs exactly once and in order, and all work ends."""
    scheduler = Scheduler[object]()
    expected: dict[str, list[tuple[str, int]]] = {key: [] for key in "abcde"}
    ran: dict[str, list[tuple[str, int]]] = {key: [] for key in "abcde"}
    counts = dict.fromkeys("abcde", 0)
    rounds = [*arrivals, *([[]] * 2000)]
    for batch in rounds:
        for key, rows in batch:
            if rows == 0:
                scheduler.truncate(key, counts[key])
                expected[key].append(("truncate", counts[key]))
            else:
                scheduler.add(key, counts[key], rows)
                expected[key] += [(f"forward {counts[key]}", row) for row in range(rows)]
                counts[key] += 1
        plan = scheduler.plan(budget)
        assert plan.rows <= budget
        assert len({portion.key for portion in plan.portions}) == len(plan.portions)
        for truncation in plan.truncations:
            ran[str(truncation.key)].append(("truncate", truncation.position))
        for portion in plan.portions:
            rows_run = range(portion.begin, portion.begin + portion.rows)
            ran[str(portion.key)] += [(f"forward {portion.sequence}", row) for row in rows_run]
        if not batch and not plan.portions and not plan.truncations:
            break
    assert ran == expected
    assert scheduler.waiting_rows == 0


@given(st.integers(1, 60), st.integers(1, 5))
def test_a_decoder_waits_at_most_one_step_behind_prompts(decoders: int, prompts: int) -> None:
    """With a budget that holds all decoders and the chunks' share, every decode row runs in the very next step."""
    scheduler = Scheduler[object]()
    for each in range(prompts):
        scheduler.add(f"prompt {each}", 0, 400)
    for each in range(decoders):
        scheduler.add(each, 0, 1)
    budget = 2 * max(decoders, SHORT_ROWS)
    portions = scheduler.plan(budget).portions
    assert sum(1 for portion in portions if isinstance(portion.key, int)) == decoders


def test_sending_far_ahead_gives_no_earlier_turn() -> None:
    """A device whose sessions have queued hundreds of rows each holds up somebody else's row by one round of turns."""
    scheduler = Scheduler[object]()
    for session in range(64):
        for forward in range(32):
            scheduler.add(session, forward, 32)
    scheduler.plan(512)
    scheduler.add("other", 0, 1)
    steps = 1
    while all(portion.key != "other" for portion in scheduler.plan(512).portions):
        steps += 1
    assert steps <= 64 * 32 // 512 + 1
