"""What seeds mean."""

from __future__ import annotations

from faults.chaos_plan import (
    BLOCK,
    CLIENTS,
    EVENTS,
    GROUP_KINDS,
    LENGTHS,
    SITES,
    SPLIT_KINDS,
    SPLIT_SITE,
    WINDOW_S,
    Ask,
    Event,
    Plan,
    plan_of,
)

PLANS = [plan_of(seed) for seed in range(1000)]


def test_a_seed_is_a_plan_for_ever() -> None:
    """The same each time, and another one for another seed."""
    assert [plan_of(seed) for seed in range(1000)] == PLANS
    assert len({(plan.asks, plan.events) for plan in PLANS}) == len(PLANS)


def test_a_thousand_seeds_do_everything() -> None:
    """Each site, each kind of fault on it, short and long, and clients of all sorts."""
    assert {plan.site for plan in PLANS} == {*SITES}
    for kinds, split in ((SPLIT_KINDS, True), (GROUP_KINDS, False)):
        drawn = {event.kind for plan in PLANS for event in plan.events if (plan.site == SPLIT_SITE) is split}
        assert drawn == {*kinds}
    asks = [ask for plan in PLANS for ask in plan.asks]
    assert {ask.tokens for ask in asks} == {*LENGTHS}
    assert {(ask.second, ask.drafted) for ask in asks} == {(a, b) for a in (True, False) for b in (True, False)}
    assert any(ask.leaves_after for ask in asks) and any(event.lasts_s > 15 for plan in PLANS for event in plan.events)


def test_plans_keep_to_their_limits() -> None:
    """So many clients and events, in time, the events in order, and neighbours on the same site."""
    for plan in PLANS:
        assert CLIENTS[0] <= len(plan.asks) <= CLIENTS[1] and EVENTS[0] <= len(plan.events) <= EVENTS[1]
        assert all(0 <= each.at_s <= WINDOW_S for each in [*plan.asks])
        assert all(0 <= each.at_s <= WINDOW_S for each in plan.events)
        assert [*plan.events] == sorted(plan.events, key=lambda event: event.at_s)
        assert plan.site == PLANS[plan.seed // BLOCK * BLOCK].site


def test_what_ends_answers() -> None:
    """Whoever has the text is gone, or was silent for too long."""
    ask = Ask(0.0, 0, 12, False, False, 0)

    def fatal(kind: str, lasts_s: float) -> bool:
        return Plan(0, SPLIT_SITE, (ask,), (Event(0.0, kind, lasts_s),)).fatal

    assert fatal("kill device", 0.1) and fatal("kill gateway", 0.1) and fatal("stop device", 17.0)
    assert not fatal("stop device", 1.0) and not fatal("kill both", 1.0) and not fatal("partition", 17.0)
