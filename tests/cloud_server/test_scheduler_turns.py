"""Whose prompt is next, and what tenants get of the steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedulers import waits, whole

from cloud_server.schedule.plan import CHUNK_SHARE, SHORT_ROWS
from cloud_server.schedule.scheduler import TURN_ROWS, Scheduler


def chunks_in(scheduler: Scheduler[str], rows: int) -> list[tuple[str, int]]:
    """The chunks that the next step of so many rows consists of, by session and number."""
    return [(portion.key, portion.sequence) for portion in scheduler.plan(whole(rows)).portions]


def test_prompts_run_one_after_the_other() -> None:
    """What comes of an older prompt later than all of a younger one goes before it, and the steps are full."""
    scheduler = Scheduler[str]()
    scheduler.add("old", 0, 100)
    for chunk in range(3):
        scheduler.add("young", chunk, 100)
    steps = []
    for chunk in range(1, 4):
        steps.append(chunks_in(scheduler, 100))
        scheduler.add("old", chunk, 100)
    steps += [chunks_in(scheduler, 100) for _ in range(4)]
    assert steps == [[(name, chunk)] for name, chunks in (("old", 4), ("young", 3)) for chunk in range(chunks)]


def test_a_prompt_that_pauses_has_its_turn_when_it_goes_on() -> None:
    """While a slow link has none of the older prompt's rows here the younger goes on; then the older is first again."""
    scheduler = Scheduler[str]()
    scheduler.add("old", 0, 100)
    for chunk in range(3):
        scheduler.add("young", chunk, 100)
    assert chunks_in(scheduler, 100) == [("old", 0)]
    assert chunks_in(scheduler, 150) == [("young", 0)]
    scheduler.add("old", 1, 100)
    assert chunks_in(scheduler, 150) == [("old", 1), ("young", 1)]
    assert chunks_in(scheduler, 150) == [("young", 1)]


def test_the_next_prompt_of_a_session_waits_like_any_other() -> None:
    """Short work ends a prompt: the chunks behind it have a turn of their own. So have those behind a truncation, those
    of a session that is told to be over with it, and of one that begins anew."""
    for end in ("short work", "truncation", "told", "removed"):
        scheduler = Scheduler[str]()
        scheduler.add("first", 0, 100)
        assert chunks_in(scheduler, 100) == [("first", 0)]
        if end == "removed":
            scheduler.remove("first")
        elif end == "told":
            scheduler.turn_over("first")
        elif end == "truncation":
            scheduler.truncate("first", 50)
            scheduler.plan(whole(100))
        else:
            scheduler.add("first", 1, 1)
            assert chunks_in(scheduler, 100) == [("first", 1)]
        for chunk in range(2):
            scheduler.add("second", chunk, 100)
        scheduler.add("first", 2, 100)
        assert [chunks_in(scheduler, 100) for _ in range(3)] == [[("second", 0)], [("second", 1)], [("first", 2)]]


def test_chunks_for_ever_keep_their_turn_for_so_many_rows() -> None:
    """Whoever came just behind a session whose chunks never end is served after ``TURN_ROWS`` rows of it."""
    scheduler = Scheduler[str]()
    scheduler.add("endless", 0, 512)
    scheduler.add("patient", 0, 512)
    ran = []
    for chunk in range(1, 2 * TURN_ROWS // 512):
        scheduler.add("endless", chunk, 512)
        ran += [key for key, _ in chunks_in(scheduler, 512)]
    assert TURN_ROWS % 512 == 0 and ran.index("patient") == TURN_ROWS // 512
    assert ran.count("patient") == 1


def test_a_chunk_larger_than_a_turn_has_one() -> None:
    """It runs to its end with a turn to itself: neither the chunk before it nor the one behind it has the same."""
    scheduler = Scheduler[str](turn_rows=120)
    for chunk, rows in enumerate((60, 480, 60)):
        scheduler.add("large", chunk, rows)
    for chunk in range(3):
        scheduler.add("small", chunk, 60)
    steps = [chunks_in(scheduler, 60) for _ in range(13)]
    small = [("small", chunk) for chunk in range(3)]
    assert [step[0] for step in steps] == [("large", 0), *small[:2], *[("large", 1)] * 8, small[2], ("large", 2)]
    assert not scheduler.waiting_rows


def test_prompts_in_line_share_with_another_tenants() -> None:
    """However early a tenant's prompts came, each has half of the rows while the other has prompts too, its own one
    after the other."""
    scheduler = Scheduler[str]()
    for name, tenant in (("a", "left"), ("b", "left"), ("c", "right"), ("d", "right")):
        for chunk in range(4):
            scheduler.add(name, chunk, 64, tenant)
    ran = [chunks_in(scheduler, 128) for _ in range(8)]
    assert ran == [[("a", chunk), ("c", chunk)] for chunk in range(4)] + [
        [("b", chunk), ("d", chunk)] for chunk in range(4)
    ]


def test_sending_far_ahead_gives_no_earlier_turn() -> None:
    """A device whose sessions have queued hundreds of rows each holds up somebody else's row by one round of turns."""
    scheduler = Scheduler[object]()
    for session in range(64):
        for forward in range(32):
            scheduler.add(session, forward, 32)
    scheduler.plan(whole(512))
    scheduler.add("other", 0, 1)
    steps = 1
    while all(portion.key != "other" for portion in scheduler.plan(whole(512)).portions):
        steps += 1
    assert steps <= 64 * 32 // 512 + 1


def steps_until_done(scheduler: Scheduler[object], key: object, rows: int) -> int:
    """Steps of ``rows`` rows until nothing of a session waits."""
    steps = 0
    while waits(scheduler, key):
        scheduler.plan(whole(rows))
        steps += 1
    return steps


def test_a_tenants_many_prompts_do_not_delay_anothers() -> None:
    """Fifty prompts that came before it take a single prompt of another tenant no more than twice its own time."""
    scheduler = Scheduler[object]()
    for each in range(50):
        for chunk in range(8):
            scheduler.add(each, chunk, 512, "greedy")
    for _ in range(10):
        scheduler.plan(whole(512))
    for chunk in range(8):
        scheduler.add("single", chunk, 512, "modest")
    assert steps_until_done(scheduler, "single", 512) <= 2 * 8 + 1


def test_short_work_is_shared_too() -> None:
    """A tenant with a hundred verifications in front takes at most every second row from another's few."""
    scheduler = Scheduler[object]()
    for each in range(100):
        scheduler.add(each, 0, 16, "greedy")
    for each in range(4):
        scheduler.add(f"modest {each}", 0, 16, "modest")
    scheduler.plan(whole(64))
    scheduler.plan(whole(64))
    assert not any(waits(scheduler, f"modest {each}") for each in range(4))


def test_idling_earns_no_credit() -> None:
    """Who comes back after having been away for long shares evenly from then on; nobody waits for its past."""
    scheduler = Scheduler[object]()
    scheduler.add("early", 0, 100, "idler")
    scheduler.add("prompt", 0, 20_000, "busy")
    for _ in range(100):
        scheduler.plan(whole(100))
    for each in range(50):
        scheduler.add(each, 0, 100, "idler")
    served = {"idler": 0, "busy": 0}
    for _ in range(20):
        for portion in scheduler.plan(whole(100)).portions:
            served["busy" if portion.key == "prompt" else "idler"] += portion.rows
    assert abs(served["idler"] - served["busy"]) <= 200


def test_being_alone_costs_no_credit() -> None:
    """Who used the server alone for long is not behind one who sent little meanwhile, once both want all."""
    scheduler = Scheduler[object]()
    for step in range(100):
        scheduler.add("uploader", step, 100, "alone")
        scheduler.add("now and then", step, 40, "rare")
        scheduler.plan(whole(200))
    for tenant in ("alone", "rare"):
        for each in range(20):
            scheduler.add((tenant, each), 0, 100, tenant)
    plan = [scheduler.plan(whole(100)).portions[0].key for _ in range(10)]
    assert sum(key[0] == "alone" for key in plan if isinstance(key, tuple)) == 5


@given(st.data())
def test_backlogged_tenants_get_equal_rows(data: st.DataObject) -> None:
    """While tenants have chunks waiting in every step, none is ever ahead of another by more than a step and a chunk,
    however they cut their prompts and however many of them there are."""
    tenants = data.draw(st.integers(2, 4))
    budget = data.draw(st.integers(40, 200))
    scheduler = Scheduler[tuple[int, int]]()
    for tenant in range(tenants):
        for session in range(data.draw(st.integers(1, 3))):
            for chunk in range(30):
                # A session has one chunk a step, so these are as large as a step: everybody could always fill it.
                scheduler.add((tenant, session), chunk, budget + data.draw(st.integers(0, 30)), tenant)
    served = dict.fromkeys(range(tenants), 0)
    for _ in range(30):
        for portion in scheduler.plan(whole(budget)).portions:
            served[portion.key[0]] += portion.rows
        assert max(served.values()) - min(served.values()) <= 2 * (budget + 30), served


@pytest.mark.parametrize(("rows", "branch"), [(1, False), (SHORT_ROWS, False), (3 * SHORT_ROWS, False), (60, True)])
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 9), st.integers(1, 60), st.integers(0, 3), st.sampled_from([False] * 4 + [True])),
            max_size=12,
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(16, 64),
    st.integers(0, 3),
)
def test_nobody_starves(
    rows: int, branch: bool, traffic: list[list[tuple[int, int, int, bool]]], budget: int, own_tenant: int
) -> None:
    """A forward runs within so many steps whatever else keeps arriving from ten sessions of four tenants for ever."""
    turn_rows = 2 * 60
    scheduler = Scheduler[tuple[str, int, int]](turn_rows)
    sequence = 0

    def arrive(step: int) -> None:
        nonlocal sequence
        for session, size, tenant, whole_one in traffic[step % len(traffic)]:
            sequence += 1
            scheduler.add(("other", tenant, session), sequence, size, tenant, whole=whole_one)

    for step in range(30):
        arrive(step)
        scheduler.plan(whole(budget))
    mine = ("mine", own_tenant, 0)
    scheduler.add(mine, 0, rows, own_tenant, whole=branch)
    # Ahead of it go at most the next forwards of its tenant's ten sessions, of chunks one turn of each, and as much of
    # each of the other tenants; and a chunk has a quarter of every step.
    allowed = 4 * CHUNK_SHARE * (11 * turn_rows + rows + 4 * 64) // budget + 8
    for step in range(30, 30 + allowed):
        arrive(step)
        scheduler.plan(whole(budget))
        if not waits(scheduler, mine):
            return
    raise AssertionError(f"not done in {allowed} steps")
