"""A cell's links and hosts: still, varied within bounds, or as a trace has them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from bench.hat import conditions as module
from bench.hat.cells import Cell
from bench.hat.conditions import LEAST_MEAN, PLAYED_S, STILL, TRACES, VARY, VARY_DOWN, VARY_S, conditions
from bench.hat.records import EXPERIMENTS
from bench.hat.scaling import ScaledLink
from bench.hat.setups import declared
from bench.testbed.changes import schedule_of
from bench.testbed.scenario import Scenario
from bench.testbed.schedule import LEAST_MB_S, LinkChange
from bench.testbed.traces import BadTrace

LINK = ScaledLink(240_000.0, 400_000.0)
UP, DOWN = 0.24, 0.4


@pytest.fixture(scope="module", params=[("demo", False), ("demo", True), ("wide", False)])
def scenario(request: pytest.FixtureRequest) -> Scenario:
    """Each that is measured on."""
    return declared(*request.param)


def cell(experiment: str, trace: str = "", repeat: int = 0) -> Cell:
    """One of this experiment."""
    return Cell(experiment, "demo", "specbench", "hat", 1.0, repeat, trace=trace)


def changes(scenario: Scenario, seconds: float) -> list[LinkChange]:
    """All that is due in this time."""
    schedule, found, now_s = schedule_of(scenario, 3), [], 0.0
    while now_s < seconds:
        found += schedule.due(now_s)
        now_s = schedule.next_s()
    return found


@pytest.mark.parametrize("experiment", STILL)
def test_still_experiments_change_nothing(scenario: Scenario, experiment: str) -> None:
    """No link is changed and no host has modes; bandwidths are the scaled ones on every slow link."""
    found = conditions(scenario, cell(experiment), LINK)
    assert changes(found, 100.0) == []
    assert schedule_of(found, 3).requests_made(50) == []
    assert {(link.up_mb_s, link.down_mb_s) for link in found.links if link.kind == "wan"} == {(UP, DOWN)}
    assert [host.cores for host in found.hosts] == [host.cores for host in scenario.hosts]


@pytest.mark.parametrize("experiment", sorted(set(EXPERIMENTS) - {*STILL, "traces"}))
def test_others_vary_within_bounds(scenario: Scenario, experiment: str) -> None:
    """Every slow link, drawn anew again and again, within the paper's bounds around the scaled bandwidth; modes too."""
    found = conditions(scenario, cell(experiment), LINK)
    made = changes(found, 60.0)
    slow = [(link.a, link.b) for link in found.links if link.kind == "wan"]
    assert {(change.a, change.b) for change in made} == set(slow)
    assert len(made) == len(slow) * 60.0 / VARY_S
    for change in made:
        assert UP * VARY[0] <= change.up_mb_s <= UP * VARY[1]
        assert DOWN * VARY_DOWN[0] <= change.down_mb_s <= DOWN * VARY_DOWN[1]
    assert len({change.up_mb_s for change in made}) == len(made)
    modes = {host.name: host.modes for host in found.hosts if host.modes}
    changed = schedule_of(found, 3).requests_made(5)
    assert {change.host for change in changed} == set(modes)
    assert all(change.cores in modes[change.host] for change in changed)


TRACED = {
    "both ways, unequal steps": "time_s,down_mbps,up_mbps\n0,8,2\n1,8,2\n9,40,22\n10,40,22\n11,16,4\n",
    "down only, unequal steps": "time_s,down_mbps\n0,8\n1,80\n9,40\n10,16\n",
    "longer than what is played": "time_s,down_mbps,up_mbps\n0,8,2\n50,80,9\n90,40,4\n200,16,8\n300,8,8\n",
}


def played(scenario: Scenario) -> dict[str, list[tuple[float, float, float]]]:
    """What each slow link plays: how long, up and down."""
    made = changes(scenario, PLAYED_S)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for name in dict.fromkeys(each.a for each in made):
        mine = [each for each in made if each.a == name]
        ends = [*(each.at_s for each in mine[1:]), PLAYED_S]
        found[name] = [(end - each.at_s, each.up_mb_s, each.down_mb_s) for each, end in zip(mine, ends, strict=True)]
    return found


def means(scenario: Scenario) -> list[tuple[float, float]]:
    """Of every slow link's bandwidth over time, up and down."""
    steps = played(scenario).values()
    return [
        (sum(last * up for last, up, _ in mine) / PLAYED_S, sum(last * down for last, _, down in mine) / PLAYED_S)
        for mine in steps
    ]


@pytest.mark.parametrize("text", TRACED.values(), ids=TRACED)
def test_the_mean_of_what_is_played_is_the_links(
    scenario: Scenario, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over time, however unequal the trace's steps are, for every device and repeat, both ways."""
    path = tmp_path / "trace.csv"
    path.write_text(text)
    monkeypatch.setattr(module, "TRACES", {"short": path})
    for repeat in range(3):
        for mean in means(conditions(scenario, cell("traces", "short", repeat), LINK)):
            assert mean == pytest.approx((UP, DOWN), rel=0.02)


def test_a_part_of_nearly_nothing_is_not_made_bursts(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays slow: nothing is scaled by more than a part with the least share of the whole would be."""
    path = tmp_path / "trace.csv"
    path.write_text("time_s,down_mbps\n0,0.08\n1000,800\n1100,0.08\n1101,0.08\n")
    monkeypatch.setattr(module, "TRACES", {"short": path})
    found = conditions(scenario, cell("traces", "short"), LINK)
    whole = (0.01 * 1002 + 100.0 * 100) / 1102
    first = next(link for link in found.links if link.trace)
    assert first.trace_from_s == 0.0 and first.trace_scale[1] == pytest.approx(DOWN / (LEAST_MEAN * whole), rel=1e-3)
    assert means(found)[0] == pytest.approx((LEAST_MB_S, LEAST_MB_S))
    path.write_text("time_s,down_mbps\n0,0\n1,0\n")
    with pytest.raises(BadTrace, match="carries nothing"):
        conditions(scenario, cell("traces", "short"), LINK)


def traced(scenario: Scenario, name: str, repeat: int) -> Scenario:
    """Such a cell's conditions, where the trace is at hand."""
    if not TRACES[name].is_file():
        pytest.skip(f"{name} is not at hand: the measured data is kept apart from the product")
    return conditions(scenario, cell("traces", name, repeat), LINK)


@pytest.mark.parametrize("name", TRACES)
def test_every_device_and_repeat_plays_a_part_of_its_own(scenario: Scenario, name: str) -> None:
    """The same for every method: it begins elsewhere in the trace, by seconds, and plays other bandwidths."""
    parts = [traced(scenario, name, repeat) for repeat in range(3)]
    assert parts == [traced(scenario, name, repeat) for repeat in range(3)]
    begins = sorted(link.trace_from_s for part in parts for link in part.links if link.kind == "wan")
    assert min(later - earlier for earlier, later in pairwise(begins)) > 3.0
    rates = [tuple(up for _, up, _ in mine) for part in parts for mine in played(part).values()]
    assert len(set(rates)) == len(rates) == len(begins)


@pytest.mark.parametrize("name", TRACES)
def test_the_measured_traces(scenario: Scenario, name: str) -> None:
    """Those that cells name play with the link's means, but for the little that stands for no bandwidth at all."""
    for repeat in range(3):
        for up, down in means(traced(scenario, name, repeat)):
            assert UP * 0.98 <= up <= UP * 1.02 + LEAST_MB_S and DOWN * 0.98 <= down <= DOWN * 1.02 + LEAST_MB_S
