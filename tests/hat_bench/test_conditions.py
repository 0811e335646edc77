"""A cell's links and hosts: still, varied within bounds, or as a trace has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.hat import conditions as module
from bench.hat.cells import Cell, all_cells
from bench.hat.conditions import STILL, TRACES, VARY, VARY_S, conditions
from bench.hat.records import EXPERIMENTS
from bench.hat.scaling import ScaledLink
from bench.hat.setups import SCENARIOS
from bench.testbed.changes import schedule_of
from bench.testbed.scenario import Scenario, load
from bench.testbed.schedule import LEAST_MB_S, LinkChange
from bench.testbed.traces import read_trace

LINK = ScaledLink(240_000.0, 400_000.0)
UP, DOWN = 0.24, 0.4
VARIABLES = {name: "x" for name in ("model", "split", "device_module", "device_flags", "cloud_flags")}


@pytest.fixture(scope="module", params=["hat_demo", "hat_demo_cloud", "hat_wide"])
def scenario(request: pytest.FixtureRequest) -> Scenario:
    """Each that is measured on."""
    return load(SCENARIOS / f"{request.param}.toml", {**VARIABLES, "delay_ms": "0"})


def cell(experiment: str, trace: str = "") -> Cell:
    """One of this experiment."""
    return Cell(experiment, "demo", "specbench", "hat", 1.0, trace=trace)


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
        assert DOWN * VARY[0] <= change.down_mb_s <= DOWN * VARY[1]
    assert len({change.up_mb_s for change in made}) == len(made)
    modes = {host.name: host.modes for host in found.hosts if host.modes}
    changed = schedule_of(found, 3).requests_made(5)
    assert {change.host for change in changed} == set(modes)
    assert all(change.cores in modes[change.host] for change in changed)


def test_bounds_are_the_papers() -> None:
    """5 to 10 MB/s around their middle."""
    assert pytest.approx((5 / 7.5, 10 / 7.5), abs=0.01) == VARY


def test_only_slow_links_are_changed(scenario: Scenario) -> None:
    """Everything else of the scenario is as it was."""
    found = conditions(scenario, cell("rates"), LINK)
    assert found.hosts == scenario.hosts and found.processes == scenario.processes
    for before, after in zip(scenario.links, found.links, strict=True):
        assert (before.kind, before.a, before.b, before.delay_ms) == (after.kind, after.a, after.b, after.delay_ms)
        assert before.kind == "wan" or before == after


TRACED = {
    "both ways, unequal steps": ("time_s,down_mbps,up_mbps\n0,8,2\n1,8,2\n9,40,22\n10,40,22\n11,16,4\n", True),
    "down only, unequal steps": ("time_s,down_mbps\n0,8\n1,80\n9,40\n10,16\n", False),
}


def means(scenario: Scenario, length_s: float) -> tuple[float, float]:
    """Of a link's bandwidth over time, up and down, as it is played back, over a whole trace."""
    first = next(link for link in scenario.links if link.kind == "wan")
    made = [each for each in changes(scenario, length_s) if (each.a, each.b) == (first.a, first.b)]
    ends = [*(each.at_s for each in made[1:]), length_s]
    lasts = [end - each.at_s for each, end in zip(made, ends, strict=True)]
    up = sum(each.up_mb_s * last for each, last in zip(made, lasts, strict=True))
    down = sum(each.down_mb_s * last for each, last in zip(made, lasts, strict=True))
    return up / length_s, down / length_s


@pytest.mark.parametrize(("text", "up_measured"), TRACED.values(), ids=TRACED)
def test_a_traces_mean_is_the_links(
    scenario: Scenario, text: str, up_measured: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over time, however unequal its steps are: of the upload, and of the download where only that was measured."""
    path = tmp_path / "trace.csv"
    path.write_text(text)
    monkeypatch.setattr(module, "TRACES", {"short": path})
    found = conditions(scenario, cell("traces", "short"), LINK)
    up, down = means(found, read_trace(path).length_s)
    assert up == pytest.approx(UP)
    assert up_measured or down == pytest.approx(DOWN)


@pytest.mark.parametrize("name", TRACES)
def test_the_measured_traces(scenario: Scenario, name: str) -> None:
    """Those that cells name play with the link's mean, but for the little that stands for no bandwidth at all."""
    if not TRACES[name].is_file():
        pytest.skip(f"{name} is not at hand: the measured data is kept apart from the product")
    up, _ = means(conditions(scenario, cell("traces", name), LINK), read_trace(TRACES[name]).length_s)
    assert UP * 0.999 <= up <= UP + LEAST_MB_S


def test_traced_cells_name_a_trace() -> None:
    """And no other cell does."""
    assert all(bool(each.trace) == (each.experiment == "traces") for each in all_cells(False))
