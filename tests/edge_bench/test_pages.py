"""Tests of the pages: what records amount to, and that nothing is said that was not measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bench import edgeformer, galaxy, voltage
from bench.edge import edgeformer_figures, foreseen, handing, lending_picture, straggler, varied
from bench.edge.cells import Cell
from bench.edge.records import Records, expected_s
from bench.edge.run import fill, pages_of
from bench.edge.shapes import longer
from bench.page import names

MODULES: dict[str, ModuleType] = {"voltage": voltage, "galaxy": galaxy, "edgeformer": edgeformer}


def record(cell: Cell, full_s: float, **more: Any) -> dict[str, Any]:
    """One that could have been measured."""
    found = {
        "cell": cell.as_dict(),
        "full_s": full_s,
        "layers_s": full_s / 4,
        "total_s": full_s / 4,
        "predicted_layers_s": full_s / 4,
    }
    found |= {
        "predicted_full_s": full_s,
        "compute_s": 0.1,
        "wait_s": 0.2,
        "ends_s": 0.01,
        "periods": 20.0,
        "over_quota": 1.0,
        "mb_s": 1.5,
    }
    found |= {"bytes_a_layer": {"device-1": 1000.0}, "plan": "4 ByRows", "machine": "a machine"}
    return {**found, "memory": {}, "watched": {"bottleneck": ""}, **more}


def six(method: str) -> Cell:
    """Six devices and BERT-large."""
    return Cell("equal-6", "bert-large", method, 6)


def of(*records: tuple[Cell, dict[str, Any]]) -> Records:
    """Records by name."""
    return Records({cell.name: found for cell, found in records})


def measured(ours: float, calibration: float = 1.0, **more: Any) -> Records:
    """One device takes 10 s, Trilby so long."""
    cell = six("voltage")
    barrier = cell.calibration()
    return of(
        (cell.local(), record(cell.local(), 10.0)),
        (barrier, record(barrier, 4.0, over_quota=calibration)),
        (cell, record(cell, ours, **more)),
    )


@pytest.mark.parametrize("page", MODULES)
def test_a_page_wants_figures_that_there_are_and_is_short(page: str) -> None:
    """And its result is in the first screen. What it has to say of accuracy is on a page of its own."""
    texts = [file.read_text(encoding="utf-8") for file in pages_of(page)]
    assert {name for text in texts for name in names(text)} == set(MODULES[page].FIGURES)
    assert all(len(text.splitlines()) <= 300 for text in texts)
    assert "figures: headline" in "\n".join(texts[0].splitlines()[:30])


@pytest.mark.parametrize("page", MODULES)
def test_without_records_figures_say_so(page: str) -> None:
    """No figure fails, and none shows a number that nobody measured."""
    figures: Mapping[str, Callable[[Records], str]] = MODULES[page].FIGURES
    assert "not measured" in figures["headline"](Records({}))
    assert all(isinstance(figure(Records({})), str) for figure in figures.values())


def test_a_goal_is_met_or_missed_by_so_many_points() -> None:
    """45 % less than one device."""
    assert voltage.verdict(measured(5.4), six("voltage")) == "**met**"
    missed = "**missed**, by 5.0 points: computing 24%, waiting 48%, ends 0% of one device's time"
    assert voltage.verdict(measured(6.0), six("voltage")) == missed


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (measured(5.4, calibration=1.2), "calibration 1.20"),
        (measured(5.4, periods=3.0), "3.0 periods between barriers"),
        (measured(5.4, watched={"bottleneck": "it was full"}), "machine"),
    ],
)
def test_what_cannot_be_trusted_is_no_result(records: Records, why: str) -> None:
    """It is marked, and no goal is judged by it."""
    assert records.doubts(six("voltage")) == [why]
    assert voltage.verdict(records, six("voltage")).startswith("in doubt")
    assert "| -46.0 %° |" in voltage.headline(records)


def test_a_page_goes_on_from_the_records_beside_it(tmp_path: Path) -> None:
    """Filled from what it has published it is the same; a record keeps the calibration it was measured with."""
    (tmp_path / "voltage.md").write_text("<!-- figures: headline -->\n<!-- end -->\n", encoding="utf-8")
    found = measured(6.0, calibration=1.04).found
    found[six("voltage").name]["calibration"] = 1.2
    fill("voltage", voltage.FIGURES, found, tmp_path)
    first = (tmp_path / "voltage.md").read_text(encoding="utf-8")
    assert "in doubt: calibration 1.20" in first
    fill("voltage", voltage.FIGURES, Records.of(tmp_path / "voltage-records.jsonl").found, tmp_path)
    assert (tmp_path / "voltage.md").read_text(encoding="utf-8") == first


def test_a_row_is_compared_with_one_device_just_before() -> None:
    """Whatever that took when it was measured by itself: the machine may have been slower then."""
    assert voltage.verdict(measured(5.4, one_s=9.0), six("voltage")).startswith("**missed**, by 5.0 points")


def rounds(of_ours: list[dict[str, Any]], of_tensor: list[float]) -> Records:
    """Trilby and tensor parallelism in environment A, in several rounds."""
    found: list[tuple[Cell, dict[str, Any]]] = []
    for repeat, (more, tensor_s) in enumerate(zip(of_ours, of_tensor, strict=True)):
        ours, tensor = (Cell("A", "bert-l", method, 4, repeat=repeat) for method in ("joint", "tensor"))
        found += [(ours, record(ours, **more)), (tensor, record(tensor, tensor_s))]
    barrier = Cell("A", "bert-l", "joint", 4).calibration()
    return of((barrier, record(barrier, 4.0)), *found)


def test_a_ratio_is_the_median_of_rounds_and_says_how_far_they_differ() -> None:
    """Each round's own, since the machine is another in each; rounds that are no results are left out where there are
    others, and one round has no spread."""
    ours, tensor = (Cell("A", "bert-l", method, 4) for method in ("joint", "tensor"))
    three = [{"full_s": 10.0}, {"full_s": 12.0}, {"full_s": 11.0}]
    records = rounds(three, [20.0, 18.0, 33.0])
    assert records.ratio(tensor, ours) == 2.0 and records.seconds(ours) == 11.0
    assert galaxy.beside(records, tensor, ours) == "2.00 [1.50–3.00]"
    short = [{"full_s": 10.0, "periods": 3.0}, {"full_s": 12.0}, {"full_s": 11.0}]
    records = rounds(short, [20.0, 18.0, 33.0])
    assert galaxy.beside(records, tensor, ours) == "2.25 [1.50–3.00]" and not records.doubts(ours)
    assert records.doubts_of(ours) == ["3.0 periods between barriers"]
    assert galaxy.beside(rounds(three[:1], [20.0]), tensor, ours) == "2.00"
    assert rounds(short[:1], [20.0]).doubts(ours) == ["3.0 periods between barriers"]


def test_a_group_that_is_slower_than_one_device_says_so() -> None:
    """And whether its plan did."""
    ours = Cell("A", "bert-l", "joint", 4)
    for predicted, word in ((11.0, "as planned"), (9.0, "not foreseen")):
        slow = record(ours, 12.0, predicted_full_s=predicted)
        barrier = ours.calibration()
        alone = ours.local(), record(ours.local(), 10.0)
        records = of((ours, slow), alone, (barrier, record(barrier, 4.0)))
        assert f"1.20 ({word})" in galaxy.alone(records)


def test_what_does_not_fit_says_so() -> None:
    """As the paper's OOM."""
    cell = Cell("B", "bert-l", "sequence", 4)
    refusal = {"cell": cell.as_dict(), "refused": "sequence does not fit: device-4 lacks 300 MB"}
    assert "does not fit (OOM)" in galaxy.headline(of((cell, refusal)))


def test_how_long_a_cell_takes_is_known_from_those_before() -> None:
    """From records of its shape, breaks between two runs left out; else by its sizes."""
    moments = ("10:00:00", "10:00:08", "10:00:20", "12:00:00", "12:00:30")
    shapes = ("bert-l", "bert-l", "bert-l", "gpt2-large", "gpt2-large")
    cells = [Cell("A", shape, f"method {at}", 4) for at, shape in enumerate(shapes)]
    began = [f"2026-01-01T{moment}+00:00" for moment in moments]
    records = of(*((cell, record(cell, 1.0, began=at)) for cell, at in zip(cells, began, strict=True)))
    assert expected_s(records, Cell("A", "bert-l", "joint", 4)) == 10.0
    assert expected_s(records, Cell("A", "gpt2-large", "joint", 4, runs=3)) == 30.0 * 1.6
    other = Cell("A", "vit-huge", "joint", 4)
    assert expected_s(records, other) == expected_s(Records({}), other) > 0


def test_a_slow_device_is_noticed_when_the_portal_says_so() -> None:
    """And what texts a second there were before, under the load, without the device and with it again."""
    said = [(1.0, 1.0, "working"), (2.0, 1.0, "working"), (6.0, 4.0, "working"), (7.0, 1.0, "slow")]
    said += [(14.0, 2.0, "slow"), (21.0, 1.0, "working"), (22.0, 1.0, "working"), (30.0, 1.0, "working")]
    series = [{"at": at, "s": taken, "check": 5.0, straggler.SLOW: state} for at, taken, state in said]
    text = straggler.shown({"series": series, "loaded": 2.0, "free": 20.0})
    assert "before the load | 1.00" in text and "until it is noticed | 0.40" in text
    assert "planned anew | 0.50" in text and "noticed after | 5.0 s" in text
    assert "end | 1.0 s" in text and "wrong outputs | 0" in text


def test_a_row_is_met_where_every_baseline_is_as_far_behind_as_in_the_paper() -> None:
    """One that is nearer is named, and so is one whose figure is no result."""
    ours = Cell("A", "bert-l", "joint", 4)
    barrier = ours.calibration()

    def against(sequence_s: float, periods: float = 20.0) -> str:
        times = {"tensor": 19.0, "sequence": sequence_s, "edgeshard": 36.0, "galaxy": 12.5}
        cells = {Cell("A", "bert-l", method, 4): seconds for method, seconds in times.items()}
        found = [(cell, record(cell, seconds)) for cell, seconds in cells.items()]
        found[0][1]["periods"] = periods
        return galaxy.verdict(of((barrier, record(barrier, 4.0)), (ours, record(ours, 10.0)), *found), "A", "bert-l")

    assert against(14.0) == "**met**"
    assert against(13.0) == "**missed**: sequence parallelism"
    assert against(13.0, periods=5.0) == "**missed**: sequence parallelism; in doubt: tensor parallelism"


def edge(method: str, **more: Any) -> Cell:
    """Three equal devices and GPT2-L at half its width."""
    return edgeformer_figures.of("half-gpt2-l", method, **more)


def test_what_each_choice_brings_multiplies_to_all_of_it() -> None:
    """From accelerate's products to heads that are left out; of one that was not measured there is a dash."""
    ways = [
        edge("accelerate", mbit=0.0, devices=1),
        edge("edgeformer").local(),
        edge("edgeformer-paper"),
        edge("lending"),
    ]
    ways += [edge("edgeformer"), edge("edgeformer-narrow", out=0.25)]
    seconds = (12.0, 10.0, 8.0, 4.0, 4.0, 3.2)
    barrier = edge("edgeformer").calibration(3)
    records = of(
        (barrier, record(barrier, 4.0)), *((cell, record(cell, took)) for cell, took in zip(ways, seconds, strict=True))
    )
    row = edgeformer_figures.choices(records).splitlines()[2]
    assert row == "| GPT2-L | 1.20 | 1.25 | 2.00 | 1.00 | 1.25 | 3.75 | 2.01 |"
    del records.found[ways[3].name]
    assert "| GPT2-L | 1.20 | 1.25 | – | – | 1.25 | 3.75 | 2.01 |" in edgeformer_figures.choices(records)


def test_lengths_of_tasks_stand_beside_one_another() -> None:
    """Each beside one device on as many rows."""
    ours = edge("edgeformer", rows=142)
    barrier = ours.calibration(3)
    found = of((barrier, record(barrier, 4.0)), (ours, record(ours, 5.0)), (ours.local(), record(ours.local(), 10.0)))
    assert "| Trilby, edgeformer | – | 2.00 | – | – |" in edgeformer_figures.tasks(found)


def test_edgeformers_plan_must_come_near_its_bound_and_be_the_fastest() -> None:
    """What it is slower than is named; times that differ by less than 2 % are the same."""
    ours, barrier = edge("edgeformer"), edge("edgeformer").calibration()
    alone = ours.local(), record(ours.local(), 10.0)

    def goal(ours_s: float, tensor_s: float) -> str:
        cells = (ours, record(ours, ours_s, predicted_full_s=4.0)), (edge("tensor"), record(edge("tensor"), tensor_s))
        return edgeformer_figures.goals(of(alone, (barrier, record(barrier, 4.0)), *cells)).splitlines()[2]

    assert "| 1.00 | tensor parallelism, 0.80 | **met** (not all measured, or in doubt) |" in goal(4.0, 5.0)
    assert "**missed**: 0.80 of its bound" in goal(5.0, 5.0)
    assert "**missed**: 0.80 of its bound, slower than tensor parallelism" in goal(5.0, 4.0)


def test_one_device_without_some_heads_is_compared_with_itself_whole() -> None:
    """By what one device took just before it."""
    local = edge("edgeformer").local()
    bare = replace(local, out=0.5, runs=1)
    assert bare.name != local.name
    records = of((local, record(local, 10.0)), (bare, record(bare, 6.0, one_s=12.0)))
    assert records.ratio(bare, local) == 0.5
    assert "| GPT2-L | one device | 10.00 | – | 0.50 | – |" in edgeformer_figures.pruned(records)


def test_phases_count_what_was_read_behind_their_first_half() -> None:
    """And what was read before a change does not count for what follows it."""
    times = [(2.0, 1.0), (9.0, 2.0), (12.0, 5.0), (19.0, 4.0), (20.0, 0.5)]
    run = {"series": [{"at": at, "s": taken, "check": 1.0} for at, taken in times], "made": [10.0]}
    assert varied.phases(run, 20.0) == {"texts_s": [2.0, 2.25], "wrong": 0}


def test_a_hand_over_stands_beside_a_replay() -> None:
    """The longest step of each, what was expected of either alone, and where outputs differ."""

    def run(way: str, pause_s: float, check: float) -> dict[str, Any]:
        steps = [{"s": each, "check": check} for each in (0.02, pause_s, 0.02)]
        expected = {handing.HANDED: 0.1, handing.REPLAYED: 4.0}
        return {"mode": "galaxy", "positions": 2048, "way": way, "steps": steps, "expected_s": expected}

    runs = [run(handing.HANDED, 1.5, 1.0), run(handing.REPLAYED, 6.0, 1.0)]
    assert "| galaxy | 2048 | 20 | 1.50 (0.10) | 6.00 (4.00) | 0 |" in handing.shown({"runs": runs})
    assert "| 3 |" in handing.shown({"runs": [runs[0], run(handing.REPLAYED, 6.0, 1.1)]})
    assert handing.shown({"runs": runs[:1]}) == handing.shown({})


def test_where_lending_pays_is_foreseen_for_halves_too() -> None:
    """On links that carry nothing half of a layer makes it slower, on those that cost nothing faster."""
    shape = longer("half-gpt2-l", 512)
    slow, fast = foreseen.halves(shape, 1e-6), foreseen.halves(shape, 1e3)
    assert max(slow.values()) < 1 < min(fast.values()) and fast["lend-projections"] == pytest.approx(2, rel=0.1)


def test_weighing_speed_changes_where_heads_are_computed_and_not_how_many() -> None:
    """An exact allocation keeps as many as the limit allows, whatever λ is."""
    rows = [row.split(" | ") for row in foreseen.by_weight("half-opt-1.3b").splitlines()[2:]]
    assert len({row[1] for row in rows[:-1]}) == 1 and int(rows[0][1]) < 32


def test_the_picture_is_drawn_from_what_there_is(tmp_path: Path) -> None:
    """Also where nothing was measured."""
    lending_picture.draw(Records({}), tmp_path / "drawn")
    assert (tmp_path / "drawn" / "lending.png").read_bytes().startswith(b"\x89PNG")
