"""What the cloud counted is read as it says it, and cells that need the same processes are told to."""

from __future__ import annotations

import os
import signal
import statistics
from dataclasses import fields
from pathlib import Path

import pytest
from bench.hat.cells import Cell, all_cells
from bench.hat.prompts import demo_prompts
from bench.hat.serving import Counted, Processes, Serving, quotas_of
from bench.hat.setups import STAGE_CORES, Setup, cloud_cores, declared
from bench.testbed.leaf import pids_in
from bench.testbed.possible import obstacle
from checkpoints import DEMO
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_server.metrics import CloudMetrics

steps = st.lists(st.tuples(st.floats(1e-4, 10.0), st.integers(1, 2048)), min_size=1, max_size=30)


def counted(*ran: list[tuple[float, int]], up_bytes: int = 0, down_bytes: int = 0) -> Counted:
    """What a real cloud's metrics say after steps of these times and rows."""
    metrics = CloudMetrics()
    for seconds, rows in [each for some in ran for each in some]:
        metrics.step_seconds.observe(seconds)
        metrics.step_seconds_squares.inc(seconds**2)
        metrics.step_rows.observe(rows)
    metrics.received_bytes.inc(up_bytes)
    metrics.sent_bytes.inc(down_bytes)
    return Counted.read(metrics.text().decode())


@settings(max_examples=25)
@given(steps)
def test_mean_and_deviation_are_those_of_the_steps(ran: list[tuple[float, int]]) -> None:
    """From the metrics' sums alone."""
    found = counted(ran, up_bytes=3, down_bytes=7).as_dict()
    times = [seconds for seconds, _ in ran]
    assert found["steps"] == len(ran)
    assert found["step_mean_s"] == pytest.approx(statistics.fmean(times))
    assert found["step_std_s"] == pytest.approx(statistics.pstdev(times), rel=1e-3, abs=1e-5 * max(times))
    assert found["rows_mean"] == pytest.approx(statistics.fmean(rows for _, rows in ran))
    assert (found["up_bytes"], found["down_bytes"]) == (3, 7)


@settings(max_examples=25)
@given(steps, steps)
def test_what_came_since_is_what_came_between(before: list[tuple[float, int]], after: list[tuple[float, int]]) -> None:
    """Of a cloud that counts on."""
    found = counted(before, after, up_bytes=12, down_bytes=5).since(counted(before, up_bytes=2, down_bytes=1))
    wanted = counted(after, up_bytes=10, down_bytes=4)
    for field in fields(Counted):
        assert getattr(found, field.name) == pytest.approx(getattr(wanted, field.name), abs=1e-6), field.name


SETUPS = {
    "demo": Setup("demo", DEMO, 2, 512, cloud_cores("demo"), "device_agent"),
    "wide": Setup("wide", Path("wide"), 1, 1536, cloud_cores("wide"), "bench.hat.replay_device"),
}


def quotas(cell: Cell) -> float:
    """Of all hosts, while a cell is measured."""
    setup = SETUPS[cell.setting]
    return quotas_of(declared(cell.setting, cell.method == "cloud"), setup.cores_of(cell) * cell.stages)


def test_the_quotas_of_every_cell_fit_two_cores() -> None:
    """Those of pipelines too, whose stages all have the same, however long they are."""
    cells = all_cells(False)
    different = {(cell.setting, cell.method == "cloud", cell.experiment, cell.stages): cell for cell in cells}
    assert max(map(quotas, different.values())) <= 2.0
    stages = [cell for cell in cells if cell.experiment == "stages"]
    assert {cell.stages for cell in stages} == {1, 2, 4}
    assert {SETUPS[cell.setting].cores_of(cell) for cell in stages} == {STAGE_CORES}
    assert {SETUPS["demo"].cores_of(cell) for cell in cells if cell.experiment != "stages"} == {cloud_cores("demo")}


def test_quotas_that_do_not_fit_start_nothing(tmp_path: Path) -> None:
    """They are refused before there is a testbed."""
    processes = Processes(("--mode", "hat"), (), stages=1000, cores=1.0)
    with (
        pytest.raises(RuntimeError, match=r"The quotas of all hosts are 1001\.50 cores"),
        Serving(SETUPS["demo"], processes, tmp_path / "never"),
    ):
        pass
    assert not (tmp_path / "never").exists()


@pytest.mark.slow
@pytest.mark.system
def test_every_stage_is_a_machine_of_its_own(tmp_path: Path) -> None:
    """None gets more than its quota, though another has some left; one that ends is heard of."""
    if obstacle():
        pytest.skip(f"no testbed here: {obstacle()}")
    with Serving(SETUPS["demo"], Processes(("--mode", "ushape"), (), 2, cores=0.2), tmp_path) as serving:
        cloud = serving.bed.part("cloud")
        folders = sorted(cloud.leaf.folder.glob("process-*"))
        assert [len(pids_in(each)) for each in folders] == [1, 1] and pids_in(cloud.leaf.folder) == []
        assert serving.bed.host("cloud").cores == pytest.approx(0.4)
        before = serving.bed.usage("cloud")
        assert all(record.complete for record in serving.load(demo_prompts([300] * 3, 1), [0.0] * 3, 4))
        assert serving.bed.usage("cloud").throttled_s > before.throttled_s
        stage = next(pid for pid in cloud.pids() if pid != cloud.popen.pid)
        os.kill(stage, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="ended meanwhile"):
            serving.load(demo_prompts([30], 1), [0.0], 4)
