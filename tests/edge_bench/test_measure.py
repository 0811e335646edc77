"""A test of the whole way, from a plan to a record: two devices on an emulated network, and a tiny model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from bench.edge.cells import Cell
from bench.edge.groups import Devices
from bench.edge.measure import Measurement
from bench.testbed.possible import obstacle

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(obstacle()), reason=obstacle())]


def test_cells_leave_records_that_agree_and_are_not_measured_twice(tmp_path: Path) -> None:
    """Every method computes the same; Voltage's devices send (K-1)NF/K elements a layer, tensor parallelism's four
    times as many; and what has a record is read."""
    cells = [Cell("two", "tiny", method, 2) for method in ("voltage-paper", "tensor", "voltage", "joint")]
    said: list[str] = []
    with Devices(tmp_path / "logs", 16_000, 2) as devices:
        measurement = Measurement(tmp_path, devices, lambda shape, task, local_s: 2.0)
        measurement.all(cells, math.inf, said.append)
        found = [measurement.record(cell, said.append) for cell in cells]
    assert len(said) == len(cells) + 2, said  # One device, and the calibration.
    checks = [record["check"] for record in found]
    assert checks == pytest.approx([checks[0]] * len(checks), rel=1e-4)
    assert all(record["layers_s"] <= record["total_s"] * 1.1 for record in found)
    elements = 48 * 64 // 2
    assert set(found[0]["bytes_a_layer"].values()) == {elements * 4.0}
    assert set(found[1]["bytes_a_layer"].values()) == {4 * elements * 4.0}


def test_lent_heads_and_heads_left_out_are_measured_too(tmp_path: Path) -> None:
    """What is lent gives what is not; of a device that lends half of its attention half of each row's queries, keys and
    values leave, and half of the heads' outputs come back; without half of the heads something else is computed."""
    methods = ("lend-attention", "lend-projections", "edgeformer", "edgeformer-narrow")
    cells = [
        *(Cell("two", "tiny", method, 2) for method in methods),
        Cell("two", "tiny", "lend-projections", 2, out=0.5),
    ]
    said: list[str] = []
    with Devices(tmp_path / "logs", 16_000, 2) as devices:
        measurement = Measurement(tmp_path, devices, lambda shape, task, local_s: 2.0)
        measurement.all(cells, math.inf, said.append)
        found = [measurement.record(cell, said.append) for cell in cells]
    whole, [pruned] = [record["check"] for record in found[:-1]], [record["check"] for record in found[-1:]]
    assert whole == pytest.approx([whole[0]] * len(whole), rel=1e-4)
    assert pruned != pytest.approx(whole[0], rel=1e-4)
    assert found[0]["bytes_a_layer"] == {"device-1": 48 * 3 * 32 * 4.0, "device-2": 48 * 32 * 4.0}
    assert found[0]["heads"] == [[2, 2]] * 8
