"""Records are read strictly, compared within repeats, and judged without guessing."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
from bench.hat.cells import RATES, REPEATS, Cell, all_cells
from bench.hat.goals import judge
from bench.hat.judging import DOUBTED, MET, MISSED, UNMEASURED, Goal
from bench.hat.records import BadRecord, Place, load, parse, planned
from bench.hat.summary import TBT, TTFT, Measured, compliance, met_by, spread
from hat_bench.invented import campaign, parsed, record
from hypothesis import given
from hypothesis import strategies as st

TEXT_KEPT = "TBT best of all baselines that keep text on the device"
HAT, FULL = Place("rates", "demo", "specbench", "hat", 2.0), Place("rates", "demo", "specbench", "ushape-full", 2.0)


def goal(goals: list[Goal], name: str) -> Goal:
    """The one goal whose name begins like this."""
    (found,) = [each for each in goals if each.name.startswith(name)]
    return found


def test_a_ratio_is_taken_within_a_repeat() -> None:
    """A machine that is four times as slow in one repeat changes no ratio, though it changes both medians."""
    measured = Measured(
        parsed(
            *(
                record("rates", method, repeat, rate=2.0, latency__ttft__mean=ttft * slow)
                for repeat, slow in enumerate((1.0, 4.0, 1.1))
                for method, ttft in (("hat", 0.2), ("ushape-full", 0.8))
            )
        )
    )
    ratio = measured.ratio(HAT, FULL, TTFT)
    assert ratio is not None and ratio.count == 3
    assert (ratio.low, ratio.high) == pytest.approx((0.25, 0.25))
    assert ratio.below.median == pytest.approx(75)
    assert measured.numbers(HAT, TTFT) == pytest.approx({0: 0.2, 1: 0.8, 2: 0.22})


def test_one_repeat_is_the_median_of_the_ratios() -> None:
    """Of an even number the higher of the two in the middle; none where nothing can be compared."""
    records = [
        record("rates", method, repeat, rate=2.0, latency__ttft__mean=10.0**repeat * times)
        for repeat, ttft in enumerate((0.5, 0.2, 0.3, 0.4))
        for method, times in (("hat", ttft), ("ushape-full", 1.0))
    ]
    assert Measured(parsed(*records[:6])).middle_repeat(HAT, FULL, TTFT) == 2
    assert Measured(parsed(*records)).middle_repeat(HAT, FULL, TTFT) == 3
    assert Measured(parsed(records[0], records[3])).middle_repeat(HAT, FULL, TTFT) is None


def test_repeats_that_lack_one_side_are_left_out() -> None:
    """Nothing is made up for what is missing, and nothing at all is a missing ratio."""
    measured = Measured(
        parsed(record("rates", "hat", 0, 2.0), record("rates", "hat", 1, 2.0), record("rates", "ushape-full", 1, 2.0))
    )
    ratio = measured.ratio(HAT, FULL, TTFT)
    assert ratio is not None and ratio.count == 1
    assert measured.ratio(HAT, Place("rates", "demo", "specbench", "cloud", 2.0), TTFT) is None
    assert measured.spread(HAT, "latency.nothing") is None


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=12))
def test_a_spread_is_around_its_median(values: list[float]) -> None:
    """And of few values it reaches from the lowest to the highest."""
    found = spread(values)
    assert found is not None and found.low <= found.median <= found.high and found.count == len(values)
    if len(values) < 5:
        assert (found.low, found.high) == (min(values), max(values))
    turned = found.line(-1.0)
    assert turned.low <= turned.median <= turned.high


def test_a_cell_in_which_all_failed_has_no_delay_of_nothing() -> None:
    """Its distributions are of nothing: their zeros are not the best delays of all."""
    made = record("rates", "hat", rate=2.0, latency__failed=24, latency__prefill_sla=[], latency__decode_sla=[])
    made["latency"]["ttft"] = made["latency"]["tbt"] = {"mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0}
    measured = Measured(parsed(made, record("rates", "ushape-full", rate=2.0)))
    assert measured.ratio(HAT, FULL, TTFT) is None and measured.spread(HAT, "latency.tbt.p50") is None
    assert goal(judge(measured), "TTFT below U-shape, all").verdict == UNMEASURED


def test_failed_requests_meet_no_sla() -> None:
    """Three of four are in time, one failed: three quarters, and no SLA that all meet."""
    (failed,) = parsed(record("rates", "hat", latency__failed=1, latency__prefill_sla=[0.3, 0.1, None, 0.2, math.inf]))
    assert compliance(failed, "prefill", 0.2) == pytest.approx(0.5) and compliance(failed, "prefill", 9.0) == 0.75
    assert met_by(failed, "prefill", 0.5) == 0.2 and met_by(failed, "prefill", 0.75) == 0.3
    assert met_by(failed, "prefill", 0.9) is None


def test_every_goal_is_judged_where_it_applies() -> None:
    """On whole records: six by delay for each data set of the rates, two unloaded, one of every other kind."""
    goals = judge(Measured(parsed(*campaign())))
    assert len(goals) == 3 * 6 + 2 * 2 + 2 + 1
    assert goal([each for each in goals if each.dataset == "specbench"], "tokens a second").verdict == MET


def test_one_rate_that_misses_is_a_missed_goal() -> None:
    """TBT has to be low enough at every rate, and the text says where it is not."""
    records = [record("rates", method, rate=rate) for method in ("hat", "ushape-full") for rate in (1.0, 2.0, 3.0)]
    assert goal(judge(Measured(parsed(*records))), "TBT below U-shape, all").verdict == MET
    records[2]["latency"]["tbt"]["mean"] = 0.9
    missed = goal(judge(Measured(parsed(*records))), "TBT below U-shape, all")
    assert missed.verdict == MISSED and "3 requests/s: -" in missed.measured
    (short,) = missed.shortfalls
    assert short.label == "3 requests/s" and [place.method for place in short.places] == ["hat", "ushape-full"]
    assert (short.delay, short.under) == (TBT, TBT) and short.bar == pytest.approx(0.23)


def test_a_baseline_that_was_not_measured_is_named_and_one_that_wins_is_said() -> None:
    """The best of all baselines is known once all of them ran, and that it is not, before; cloud is none of them."""
    records = [record("rates", each, rate=1.0) for each in ("hat", "ushape-full", "u-medusa", "cloud")]
    best = goal(judge(Measured(parsed(*records))), TEXT_KEPT)
    assert best.verdict == UNMEASURED and best.measured.startswith("of 2 the nearest is U-Medusa")
    assert best.measured.endswith("; 3 of 5 not measured")
    rest = [record("rates", each, rate=1.0) for each in ("ushape", "u-sarathi", "u-small")]
    best = goal(judge(Measured(parsed(*records, *rest))), TEXT_KEPT)
    assert best.verdict == MET and best.measured.startswith("of 5 the nearest is U-Medusa")
    records[2]["latency"]["tbt"]["mean"] = 0.001
    best = goal(judge(Measured(parsed(*records))), TEXT_KEPT)
    assert best.verdict == MISSED and best.measured.startswith("U-Medusa, 1 requests/s: -")
    records[2]["latency"]["tbt"]["mean"], records[3]["latency"]["tbt"]["mean"] = 0.05, 0.001
    found = judge(Measured(parsed(*records, *rest)))
    assert goal(found, TEXT_KEPT).verdict == MET
    assert goal(found, "TBT best of all baselines and of cloud").verdict == MISSED


def test_verdicts_say_how_much_they_rest_on() -> None:
    """One repeat is said; three on both sides of the bar are in doubt, whatever their median."""
    for ttfts, said in (
        ((0.3,), "met"), ((0.46, 0.46), "met"), ((0.3, 0.2, 0.4), "met"),
        ((0.3, 0.2, 0.5), "in doubt"), ((0.6, 0.7, 0.4), "in doubt"), ((0.6, 0.6, 0.5), "missed"),
    ):  # fmt: skip
        records = [
            record("rates", method, repeat, 2.0, latency__ttft__mean=seconds)
            for repeat, ttft in enumerate(ttfts)
            for method, seconds in (("hat", ttft), ("ushape-full", 1.0))
        ]
        found = goal(judge(Measured(parsed(*records))), "TTFT below U-shape, all")
        assert found.verdict == said
        alone = len(ttfts) == 1
        assert bool(found.notes) == (said == "in doubt" or alone) and ("one repeat" in found.notes) == alone


def test_a_short_machine_leaves_a_miss_in_doubt_too() -> None:
    """It may have been the machine that missed; a miss beside it that is beyond doubt stays one."""
    records = [record("rates", method, rate=rate) for method in ("hat", "ushape-full") for rate in (1.0, 2.0)]
    records[0]["latency"]["tbt"]["mean"] = 0.9
    records[0]["machine"]["bottleneck"] = "cores were full"
    assert goal(judge(Measured(parsed(*records))), "TBT below U-shape, all").verdict == DOUBTED
    records[1]["latency"]["tbt"]["mean"] = 0.9
    assert goal(judge(Measured(parsed(*records))), "TBT below U-shape, all").verdict == MISSED


def test_only_what_is_planned_counts() -> None:
    """A record of another rate, or of fewer requests than planned, is left out, one repeat more than planned is not;
    none planned at all is refused."""
    cell = asdict(all_cells()[0])
    good, rate, few = parsed(record(**cell), record(**{**cell, "rate": 77.0}), record(**{**cell, "requests": 1}))
    [more] = parsed(record(**{**cell, "repeat": REPEATS}))
    assert planned([rate, good, few, more]) == [good, more]
    assert [each.cell.name for each in (good, rate)] == [Cell(**cell).name, Cell(**{**cell, "rate": 77.0}).name]
    with pytest.raises(BadRecord, match="planned"):
        planned([rate])


def test_texts_are_compared_within_a_repeat() -> None:
    """Only what both answered, repeat by repeat."""
    made = [record("rates", method, repeat, 2.0) for method in ("hat", "ushape-full") for repeat in (0, 1)]
    for each, texts in zip(made, ({"0": "a", "1": "b"}, {"0": "c"}, {"0": "a", "1": "x"}, {"1": "c"}), strict=True):
        each["texts"] = texts
    assert Measured(parsed(*made)).same_texts(HAT, FULL) == (1, 2)


def test_goals_that_rest_on_few_answers_are_in_doubt() -> None:
    """One of 24 failed, and the machine was short: both are said, and what would be met is in doubt."""
    records = [record("rates", "hat", rate=1.0, latency__failed=1), record("rates", "ushape-full", rate=1.0)]
    records[1]["machine"]["bottleneck"] = "cores were full"
    found = goal(judge(Measured(parsed(*records))), "TTFT below U-shape, all")
    assert found.verdict == DOUBTED
    assert found.notes == (
        "one repeat",
        "in 1 of 2 runs the machine itself was short: cores were full",
        "1 of 24 requests of HAT's failed and are in no delay",
    )


@pytest.mark.parametrize(("over", "verdict"), [(1.10, MET), (1.11, MISSED)])
def test_an_unloaded_device_is_held_against_its_upload(over: float, verdict: str) -> None:
    """TTFT over the bound of the same run."""
    made = record("unloaded", "hat")
    made["latency"]["ttft"]["mean"] = over * made["upload_bound_s"] - 1e-9
    assert goal(judge(Measured(parsed(made))), "TTFT of one unloaded device over the upload of the").verdict == verdict
    # 3 MB were sent for 24 requests over 0.5 MB/s: a quarter of a second each.
    made["latency"]["ttft"]["mean"] = over / 4 - 1e-9
    assert goal(judge(Measured(parsed(made))), "TTFT of one unloaded device over the upload of what").verdict == verdict


def test_a_planned_rate_that_was_not_measured_leaves_a_goal_open() -> None:
    """What holds at every rate is not known before all of them were measured."""
    rates = RATES["specbench"]
    records = [record("rates", method, rate=rate) for method in ("hat", "ushape-full") for rate in rates]
    assert goal(judge(Measured(parsed(*records))), "TBT below U-shape, all").verdict == MET
    found = goal(judge(Measured(parsed(*records[:2], *records[3:]))), "TBT below U-shape, all")
    assert found.verdict == UNMEASURED and f"{rates[2]:g} requests/s: not measured" in found.measured


def test_rows_that_are_not_packed_stand_beside_the_goal() -> None:
    """The paper packs none, so what its choices alone reach is told."""
    ttfts = {"hat": 0.2, "hat-plain": 0.6, "ushape-full": 0.8}
    made = [record("rates", method, rate=2.0, latency__ttft__mean=ttft) for method, ttft in ttfts.items()]
    found = goal(judge(Measured(parsed(*made))), "TTFT below U-shape, all")
    assert found.notes == ("with its rows not packed: 25.0 % below", "one repeat")
    made = [record("unloaded", "hat"), record("unloaded", "hat-plain", latency__ttft__mean=0.3)]
    # 0.28 s for rows as they are, a quarter of a second for what was sent.
    for found, times in zip(judge(Measured(parsed(*made))), ("1.07", "1.20"), strict=True):
        assert found.notes == (f"with its rows not packed: {times} times", "one repeat")


def test_table_5_is_missed_when_one_strategy_does_not_help() -> None:
    """Drafting that makes tokens later than without it is said; a strategy not measured leaves the goal open."""
    records = [record("ablation", each, rate=2.0) for each in ("none", "pc", "sd", "sd+pd", "sd+pc", "sd+pc+pd")]
    assert goal(judge(Measured(parsed(*records))), "SD, PC and PD").verdict == MET
    assert goal(judge(Measured(parsed(*records[:5]))), "SD, PC and PD").verdict == UNMEASURED
    records[2]["latency"]["tbt"]["mean"] = 0.5
    found = goal(judge(Measured(parsed(*records))), "SD, PC and PD")
    assert found.verdict == MISSED and "SD added to none, TBT: -" in found.measured


def test_round_trips_are_held_against_our_own() -> None:
    """0.8 and 0.6 of what the method has at 0 ms."""
    speeds = {0.0: 100.0, 20.0: 80.0, 50.0: 59.0}
    records = [
        record("rtt", "hat", rtt_ms=rtt_ms, latency__decode_tokens_s=speed, latency__tokens_s=50.0)
        for rtt_ms, speed in speeds.items()
    ]
    found = goal(judge(Measured(parsed(*records))), "tokens a second")
    assert found.verdict == MISSED and found.measured == "20 ms: 0.80 times; 50 ms: 0.59 times"
    assert found.notes[0] == "of whole answers: 20 ms: 1.00 times; 50 ms: 1.00 times"


def test_runs_on_cores_of_different_speeds_leave_doubt() -> None:
    """Work that is always the same took longer in one of two that are compared: neither met nor missed beyond doubt."""
    for other, doubted in ((0.0021, False), (0.0026, True)):
        work = {"hat": 0.002, "ushape-full": other, "ushape": 0.002}
        records = [record("rates", method, rate=2.0, machine__work_s=work_s) for method, work_s in work.items()]
        goals = judge(Measured(parsed(*records)))
        first = goal(goals, "TTFT below U-shape, all")
        assert (first.verdict == DOUBTED) == doubted
        assert any("its cores took 1.30 times as long" in note for note in first.notes) == doubted
        assert goal(goals, "TTFT below U-shape, last").verdict != DOUBTED
        records[1]["machine"]["name"] = "another"
        assert Measured(parsed(*records)).doubts([HAT, FULL]) == []  # They are not compared.


def test_what_two_machines_measured_is_not_compared() -> None:
    """Their links follow each machine's own speed, so that within a repeat only what one of them measured counts."""
    records = [record("rates", method, repeat, 2.0) for repeat in range(2) for method in ("hat", "ushape-full")]
    records[0]["machine"]["name"] = "another"
    measured = Measured(parsed(*records))
    ratio = measured.ratio(HAT, FULL, TTFT)
    assert ratio is not None and ratio.count == 1 and measured.middle_repeat(HAT, FULL, TTFT) == 1
    both = measured.over_repeats([HAT, FULL], lambda *found: float(len(found)))
    assert both is not None and both.count == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cell": None}, "cell"), ({"cell": {}}, "experiment"), ({"latency": 3}, "latency"),
        ({"latency": {"prefill_sla": [-1.0]}}, "prefill_sla"), ({"machine": {"bottleneck": 1}}, "bottleneck"),
    ],
)  # fmt: skip
def test_a_record_that_is_none_is_refused(change: dict[str, object], message: str) -> None:
    """With a message that says what is wrong."""
    with pytest.raises(BadRecord, match=message):
        parse({**record("rates", "hat"), **change})


@pytest.mark.parametrize(
    ("name", "value"), [("experiment", "other"), ("rate", -1.0), ("rate", math.nan), ("repeat", 0.5), ("method", 3)]
)
def test_a_cell_of_the_wrong_kind_is_refused(name: str, value: object) -> None:
    """Whatever is wrong with it."""
    made = record("rates", "hat")
    made["cell"][name] = value
    with pytest.raises(BadRecord, match=f"(?i){name}"):
        parse(made)


def test_a_folder_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    """Twins and broken files are refused by name; what is no record is left out."""
    with pytest.raises(BadRecord, match="no records"):
        load(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(record("rates", "hat")), encoding="utf-8")
    (tmp_path / "calibration.json").write_text('{"base_s": 1}', encoding="utf-8")
    (only,) = load(tmp_path)
    assert only.place == Place("rates", "demo", "specbench", "hat") and only.numbers[TBT] == pytest.approx(0.01)
    (tmp_path / "b.json").write_text(json.dumps(record("rates", "hat")), encoding="utf-8")
    with pytest.raises(BadRecord, match=r"b\.json and a\.json"):
        load(tmp_path)
    (tmp_path / "b.json").write_text("{", encoding="utf-8")
    with pytest.raises(BadRecord, match=r"b\.json"):
        load(tmp_path)


def test_what_json_has_no_number_for_is_missing() -> None:
    """null and NaN are as if they were not there, and the machine's name is the same on every day."""
    made = record("rates", "hat", latency__tau=None, latency__goodput=math.nan)
    made["machine"]["name"] = "a box, 2 cores, 2001-02-03"
    read = parse(made)
    assert "latency.tau" not in read.numbers and "latency.goodput" not in read.numbers
    assert read.machine == "a box, 2 cores"
