"""Cells are measured on a real testbed, and become records that the page is made of."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from bench.hat import __main__ as command
from bench.hat import measure as measuring
from bench.hat import page, serving
from bench.hat import records as reading
from bench.hat.cells import RATES, STAGES, Cell
from bench.hat.conditions import VARY
from bench.hat.latency import Record
from bench.hat.long_demo import long_demo
from bench.hat.measure import calibration_of, costs_of, latency_table, link_of, poisson, processes_of, upload_bound
from bench.hat.prompts import Prompt
from bench.hat.records import load, parse
from bench.hat.scaling import Costs, ScaledLink
from bench.hat.setups import STAGE_CORES, Setup
from bench.testbed.possible import obstacle
from hypothesis import given
from hypothesis import strategies as st

CELL = Cell("rates", "demo", "specbench", "hat", 1.0, requests=3, tokens=24)
COSTS = Costs(512, 0.0135, 0.042)
LINK = ScaledLink(240_000.0, 400_000.0)
LENGTHS = (40, 80, 60)
"""Of the prompts, in tokens."""


def answered(number: int, prompt_tokens: int = 256) -> Record:
    """A request that took 0.5 s to its first token and 0.1 s to each of 10 others."""
    chunks = [(number + 0.5 + 0.1 * each, 1) for each in range(11)]
    return Record(
        id=number,
        due_s=number,
        sent_s=number,
        first_s=chunks[0][0],
        chunks=chunks,
        prompt_tokens=prompt_tokens,
        tokens=11,
        accepted=4,
        proposed=8,
        finish="length",
    )


FAILED = Record(9, 0.0, 0.0, error="deadline")


@given(rate=st.floats(0.01, 100), count=st.integers(0, 100), seed=st.integers())
def test_poisson(rate: float, count: int, seed: int) -> None:
    """In order, within the time that gives the rate, and the same for the same seed."""
    times = poisson(rate, count, seed)
    assert len(times) == count and times == sorted(times) and times == poisson(rate, count, seed)
    assert all(0 <= each <= count / rate * (1 + 1e-9) for each in times)


def test_gaps_are_exponential() -> None:
    """Their deviation is their mean, and as many as should be are short: evenly spaced requests would fail both."""
    gaps = [b - a for a, b in pairwise(poisson(4.0, 20_000, 3))]
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.01)
    assert statistics.pstdev(gaps) == pytest.approx(0.25, rel=0.03)
    assert sum(each < 0.05 for each in gaps) / len(gaps) == pytest.approx(1 - 2.718281828**-0.2, abs=0.01)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_no_rate_is_refused(rate: float) -> None:
    """Nothing arrives at such a one."""
    with pytest.raises(ValueError, match="rate"):
        poisson(rate, 3, 0)


def test_what_clients_saw() -> None:
    """Delays, SLAs by their units, drafts and failures, under the names that records are read by."""
    found = latency_table([answered(0), answered(1), FAILED])
    assert (found["requests"], found["failed"], found["tokens"]) == (3, 1, 22)
    assert found["ttft"]["mean"] == pytest.approx(0.5) and found["tbt"]["mean"] == pytest.approx(0.1)
    assert found["prefill_sla"] == pytest.approx([0.25, 0.25])
    assert found["decode_sla"] == pytest.approx([1.0, 1.0])
    assert found["decode_tokens_s"] == pytest.approx(10)
    assert (found["prompt_tokens"], found["accepted"], found["proposed"]) == (256, 8, 16)
    read = parse(json.loads(json.dumps({"cell": CELL.as_dict(), "latency": found})))
    assert read.prefill_sla == tuple(found["prefill_sla"])
    assert read.numbers["latency.ttft.mean"] == pytest.approx(0.5)


def test_a_cell_in_which_all_failed_is_a_record() -> None:
    """With no delays in it, and without a bound."""
    cell = replace(CELL, experiment="unloaded", rate=0.0)
    table, bound = latency_table([FAILED]), upload_bound(cell, [FAILED], LINK, COSTS)
    read = parse({"cell": cell.as_dict(), "latency": table, **bound})
    assert read.numbers["latency.failed"] == 1 and read.prefill_sla == ()
    assert not [name for name in read.numbers if name.startswith(("latency.ttft.", "latency.tbt.", "upload_bound"))]


def test_the_bound_is_the_rows_over_the_link() -> None:
    """Of those who were answered; it is for unloaded cells alone."""
    records = [answered(0, 100), answered(1, 300), FAILED]
    bound = upload_bound(replace(CELL, experiment="unloaded"), records, LINK, COSTS)["upload_bound_s"]
    assert math.isclose(bound, 200 * 512 / 240_000)
    assert upload_bound(CELL, records, LINK, COSTS) == {}


def test_a_calibration_is_of_a_machine_and_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays from day to day, and on another machine, of another model or with other cores it is another."""
    setup = Setup("demo", tmp_path, 2, COSTS.row_bytes, 0.4, "device_agent")

    def of(name: str, setup: Setup) -> object:
        monkeypatch.setattr(measuring, "machine", lambda: name)
        return calibration_of(setup)

    known = of("a box, 2 cores, 2001-02-03", setup)
    assert of("a box, 2 cores, 2001-02-04", setup) == known != of("a box, 4 cores, 2001-02-03", setup)
    for other in (replace(setup, cloud_cores=0.5), replace(setup, model=tmp_path / "other")):
        assert of("a box, 2 cores, 2001-02-03", other) != known


def test_pipelines_of_every_length_have_the_same_stages(tmp_path: Path) -> None:
    """So many more cores in all, each stage with its own; all other cells have the model's own quota."""
    setup = Setup("demo", tmp_path, 2, COSTS.row_bytes, 0.4, "device_agent")
    for stages in STAGES["specbench"]:
        found = processes_of(replace(CELL, experiment="stages", stages=stages), setup)
        assert (found.stages, found.cores) == (stages, STAGE_CORES)
    assert processes_of(CELL, setup).cores == 0.4 and processes_of(CELL, setup).stages == 1


def test_links_follow_the_stages_own_speed(tmp_path: Path) -> None:
    """A step of slower stages takes longer, so the link is slowed with it and an upload's share of a step is kept."""
    setup = Setup("demo", tmp_path, 2, COSTS.row_bytes, 0.4, "device_agent")
    cell = replace(CELL, experiment="stages", stages=4)
    slower = costs_of(cell, setup, COSTS)
    assert slower.base_s == pytest.approx(COSTS.base_s * 0.4 / STAGE_CORES)
    link, usual = link_of(cell, setup, COSTS), link_of(CELL, setup, COSTS)
    assert link.up_bytes_s * slower.chunk_s == pytest.approx(usual.up_bytes_s * COSTS.chunk_s)
    assert costs_of(CELL, setup, COSTS) == COSTS


def test_prompts_are_the_same_at_every_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one repeat, or a curve over rates would be one over texts too; another repeat has others."""
    setup = Setup("demo", tmp_path, 2, COSTS.row_bytes, 0.4, "device_agent")
    drawn: list[int] = []

    def texts(self: Setup, lengths: list[int], seed: int) -> list[Prompt]:
        drawn.append(seed)
        return []

    monkeypatch.setattr(Setup, "texts", texts)
    for repeat, rate in ((0, RATES["cnndm"][0]), (0, RATES["cnndm"][2]), (1, RATES["cnndm"][0]), (0, 0.0)):
        setup.prompts(replace(CELL, dataset="cnndm", rate=rate, repeat=repeat))
    low, high, other, alone = drawn
    assert low == high and len({low, other, alone}) == 3


def know(cache: Path, setup: Setup) -> None:
    """Leave a calibration there."""
    known = {"of": calibration_of(setup), "base_s": COSTS.base_s, "chunk_s": COSTS.chunk_s}
    (cache / "calibration-demo.json").write_text(json.dumps(known), encoding="utf-8")


@dataclass(frozen=True)
class Small(Setup):
    """The demo model on its own installation, but with one device, faster ones, and asked in few words."""

    folder: Path = Path()

    def prompts(self, cell: Cell) -> list[Prompt]:
        """Short ones."""
        return self.texts(LENGTHS[: cell.requests], 1)

    def scenario(self, sends_text: bool) -> Path:
        """The demo model's, for one device instead of three."""
        text = super().scenario(sends_text).read_text(encoding="utf-8")
        slow, fast = "cores = 0.5\nmodes = [0.5, 0.4, 0.3]", "cores = 1.0\nmodes = [1.0, 0.8, 0.6]"
        for old, new in (("count = 3", "count = 1"), ("{3}", "{1}"), (slow, fast)):
            assert old in text
            text = text.replace(old, new)
        file = self.folder / "small.toml"
        file.write_text(text, encoding="utf-8")
        return file


@pytest.mark.slow
@pytest.mark.system
def test_two_cells_from_the_testbed_to_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """U-shape and HAT answer every request over shaped links, each leaves a record, and the page is made of both."""
    if obstacle():
        pytest.skip(f"no testbed here: {obstacle()}")
    monkeypatch.setattr(command, "CACHE", tmp_path)
    # Times are not looked at, so that nobody has to wait for processes that are as warm as measured ones.
    monkeypatch.setattr(serving, "WARM_LENGTHS", (64,))
    monkeypatch.setattr(serving, "LINK_LENGTH", 64)
    monkeypatch.setattr(serving, "LINK_ROUNDS", 1)
    setup = Small("demo", long_demo(tmp_path / "long-demo"), 2, COSTS.row_bytes, 0.8, "device_agent", tmp_path)
    know(tmp_path, setup)
    records, docs = tmp_path / "records", tmp_path / "docs"
    records.mkdir()
    cells = [replace(CELL, method=method) for method in ("ushape-full", "hat-paper")]
    assert command.run(cells, records, {"demo": setup}) == []
    assert command.missing(cells, records) == []
    found = {each.place.method: each.numbers for each in load(records)}
    prompt_bytes = sum(LENGTHS) * COSTS.row_bytes
    for cell in cells:
        numbers = found[cell.method]
        raw = json.loads((records / f"{cell.name}.json").read_text(encoding="utf-8"))
        assert raw["errors"] == [] and numbers["latency.failed"] == 0
        assert len(raw["texts"]) == len(raw["latency"]["prefill_sla"]) == CELL.requests
        assert numbers["latency.tokens"] > CELL.requests
        # Every row of every prompt goes up, and takes its time on a link that is at most as fast as the bounds say.
        assert numbers["cloud.up_bytes"] > prompt_bytes
        fastest = numbers["link.up_mb_s"] * 1e6 * VARY[1]
        assert numbers["latency.ttft.mean"] > 0.9 * prompt_bytes / CELL.requests / fastest
        assert numbers["cloud.steps"] > 0 and numbers["machine.used_cores"] > 0
        assert numbers["scaling.our_upload_per_step"] == pytest.approx(numbers["scaling.paper_upload_per_step"])
    # All deep rows of a prompt come down where that is what is compared; only one of the two drafts.
    assert found["ushape-full"]["cloud.down_bytes"] > prompt_bytes
    assert found["ushape-full"]["latency.proposed"] == 0 < found["hat-paper"]["latency.proposed"]
    monkeypatch.setattr(reading, "all_cells", lambda repeats: cells)  # Smaller cells than are planned.
    page.write(records, docs)
    text = (docs / "hat" / "rates.md").read_text(encoding="utf-8")
    assert "| 1 | HAT as in the paper |" in text and "| 1 | U-shape, all rows down |" in text
