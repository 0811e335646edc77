"""Tables show what was measured beside what the paper says, and a dash for what neither has."""

from __future__ import annotations

import pytest
from bench.hat import method_tables, shortfalls, spent, tables
from bench.hat.gains import DEMO, gains
from bench.hat.goals import judge
from bench.hat.looks import BASELINES, CHUNKS, LOOKS, STRATEGIES, look, ordered
from bench.hat.shown import MISSING, around, number, percent_below
from bench.hat.summary import TBT, TTFT, Measured, Spread
from hat_bench.invented import TBT_S, TTFT_S, campaign, parsed, record


def rows(table: str) -> dict[str, list[str]]:
    """Rows by the label of the method, wherever it stands; every row is as wide as the head."""
    lines = [line.strip("|").split("|") for line in table.splitlines()]
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line] for line in lines[2:]]
    return {next((cell for cell in line[:2] if not cell.replace(".", "").isdigit()), line[0]): line for line in cells}


@pytest.fixture(scope="module")
def measured() -> Measured:
    """Everything, three times."""
    return Measured(parsed(*campaign()))


def test_a_row_has_ours_and_the_paper_s() -> None:
    """Exact figures of one repeat, with the paper's 40.5 % at its rate of 6."""
    both = [record("rates", method, rate=2.0) for method in ("hat", "ushape-full", "ushape")]
    for made, ttft, tbt in zip(both, (0.2, 0.8, 0.4), (0.01, 0.08, 0.04), strict=True):
        made["latency"]["ttft"]["mean"], made["latency"]["tbt"]["mean"] = ttft, tbt
    found = rows(tables.rates(Measured(parsed(*both)), "demo", "specbench"))
    assert found["HAT, ours"] == [
        "2", "HAT, ours", "200", "75.0", "50.0", "40.5 at 6/s", "10.0", "87.5", "75.0", "41.3 at 4/s",
    ]  # fmt: skip
    assert found["U-shape, all rows down"][3:6] == [MISSING, "-100.0", MISSING]


def test_a_method_without_its_base_has_no_percentage() -> None:
    """What was not measured at this rate is a dash, and what was measured at none has no column."""
    alone = record("rates", "hat", rate=2.0)
    found = rows(tables.rates(Measured(parsed(alone, record("rates", "ushape", rate=3.0))), "demo", "specbench"))
    assert found["HAT, ours"][3] == MISSING and len(found["HAT, ours"]) == 8
    assert len(rows(tables.rates(Measured(parsed(alone)), "demo", "specbench"))["HAT, ours"]) == 6


def test_chunks_are_counted_and_held_against_whole_prompts(measured: Measured) -> None:
    """More of them the smaller they are; how many the cloud advises is not recorded."""
    found = rows(tables.chunks(measured, "demo", "cnndm"))
    assert found["whole prompts (U-shape)"][1] == "1" and found["whole prompts (U-shape)"][3] == MISSING
    counts = [float(found[f"chunks of {size} rows"][1]) for size in (512, 256, 128, 64)]
    assert counts == sorted(counts) and 1036 / 64 <= counts[-1] <= 1036 / 64 + 1
    assert found["chunks as advised"][1] == MISSING and found["chunks as advised"][3] != MISSING


def test_only_the_middle_rate_stands_beside_the_paper(measured: Measured) -> None:
    """The paper's text has no number for the others."""
    lines = tables.rates(measured, "demo", "cnndm").splitlines()
    said = [line for line in lines if "at 4/s" in line]
    assert len(said) == 4 and all(line.startswith("| 0.7 |") for line in said)


def test_steps_and_slas_show_the_paper_s_figures(measured: Measured) -> None:
    """Figures 8 to 10."""
    steps = rows(tables.steps(measured, "demo", "specbench"))
    assert steps["U-Sarathi"][-3:] == ["6.5", "1.2", "0.17"] and steps["U-shape, small drafter"][-1] == MISSING
    slas = rows(tables.slas(measured, "demo", "cnndm"))
    assert slas["HAT, ours"][1] == "100.0 (100.0 … 100.0)"
    assert slas["U-Medusa"][2] == "68.9" and slas["U-Medusa"][-2:] == ["3109.6", "7.4"]
    assert slas["U-shape, all rows down"][4] == MISSING


def test_pipelines_stand_beside_the_length_the_paper_names(measured: Measured) -> None:
    """Figure 11 has numbers for one stage: 431.4 of 694.0 ms are 37.8 % below."""
    lines = [line for line in tables.stages(measured, "demo", "specbench").splitlines() if "HAT, ours" in line]
    assert ["37.8" in line for line in lines] == [True, False, False, False]


def test_table_4_is_against_u_shape_while_decoding() -> None:
    """Speedup is U-shape's TBT over the method's, and paper figures are those of the paper's own method."""
    made = [record("single", method) for method in ("ushape", "u-small", "hat-paper", "hat")]
    for each, tbt in zip(made, (0.08, 0.05, 0.05, 0.02), strict=True):
        each["latency"]["tbt"]["mean"] = tbt
    found = rows(method_tables.speculation(Measured(parsed(*made)), "demo", "specbench"))
    assert found["HAT, ours"][3:5] == ["4.00", "1.65"] and found["HAT as in the paper"][3:5] == ["1.60", "1.65"]
    assert found["U-shape, small drafter"][3:5] == ["1.60", MISSING]
    assert found["U-shape, last row down"][2:5] == ["1.00", "1.00", "1.00"]


def test_table_5_shows_both_changes(measured: Measured) -> None:
    """All six rows in the paper's order, its changes against none beside ours."""
    found = rows(method_tables.ablation(measured, "demo", "specbench"))
    assert list(found) == [each.label for each in STRATEGIES.values()]
    assert found["SD + PC + PD"][3:5] == ["384.2", "41.4"] and found["SD + PC + PD"][7:9] == ["26.4", "49.5"]
    assert found["none"][2] == MISSING and "…" in found["PC"][2]


def test_round_trips_and_unloaded_and_details(measured: Measured) -> None:
    """Goals stand where they apply; bytes are for each token."""
    trips = method_tables.round_trips(measured, "demo", "specbench").splitlines()
    assert [line.split("|")[5].strip() for line in trips if "HAT, ours" in line] == ["–", "–", "0.8", "0.6", "–"]
    assert "while decoding" in trips[0] and "whole answers" in trips[0]
    assert rows(method_tables.unloaded(measured, "demo", "cnndm"))["HAT, ours"][2].startswith("280")
    details = rows(method_tables.details(measured, "demo", "specbench"))
    assert details["HAT, ours"][-5:] == [
        "1.25 (1.25 … 1.25)", "0.833 (0.833 … 0.833)", "0.70 (0.70 … 0.70)", "0 of 72", "9 of 9",
    ]  # fmt: skip
    assert details["U-shape, all rows down"][-4].startswith("3.75") and len(details) == len(LOOKS)
    assert details["U-Medusa"][-1] == "6 of 9" and details["U-shape, last row down"][-1] == MISSING


def test_the_parts_of_a_delay_are_all_of_it(measured: Measured) -> None:
    """For every method and strategy, with the rest; without a record of it there is no table."""
    for delay, rest in ((TTFT, 0.1), (TBT, 0.1)):
        found = spent.at_the_middle(measured, "demo", "specbench", delay)
        assert {each.place.experiment for each in found} == {"rates", "ablation"}
        for each in found:
            assert sum(each.parts.values()) == pytest.approx(each.whole)
            assert each.parts["rest"] == pytest.approx(rest * each.whole)
    first, second = spent.tables(measured, "demo", "specbench").split("\n\n")
    assert rows(first).keys() == rows(second).keys() and "rounds a token" in second
    bare = record("rates", "hat", rate=2.0)
    del bare["breakdown"]
    assert spent.tables(Measured(parsed(bare)), "demo", "specbench") == ""


def test_what_grew_is_said_where_table_5_is_not_reproduced(measured: Measured) -> None:
    """In milliseconds of each part, from the records; nothing where every strategy helps."""
    assert spent.why_not_table_5(measured, "demo", "specbench") == ""
    none, pc = (record("ablation", method, rate=2.0) for method in ("none", "pc"))
    for made, parts in ((none, (1.692, 0.1, 0.8, 0.1, 0.5)), (pc, (1.888, 0.11, 0.5, 0.57, 0.516))):
        made["latency"]["ttft"]["mean"] = parts[0]
        made["breakdown"]["prompt"] = dict(zip(("device_s", "link_s", "queue_s", "step_s"), parts[1:], strict=True))
    said = spent.why_not_table_5(Measured(parsed(none, pc)), "demo", "specbench").splitlines()
    assert said[2:] == [
        "- PC added to none: TTFT 1692 → 1888 ms: device +10, link −300, queue +470, step +16, rest +0; "
        "the largest part more is queue's."
    ]
    pc["machine"]["bottleneck"] = "cores were full"
    assert spent.why_not_table_5(Measured(parsed(none, pc)), "demo", "specbench").endswith("in one of these runs).")
    later = [record("ablation", "pc", rate=2.0), record("ablation", "sd+pc", rate=2.0)]
    later[1]["latency"]["ttft"]["mean"] = 0.7 * later[0]["latency"]["ttft"]["mean"]
    [line] = spent.why_not_table_5(Measured(parsed(*later)), "demo", "specbench").splitlines()[2:]
    assert line.startswith("- SD added to PC: TTFT ") and " less is " in line
    del pc["breakdown"]
    assert "was not recorded" in spent.why_not_table_5(Measured(parsed(none, pc)), "demo", "specbench")


def test_a_goal_that_is_short_of_its_bar_says_where_the_time_went() -> None:
    """Of the repeat in the middle, beside what the bar allows and what it is held against; else there is no table."""
    made = [record("rates", method, repeat, 2.0) for method in ("hat", "ushape-full") for repeat in range(3)]
    assert shortfalls.shortfalls(Measured(parsed(*made)), judge(Measured(parsed(*made)))) == ""
    for each, tbt in zip(made, (0.010, 0.030, 0.090, 0.1, 0.1, 0.1), strict=True):
        each["latency"]["tbt"]["mean"] = tbt
        each["breakdown"]["decode"] = {"device_s": 0.001, "link_s": 0.015, "queue_s": 0.004, "step_s": 0.008}
    measured = Measured(parsed(*made))
    said = shortfalls.shortfalls(measured, judge(measured)).split("\n\n")[1]
    ours, theirs = ([cell.strip() for cell in line.strip("|").split("|")] for line in said.splitlines()[2:])
    assert ours[2] == "TBT below U-shape, all rows down, at the one rate measured: 2 requests/s"
    assert ours[3:] == ["HAT, ours", "30.0", "23.0", "1.00", "15.0", "4.00", "8.00", "2.00", "link"]
    assert theirs[2:6] == ["beside it", "U-shape, all rows down", "100", MISSING] and theirs[-1] == "rest"
    for each in made:
        del each["breakdown"]
    assert shortfalls.shortfalls(Measured(parsed(*made)), judge(Measured(parsed(*made)))) == ""


def test_what_chunks_spare_a_token_is_told_beside_the_paper() -> None:
    """Its waiting with and without them, of the same repeat; nothing where that was not recorded."""
    none, pc = (record("ablation", method, rate=2.0) for method in ("none", "pc"))
    for made, tbt, queue_s in ((none, 0.1, 0.03), (pc, 0.09, 0.02)):
        made["latency"]["tbt"]["mean"], made["breakdown"]["decode"]["queue_s"] = tbt, queue_s
    said = spent.of_waiting(Measured(parsed(none, pc)), "demo", "specbench")
    assert said.startswith("With PC alone TBT is 10.0 % below none's, in the paper ")
    assert "100 → 90.0 ms, of which queue 30.0 → 20.0, step " in said
    assert spent.of_waiting(Measured(parsed(none)), "demo", "specbench") == ""
    del pc["breakdown"]
    assert spent.of_waiting(Measured(parsed(none, pc)), "demo", "specbench") == ""


def test_the_parts_have_every_choice_and_the_whole(measured: Measured) -> None:
    """A row each, and a dash where a share is of no gain."""
    for chain, choices in DEMO.items():
        here = [each for each in gains(measured, "demo", "specbench") if each.chain == chain]
        found = rows(method_tables.parts(here))
        assert [choice for choice, _, _ in choices] == list(found)[: len(choices)]
        assert found["all: U-shape, all rows down, to HAT"][-1] == "100"


def test_the_headline_is_of_the_middle_rates(measured: Measured) -> None:
    """HAT below U-shape both ways, and below whichever baseline is nearest to it; nothing where it did not run."""
    lines = [line.split("|")[1:-1] for line in method_tables.headline(measured).splitlines()[2:]]
    assert len(lines) == 3 and all("(" in cell for line in lines for cell in line[2:])
    assert all(line[-1].strip().startswith("U-Medusa: 7") for line in lines)
    assert method_tables.headline(Measured(parsed(record("rates", "ushape", rate=2.0)))) == ""


def test_conditions_name_cores_ratios_and_failures(measured: Measured) -> None:
    """Above every table; what was not recorded is a dash."""
    places = measured.select(experiment="rates", setting="demo", dataset="specbench")
    said = tables.conditions(measured, places)
    for part in (
        "chunk: 0.031 (paper: 0.031)",
        "decodes: 0.012 (paper: 0.005)",
        "1.80 of 2 cores",
        "repeats: 3",
        "0.500 MB/s up",
        "0 of 2016",
    ):
        assert part in said
    bare = record("rates", "hat", machine__bottleneck="no cores left")
    bare["link"] = bare["scaling"] = {}
    few = Measured(parsed(bare))
    said = tables.conditions(few, few.places)
    assert "Link – MB/s up" in said and "short in 1 of 1 runs" in said and "(paper: –)" in said


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
    """One colour and one marker each, in one order; none of ours is a baseline, nor what stands apart."""
    for group in (LOOKS, STRATEGIES, CHUNKS):
        assert len({each.colour for each in group.values()}) == len(group)
        assert len({each.marker for each in group.values()}) == len(group)
    assert set(LOOKS) | set(STRATEGIES) | set(CHUNKS) == set(TTFT_S) == set(TBT_S)
    assert BASELINES == ("ushape-full", "ushape", "u-sarathi", "u-medusa", "u-small")
    assert ordered(["zeta", "cloud", "hat"]) == ["hat", "cloud", "zeta"] and look("zeta").label == "zeta"
