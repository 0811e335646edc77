"""Tables show what was measured beside what the paper says, and a dash for what neither has."""

from __future__ import annotations

import pytest
from bench.hat import summaries
from bench.hat.cells import ABLATION
from bench.hat.goals import judge
from bench.hat.looks import BASELINES, LOOKS, look, ordered
from bench.hat.shown import MISSING, around, number, percent_below
from bench.hat.summary import TBT, TTFT, Measured, Spread
from bench.hat.tables import COLUMNS, gains, made, spent
from hat_bench.invented import TBT_S, TTFT_S, campaign, parsed, record


def rows(text: str) -> dict[str, list[str]]:
    """Rows by the label of the method, wherever it stands; every row is as wide as the head."""
    lines = [line.strip("|").split("|") for line in text.split("\n\n")[0].splitlines()]
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line] for line in lines[2:]]
    return {next((cell for cell in line[:2] if not cell.replace(".", "").isdigit()), line[0]): line for line in cells}


@pytest.fixture(scope="module")
def measured() -> Measured:
    """Everything, three times."""
    return Measured(parsed(*campaign()))


def test_a_row_has_ours_and_the_paper_s() -> None:
    """Exact figures of one repeat, with the paper's 40.5 % at its rate of 6; what nobody has has no column."""
    both = [record("rates", method, rate=2.0) for method in ("hat", "ushape-full", "ushape")]
    for each, ttft, tbt in zip(both, (0.2, 0.8, 0.4), (0.01, 0.08, 0.04), strict=True):
        each["latency"]["ttft"]["mean"], each["latency"]["tbt"]["mean"] = ttft, tbt
    found = rows(made(Measured(parsed(*both)), "rates", "demo", "specbench"))
    assert found["HAT, ours"] == [
        "2", "HAT, ours", "200", "75.0", "50.0", "40.5 at 6/s", "10.0", "87.5", "75.0", "41.3 at 4/s",
    ]  # fmt: skip
    assert found["U-shape, all rows down"][3:6] == [MISSING, "-100.0", MISSING]
    alone = made(Measured(parsed(both[0])), "rates", "demo", "specbench")
    assert len(rows(alone)["HAT, ours"]) == 6 and "below U-shape" not in alone
    assert made(Measured(parsed(both[0])), "rates", "demo", "cnndm") == ""


def test_every_table_says_what_it_rests_on(measured: Measured) -> None:
    """Repeats and failed requests below each; every method of an experiment has a row."""
    for kind in (*COLUMNS, "parts"):
        dataset = "real" if kind == "real" else "specbench"
        text = made(measured, kind, "demo", dataset)
        assert text.endswith("*") and "*Repeats: 3. Failed requests: 0 of" in text, kind
    short = record("rates", "hat", machine__bottleneck="no cores left", latency__failed=2)
    text = made(Measured(parsed(short)), "rates", "demo", "specbench")
    assert text.endswith("*Repeats: 1. Failed requests: 2 of 24. The machine itself was short in 1 of 1 runs.*")


def test_chunks_are_counted_and_held_against_whole_prompts(measured: Measured) -> None:
    """More of them the smaller they are; how many the cloud advises is not recorded."""
    found = rows(made(measured, "chunks", "demo", "cnndm"))
    assert found["U-shape, last row down"][1] == "1" and found["U-shape, last row down"][3] == MISSING
    counts = [float(found[f"chunks of {size} rows"][1]) for size in (512, 128)]
    assert counts == sorted(counts) and 1036 / 128 <= counts[-1] <= 1036 / 128 + 1
    assert found["chunks as advised"][1] == MISSING and found["chunks as advised"][3] != MISSING


def test_only_the_middle_rate_and_length_stand_beside_the_paper(measured: Measured) -> None:
    """The paper's text has no number for the others: Figure 11 has one stage, 431.4 of 694.0 ms are 37.8 % below."""
    said = [line for line in made(measured, "rates", "demo", "cnndm").splitlines() if "at 4/s" in line]
    assert len(said) == 4 and all(line.startswith("| 0.7 |") for line in said)
    stages = made(measured, "stages", "demo", "specbench").splitlines()
    assert ["37.8" in line for line in stages if "HAT, ours" in line] == [True, False, False]


def test_steps_slas_and_details(measured: Measured) -> None:
    """Figures 8 to 10, bytes of a token, and texts."""
    steps = rows(made(measured, "steps", "demo", "specbench"))
    assert steps["U-Sarathi"][-2:] == ["0.77", "0.17"] and steps["U-shape, small drafter"][-1] == MISSING
    slas = rows(made(measured, "slas", "demo", "cnndm"))
    assert slas["HAT, ours"][1] == "100 (100 … 100)" and slas["U-Medusa"][2::2] == ["68.9", "3109.6"]
    details = rows(made(measured, "details", "demo", "specbench"))
    assert details["HAT, ours"][-3:] == ["1.25 (1.25 … 1.25)", "0.833 (0.833 … 0.833)", "9 of 9"]
    assert details["U-Medusa"][-1] == "6 of 9" and details["U-shape, last row down"][-1] == MISSING


def test_tables_4_and_5_and_round_trips(measured: Measured) -> None:
    """Speedup is U-shape's TBT over the method's; changes stand beside the paper's; goals where they apply."""
    alone = [record("single", method) for method in ("ushape", "u-small", "hat-paper", "hat")]
    for each, tbt in zip(alone, (0.08, 0.05, 0.05, 0.02), strict=True):
        each["latency"]["tbt"]["mean"] = tbt
    found = rows(made(Measured(parsed(*alone)), "single", "demo", "specbench"))
    assert found["HAT, ours"][3:5] == ["4.00", "1.65"] and found["HAT as in the paper"][3:5] == ["1.60", "1.65"]
    assert found["U-shape, small drafter"][3:5] == ["1.60", MISSING]
    assert found["U-shape, last row down"][2:5] == ["1.00", "1.00", "1.00"]
    ablation = rows(made(measured, "ablation", "demo", "specbench"))
    assert list(ablation) == [look(each).label for each in ABLATION]
    assert ablation["SD + PC + PD"][3] == "41.4" and ablation["SD + PC + PD"][6] == "49.5"
    assert ablation["none"][2] == MISSING and "…" in ablation["PC"][2]
    trips = made(measured, "rtt", "demo", "specbench").splitlines()
    assert [line.split("|")[5].strip() for line in trips if "HAT, ours" in line] == ["–", "–", "0.8", "0.6", "–"]
    assert rows(made(measured, "unloaded", "demo", "cnndm"))["HAT, ours"][2].startswith("280")


def test_the_parts_of_a_delay_are_all_of_it(measured: Measured) -> None:
    """For every method, with the rest; a dash without a record of it."""
    for place in measured.middle("demo", "specbench").values():
        for delay in (TTFT, TBT):
            found = spent(measured, place, delay, repeat=1)
            assert found is not None and sum(found.parts.values()) == pytest.approx(found.whole)
            assert found.parts["rest"] == pytest.approx(0.1 * found.whole)
    bare = record("rates", "hat", rate=2.0)
    del bare["breakdown"]
    assert rows(made(Measured(parsed(bare)), "parts", "demo", "specbench"))["HAT, ours"][1:] == [MISSING] * 12


def test_a_goal_that_is_short_of_its_bar_says_where_the_time_went() -> None:
    """Of the repeat in the middle, beside what the bar allows; only goals that are missed, or others too."""
    both = [record("rates", method, repeat, 2.0) for method in ("hat", "ushape-full") for repeat in range(3)]
    for each, tbt in zip(both, (0.010, 0.030, 0.090, 0.1, 0.1, 0.1), strict=True):
        each["latency"]["tbt"]["mean"] = tbt
        each["breakdown"]["decode"] = {"device_s": 0.001, "link_s": 0.015, "queue_s": 0.004, "step_s": 0.008}
    measured = Measured(parsed(*both))
    said = summaries.shortfalls(measured, judge(measured), missed=False).splitlines()
    ours = [cell.strip() for cell in said[2].strip("|").split("|")]
    assert ours[2] == "TBT below U-shape, all rows down, at the one rate measured: 2 requests/s"
    assert ours[3:] == ["30.0", "23.0", "1.00", "15.0", "4.00", "8.00", "2.00", "link"]
    assert len(summaries.shortfalls(measured, judge(measured), missed=True).splitlines()) == 2
    for each in both:
        del each["breakdown"]
    bare = Measured(parsed(*both))
    assert len(summaries.shortfalls(bare, judge(bare), missed=False).splitlines()) == 2


def test_the_headline_has_each_baseline_with_bars_and_verdicts() -> None:
    """The paper's bars against U-shape, below against others; why there is a doubt; text sent has no bar in TTFT."""
    at, methods = 0.4, ("hat", *BASELINES, "cloud")
    made_of = [record("rates", method, repeat, at) for method in methods for repeat in range(2)]
    for each in made_of[:2]:
        each["latency"]["ttft"]["mean"], each["latency"]["tbt"]["mean"] = 0.3, 0.01
    made_of[2]["latency"]["ttft"]["mean"], made_of[3]["latency"]["ttft"]["mean"] = 0.5, 0.9
    made_of[4]["machine"]["bottleneck"] = "cores were full"
    text = summaries.headline(Measured(parsed(*made_of)), "demo")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.split("\n\n")[0].splitlines()[2:]]
    assert [line[1] for line in lines] == [look(each).label for each in methods[1:]]
    assert lines[0][4:6] == ["at least 54", "**in doubt**, spread"] and lines[0][8:] == ["at least 77", "**met**"]
    assert lines[1][4:6] == ["above 0", "**in doubt**, machine"] and lines[2][4:6] == ["above 0", "**met**"]
    assert lines[-1][4:6] == [MISSING, MISSING]
    assert summaries.counted(judge(Measured(parsed(*made_of)))).startswith("Of 6 goals: ")


def test_gains_are_told_one_on_top_of_the_other(measured: Measured) -> None:
    """Each against the line above; what was not measured is passed over."""
    found = rows(gains(measured, "demo", "specbench"))
    assert next(iter(found)) == "U-shape, all rows down" and len(found) == 6
    assert float(found["download of the last row only"][2].split()[0]) == pytest.approx(37.5, abs=8)
    assert "prompt chunks" not in rows(gains(measured, "wide", "specbench"))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.000"), (-0.0001, "0.000"), (0.1234, "0.123"), (1.5, "1.50"), (12.34, "12.3"), (1234.5, "1234")],
)  # fmt: skip
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    """And no exponent, and no minus before nothing."""
    assert number(value) == text


def test_spread_is_shown_with_one_measure() -> None:
    """Median and both ends with as many digits; one repeat has no spread; nothing is a dash."""
    assert around(Spread(9.96, 9.5, 10.04, 3)) == "10.0 (9.5 … 10.0)" and around(Spread(2.0, 2.0, 2.0, 1)) == "2.00"
    assert around(None) == percent_below(None) == MISSING
    assert percent_below(Spread(0.25, 0.2, 1.5, 3)) == "75.0 (-50.0 … 80.0)"


def test_every_method_has_its_own_look() -> None:
    """One colour and one marker for each that a plot may show, in one order."""
    drawn = [each for each in LOOKS.values() if each.colour != "#555555"]
    assert len({each.colour for each in drawn}) == len({each.marker for each in drawn}) == len(drawn) == 9
    assert set(LOOKS) == set(TTFT_S) == set(TBT_S)
    assert ordered(["zeta", "cloud", "hat"]) == ["hat", "cloud", "zeta"] and look("zeta").label == "zeta"
