"""Steps as lists: short work first, nobody starves, tenants share, budgets are kept, every session keeps its order."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st
from schedulers import step_rows, waits, whole

from cloud_server.schedule.plan import CHUNK_SHARE, SHORT_ROWS, Budget, Demand, Plan, Portion, Truncation
from cloud_server.schedule.scheduler import MIN_CHUNK_ROWS, Scheduler


def test_how_far_back_a_session_may_go() -> None:
    """Only what waits to be forgotten counts, and no longer than it waits."""
    scheduler = Scheduler[str]()
    assert scheduler.goes_back_to("a", 9) == 9
    scheduler.add("a", 0, 40)
    assert scheduler.goes_back_to("a", 9) == 9
    scheduler.truncate("a", 7)
    scheduler.add("a", 1, 1)
    scheduler.truncate("a", 8)
    assert (scheduler.goes_back_to("a", 9), scheduler.goes_back_to("a", 5), scheduler.goes_back_to("b", 9)) == (7, 5, 9)
    for _ in range(3):
        scheduler.plan(Budget(64, 64))
    assert scheduler.goes_back_to("a", 9) == 9


def test_decoders_go_before_an_older_chunk() -> None:
    """A chunk that came first fills what the decode rows leave."""
    scheduler = Scheduler[object]()
    scheduler.add("prompt", 0, 100)
    for each in range(3):
        scheduler.add(f"decoder {each}", 7, 1)
    assert scheduler.plan(whole(64)) == Plan(
        (),
        (
            Portion("decoder 0", 7, 0, 1, True),
            Portion("decoder 1", 7, 0, 1, True),
            Portion("decoder 2", 7, 0, 1, True),
            Portion("prompt", 0, 0, 61, False),
        ),
    )
    assert scheduler.plan(whole(64)) == Plan((), (Portion("prompt", 0, 61, 39, True),))
    assert scheduler.plan(whole(64)) == Plan((), ())


def test_chunks_oldest_first() -> None:
    """The older prompt is finished before a younger one gets rows."""
    scheduler = Scheduler[object]()
    for name in ("old", "young"):
        scheduler.add(name, 0, 100)
    plan = scheduler.plan(whole(150))
    assert [(portion.key, portion.rows) for portion in plan.portions] == [("old", 100), ("young", 50)]


def test_one_forward_of_a_session_in_a_step() -> None:
    """A session's second chunk waits for the next step: its rows stand behind the first's."""
    scheduler = Scheduler[object]()
    scheduler.add("a", 0, 40)
    scheduler.add("a", 1, 40)
    assert [portion.sequence for portion in scheduler.plan(whole(100)).portions] == [0]
    assert [portion.sequence for portion in scheduler.plan(whole(100)).portions] == [1]


def test_short_forwards_of_a_session_run_together() -> None:
    """Rows of a draft that came one by one are in the same step, in order, each with its own number."""
    scheduler = Scheduler[object]()
    for sequence, rows in enumerate((1, 1, 2)):
        scheduler.add("drafter", sequence, rows)
    scheduler.add("decoder", 0, 1)
    assert scheduler.demand == Demand(5, 2, 0)
    assert scheduler.plan(whole(100)).portions == (
        Portion("drafter", 0, 0, 1, True),
        Portion("drafter", 1, 0, 1, True),
        Portion("drafter", 2, 0, 2, True),
        Portion("decoder", 0, 0, 1, True),
    )
    assert not waits(scheduler, "drafter")


def test_what_runs_together_is_short_in_all_and_in_one_piece() -> None:
    """A truncation, a chunk, rows that branch, or one row too many end what goes into a step."""
    scheduler = Scheduler[object]()
    scheduler.add("long", 0, SHORT_ROWS - 1)
    scheduler.add("long", 1, 1)
    scheduler.add("long", 2, 1)
    scheduler.add("back", 0, 1)
    scheduler.truncate("back", 0)
    scheduler.add("back", 1, 1)
    scheduler.add("prompt", 0, 1)
    scheduler.add("prompt", 1, SHORT_ROWS + 1)
    scheduler.add("prompt", 2, 1)
    scheduler.add("tree", 0, 1)
    scheduler.add("tree", 1, 3, whole=True)
    scheduler.add("tree", 2, 1)
    assert scheduler.demand == Demand(SHORT_ROWS + 3, 4, 0)
    steps = [{(each.key, each.sequence) for each in scheduler.plan(whole(100)).portions} for _ in range(4)]
    assert steps == [
        {("long", 0), ("long", 1), ("back", 0), ("prompt", 0), ("tree", 0)},
        {("long", 2), ("back", 1), ("tree", 1), ("prompt", 1)},
        {("tree", 2), ("prompt", 2)},
        set(),
    ]


def test_a_budget_may_end_between_a_sessions_forwards() -> None:
    """What is left of them goes on in the next step, where it left off; every row counts."""
    scheduler = Scheduler[object]()
    for sequence in range(3):
        scheduler.add("drafter", sequence, 3)
    assert scheduler.plan(whole(7)).portions == (
        Portion("drafter", 0, 0, 3, True),
        Portion("drafter", 1, 0, 3, True),
        Portion("drafter", 2, 0, 1, False),
    )
    assert scheduler.waiting_rows == 2
    scheduler.add("drafter", 3, 1)
    assert scheduler.plan(whole(7)).portions == (
        Portion("drafter", 2, 1, 2, True),
        Portion("drafter", 3, 0, 1, True),
    )


def test_rows_that_branch_are_never_divided() -> None:
    """They wait for a step that holds them, are passed by nobody, and where none does, one holds them all the same; the
    chunks' part is theirs even then."""
    scheduler = Scheduler[object]()
    scheduler.add("first", 0, 30)
    scheduler.add("tree", 0, 40, whole=True)
    scheduler.add("behind", 0, 1)
    assert [portion.key for portion in scheduler.plan(whole(64)).portions] == ["first"]
    assert scheduler.plan(whole(64)).portions == (
        Portion("tree", 0, 0, 40, True),
        Portion("behind", 0, 0, 1, True),
    )
    scheduler.add("tree", 1, 64, whole=True)
    scheduler.add("prompt", 0, 100)
    assert scheduler.plan(whole(32)).portions == (Portion("tree", 1, 0, 64, True), Portion("prompt", 0, 0, 8, False))


def test_kept_nodes_and_truncations_behind_them_are_one() -> None:
    """Going back into what was kept keeps less; going back further, nothing."""
    for back, expected in ((9, (6, (0, 2, 5))), (7, (6, (0,))), (6, (6, ())), (3, (3, ()))):
        scheduler = Scheduler[object]()
        scheduler.add("a", 0, 9, whole=True)
        scheduler.truncate("a", 6, (0, 2, 5))
        scheduler.truncate("a", back)
        scheduler.plan(whole(100))
        assert scheduler.plan(whole(100)) == Plan((Truncation("a", *expected),), ())


def test_truncation_keeps_its_place() -> None:
    """It takes effect after the forwards before it and before the one behind it."""
    scheduler = Scheduler[object]()
    scheduler.add("a", 0, 5)
    scheduler.truncate("a", 2)
    scheduler.add("a", 1, 3)
    assert scheduler.plan(whole(100)) == Plan((), (Portion("a", 0, 0, 5, True),))
    assert scheduler.plan(whole(100)) == Plan((Truncation("a", 2),), (Portion("a", 1, 0, 3, True),))


def test_truncations_do_not_pile_up() -> None:
    """Behind a forward that waits, any number of them are one, to the lowest position."""
    scheduler = Scheduler[object]()
    scheduler.add("a", 0, 5)
    for position in (4, 2, 3):
        scheduler.truncate("a", position)
    scheduler.add("a", 1, 1)
    scheduler.truncate("a", 3)
    scheduler.plan(whole(100))
    assert scheduler.plan(whole(100)) == Plan((Truncation("a", 2),), (Portion("a", 1, 0, 1, True),))
    assert scheduler.plan(whole(100)) == Plan((Truncation("a", 3),), ())


def test_a_removed_session_is_forgotten() -> None:
    """Nothing of it runs any more, and nothing of it is counted."""
    scheduler = Scheduler[object]()
    scheduler.add("a", 0, 500)
    scheduler.add("a", 1, 5)
    scheduler.add("b", 0, 7)
    scheduler.plan(whole(100))
    scheduler.remove("a")
    scheduler.remove("never there")
    assert scheduler.waiting_rows == 0 and not waits(scheduler, "a")
    assert scheduler.plan(whole(100)) == Plan((), ())


def test_what_waits_is_told() -> None:
    """Sessions with queued rows or a queued truncation wait; only a session's next work can be in the next step."""
    scheduler = Scheduler[object]()
    assert not waits(scheduler, "a") and scheduler.waiting_sessions == scheduler.demand.short_rows == 0
    scheduler.truncate("a", 3)
    assert waits(scheduler, "a") and scheduler.demand.short_rows == 0
    scheduler.add("a", 0, 5)
    scheduler.add("a", 1, 7)
    scheduler.add("b", 0, SHORT_ROWS + 1)
    scheduler.add("b", 1, 1)
    assert (scheduler.waiting_sessions, scheduler.waiting_rows, scheduler.demand.short_rows) == (2, 46, 12)
    scheduler.plan(whole(100))
    assert (scheduler.waiting_sessions, scheduler.waiting_rows, scheduler.demand.short_rows) == (1, 1, 1)
    scheduler.truncate("b", 0)
    scheduler.plan(whole(100))
    assert waits(scheduler, "b") and not waits(scheduler, "a") and scheduler.waiting_rows == 0
    assert scheduler.plan(whole(100)) == Plan((Truncation("b", 0),), ()) and not waits(scheduler, "b")


def test_a_chunk_in_decoders_company_is_held_back() -> None:
    """It gets ``chunk_rows``, but never fewer than the least; and all of the budget as soon as it is alone."""
    scheduler = Scheduler[object]()
    scheduler.add("prompt", 0, 400)
    for step, (chunk_rows, expected) in enumerate(((50, 50), (0, MIN_CHUNK_ROWS))):
        scheduler.add("decoder", step, 1)
        portions = scheduler.plan(Budget(200, chunk_rows)).portions
        assert [(portion.key, portion.rows) for portion in portions] == [("decoder", 1), ("prompt", expected)]
    assert step_rows(scheduler.plan(Budget(200, 0))) == 200


def test_decoders_cannot_starve_a_chunk() -> None:
    """Though short work alone would fill every step, a waiting chunk gets its share of each."""
    scheduler = Scheduler[object]()
    scheduler.add("prompt", 0, 100)
    for step in range(13):
        for each in range(40):
            scheduler.add(each, step, 1)
        plan = scheduler.plan(whole(32))
        assert step_rows(plan) == 32
        assert sum(portion.rows for portion in plan.portions if portion.key == "prompt") == min(8, 100 - 8 * step)
    assert not waits(scheduler, "prompt")


def test_verifications_as_large_as_the_step_cannot_starve_a_chunk() -> None:
    """Short work is begun where it does not fit, but not in the chunk's part."""
    scheduler = Scheduler[object]()
    scheduler.add("prompt", 0, 100)
    for step in range(10):
        scheduler.add("drafter", step, SHORT_ROWS)
        plan = scheduler.plan(whole(16))
        assert step_rows(plan) == 16
        assert plan.portions[-1].key == "prompt" and plan.portions[-1].rows >= 4


Work = st.tuples(st.sampled_from("abcde"), st.one_of(st.integers(0, 12), st.integers(0, 120)), st.booleans())

Budgets = st.builds(Budget, st.integers(CHUNK_SHARE, 100), st.integers(0, 100))


@given(st.lists(st.tuples(Budgets, st.lists(Work, max_size=6)), max_size=12), Budgets)
def test_any_arrivals(arrivals: list[tuple[Budget, list[tuple[str, int, bool]]]], final: Budget) -> None:
    """Whatever comes when: the budget holds, every row runs exactly once and in order, and all work ends."""
    scheduler = Scheduler[str]()
    expected: dict[str, list[tuple[str, int]]] = {key: [] for key in "abcde"}
    ran: dict[str, list[tuple[str, int]]] = {key: [] for key in "abcde"}
    rows_of: dict[tuple[str, int], int] = {}
    undivided: set[tuple[str, int]] = set()
    counts = dict.fromkeys("abcde", 0)
    waiting = 0
    for budget, batch in [*arrivals, *([(final, [])] * 3000)]:
        for key, rows, branch in batch:
            if rows == 0:
                scheduler.truncate(key, counts[key])
                back = ("truncate", counts[key])
                if ran[key] == expected[key] or expected[key][-1] != back:  # Else both are one.
                    expected[key].append(back)
            else:
                scheduler.add(key, counts[key], rows, tenant=key in "ab", whole=branch)
                expected[key] += [(f"forward {counts[key]}", row) for row in range(rows)]
                rows_of[key, counts[key]] = rows
                if branch:
                    undivided.add((key, counts[key]))
                counts[key] += 1
                waiting += rows
        demand = scheduler.demand
        plan = scheduler.plan(budget)
        waiting -= step_rows(plan)
        assert scheduler.waiting_rows == waiting
        if (first := plan.portions[:1]) and (first[0].key, first[0].sequence) in undivided:
            assert step_rows(plan) <= max(budget.rows, first[0].rows + budget.rows // CHUNK_SHARE)
        else:
            assert step_rows(plan) <= budget.rows
        assert bool(step_rows(plan)) == bool(waiting + step_rows(plan)), "a step with nothing in it while rows wait"
        together = [list(portions) for _, portions in groupby(plan.portions, lambda portion: portion.key)]
        assert len({portions[0].key for portions in together}) == len(together), "a session's rows are apart"
        for portions in together:
            assert len(portions) == 1 or sum(portion.rows for portion in portions) <= SHORT_ROWS
            assert all(portion.last for portion in portions[:-1])
            whole_ones = [each for each in portions if (each.key, each.sequence) in undivided]
            assert not whole_ones or (len(portions) == 1 and portions[0].last and portions[0].begin == 0)
        of_chunks = [
            each.rows
            for each in plan.portions
            if rows_of[each.key, each.sequence] > SHORT_ROWS and (each.key, each.sequence) not in undivided
        ]
        assert step_rows(plan) - sum(of_chunks) <= demand.short_rows, "more ran than could"
        if len(of_chunks) < len(plan.portions):
            assert sum(of_chunks) <= max(budget.chunk_rows, MIN_CHUNK_ROWS)
        if step_rows(plan) < budget.rows and not of_chunks and not demand.chunk_sessions and not undivided:
            assert step_rows(plan) == demand.short_rows, "rows that could have run were left"
        for truncation in plan.truncations:
            ran[truncation.key].append(("truncate", truncation.position))
        for portion in plan.portions:
            rows_run = range(portion.begin, portion.begin + portion.rows)
            ran[portion.key] += [(f"forward {portion.sequence}", row) for row in rows_run]
            assert portion.last == (rows_run.stop == rows_of[portion.key, portion.sequence])
        for key in "abcde":
            assert waits(scheduler, key) == (ran[key] != expected[key])
        assert scheduler.waiting_sessions == sum(ran[key] != expected[key] for key in "abcde")
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
    portions = scheduler.plan(whole(2 * max(decoders, SHORT_ROWS))).portions
    assert sum(1 for portion in portions if isinstance(portion.key, int)) == decoders
