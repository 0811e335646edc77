"""The page is made from records alone, and its sentences follow the figures."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import pytest
from bench.hat import gain_prose, prose
from bench.hat.cells import REPEATS, WIDE_RATES, all_cells
from bench.hat.gains import DEMO, DOWNLOAD, DOWNLOAD_FIRST, WIDE, gain
from bench.hat.judging import DOUBTED, MET, Goal, Shortfall
from bench.hat.page import RECORDS, main, page_text
from bench.hat.page import write as write_page
from bench.hat.records import load, planned, unpack
from bench.hat.results import as_json, summary
from bench.hat.summary import Measured
from click.testing import CliRunner
from hat_bench.invented import campaign, parsed, record, write

CHOSEN = ("hat", "hat-plain", "hat-paper", "ushape", "ushape-full")


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page that was written from a folder of records: the quick ones of the wide model, and a stale one."""
    folder = tmp_path_factory.mktemp("page")
    cells = [asdict(cell) for cell in all_cells(True) if cell.setting == "wide"]
    write(folder / "records", [record(**each) for each in [*cells, {**cells[0], "rate": 77.0}]])
    stale = folder / "docs" / "hat" / "demo-old-rates.png"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"")
    result = CliRunner().invoke(main, [str(folder / "records"), "--docs", str(folder / "docs")])
    assert result.exit_code == 0, result.output
    return folder / "docs"


def test_the_page_shows_every_plot_there_is(docs: Path) -> None:
    """Every picture it names is there, every one that is there is named, and old ones are gone."""
    text = (docs / "hat.md").read_text(encoding="utf-8")
    named = re.findall(r"\]\((hat/[^)]+)\)", text)
    assert sorted(named) == sorted(f"hat/{each.name}" for each in (docs / "hat").iterdir())
    assert len(set(named)) == len(named) == 5


def test_the_page_has_every_section() -> None:
    """Goals, what was measured, every figure and table of the paper, the second look, and limits."""
    text = page_text(parsed(*campaign(1)), {})
    headings = ("Goals", "How it was measured", "What in the gain comes from which choice", "Limits")
    figures = ("(Figures 6 and 7)", "(Figure 8)", "(Figures 9 and 10)", "(Table 4)", "(Table 5)", "(Figures 11 and 12)")
    others = ("### Round trips", "### Bandwidth traces", "## Real prompts, demo model", "### Arrivals of a trace")
    for part in (*(f"\n## {each}\n" for each in headings), *figures, *others):
        assert part in text, part
    assert "fewer than 3 times" in text and "None" not in text and "nan" not in text
    assert "U-shape's TBT over the method's" in text and " / 351.2 | " in text and "TBT of single tokens, p50" in text


def test_what_is_not_planned_is_named_and_not_counted(docs: Path) -> None:
    """One line for records of cells that the plan has no longer; nothing else of them."""
    (line,) = [each for each in (docs / "hat.md").read_text(encoding="utf-8").splitlines() if "rate77" in each]
    assert line.startswith("Left out, as they are of no cell that is planned now, 1 records: rates-wide-")
    text = (docs / "hat.md").read_text(encoding="utf-8")
    assert "\n| 77 |" not in text and f"\n| {WIDE_RATES['specbench'][0]:g} |" in text


def test_each_model_has_its_own_words(docs: Path) -> None:
    """The wide model's page says that acceptance is replayed and nothing of the demo model's world."""
    text = (docs / "hat.md").read_text(encoding="utf-8")
    assert "recorded on the demo model, behind prompts as long as these, and is replayed" in text
    assert "small world" not in text
    demo = page_text(parsed(record("single", "hat")), {})
    assert "small world" in demo and "replayed" not in demo


def test_another_program_stands_apart() -> None:
    """In the tables of one device, with words of its own; without it there are none."""
    alone = [record(experiment, "hat") for experiment in ("single", "unloaded")]
    rival = [record(experiment, "llama-rpc") for experiment in ("single", "unloaded")]
    with_it, without = (page_text(parsed(*each), {}) for each in ([*alone, *rival], alone))
    assert with_it.count("Apart, and no baseline: llama.cpp RPC split") == with_it.count("| llama.cpp RPC split") == 2
    assert "llama" not in without


def test_the_summary_is_written(docs: Path) -> None:
    """As JSON, with the conditions and goals of these records."""
    found = json.loads((docs / "hat.json").read_text(encoding="utf-8"))
    kept, left_out = planned(load(docs.parent / "records"))
    assert found == json.loads(json.dumps(summary(kept, left_out))) and len(left_out) == len(found["left_out"]) == 1
    assert len(found["conditions"]) == len(kept) and len(found["goals"]) == 5


def test_the_summary_has_no_raw_record() -> None:
    """Conditions with medians, goals, gains; no request's own time."""
    text = as_json(summary(parsed(*campaign(1))))
    found = json.loads(text)
    assert len(found["conditions"]) == len(list(campaign(1)))
    assert len(found["goals"]) == 25 and len(found["gains"]) == 2 * (2 * len(DEMO) + len(WIDE))
    assert "prefill_sla" not in text and len(text) < 300_000
    one = next(each for each in found["conditions"] if each["experiment"] == "unloaded" and each["method"] == "hat")
    median, low, high = one["measured"]["latency.ttft.mean"]
    assert low == median == high and one["repeats"] == 1


def test_the_page_can_be_made_of_what_is_kept_beside_it(docs: Path, tmp_path: Path) -> None:
    """The records of the page, in one file, give the same page, less what was left out; and the same file."""
    kept = docs / RECORDS
    assert write_page(kept, make(tmp_path / "docs")).parent == tmp_path / "docs"
    assert (tmp_path / "docs" / RECORDS).read_bytes() == kept.read_bytes()
    one, other = ((each / "hat.md").read_text(encoding="utf-8").splitlines() for each in (docs, tmp_path / "docs"))
    assert [line for line in one if "rate77" not in line and line] == [line for line in other if line]


def test_published_records_are_taken_over_once(docs: Path, tmp_path: Path) -> None:
    """Each becomes a file again, as good as it was; one that is there is left as it is."""
    folder = make(tmp_path / "records")
    records = load(docs / RECORDS)
    mine = folder / f"{records[0].cell.name}.json"
    mine.write_text("mine", encoding="utf-8")
    assert unpack(docs / RECORDS, folder) == len(records) - 1 and mine.read_text(encoding="utf-8") == "mine"
    mine.unlink()
    assert [unpack(docs / RECORDS, folder) for _ in range(2)] == [1, 0]
    assert load(folder) == records


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_bad_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    """And nothing is written."""
    result = CliRunner().invoke(main, [str(tmp_path), "--docs", str(tmp_path / "docs")])
    assert result.exit_code == 1 and result.output.startswith("Error: ") and "no records" in result.output
    assert not (tmp_path / "docs").exists()


def test_few_records_make_a_page_that_says_what_is_missing() -> None:
    """One cell is enough for a page; what it cannot tell, it says."""
    text = page_text(parsed(record("rtt", "hat", rtt_ms=20.0)), {})
    assert "Not measured at all: rates, unloaded" in text and "from which choice" not in text
    assert "**not measured**" in text


def changed(repeats: int = 1, **ttft: float) -> Measured:
    """Chosen methods and strategies at one rate with these TTFTs; the others have what U-shape has."""
    records = []
    for experiment, methods in (("rates", CHOSEN), ("ablation", ("none", "pc", "sd+pc", "sd+pc+pd"))):
        for method, repeat in product(methods, range(repeats)):
            made = record(experiment, method, repeat, rate=2.0)
            made["latency"]["ttft"]["mean"] = ttft.get(method.replace("-", "_").replace("+", "_"), 1.0)
            records.append(made)
    return Measured(parsed(*records))


@pytest.mark.parametrize(
    ("last_row", "hat_paper", "said"),
    [
        (0.5, 0.4, "a download that need not be"),
        (0.95, 0.1, "chunks do not hide that download"),
        (0.8, 0.3, "hardly touch each other"),
    ],
)
def test_what_is_said_of_the_download_follows_from_both_orders(last_row: float, hat_paper: float, said: str) -> None:
    """Worth more alone, worth more behind chunks, or as much."""
    measured = changed(ushape=last_row, pc=0.5, sd_pc=0.5, sd_pc_pd=0.5, hat_paper=hat_paper, hat=hat_paper - 0.05)
    chains = [gain(measured, "demo", "specbench", chain, "TTFT") for chain in DEMO]
    assert said in gain_prose.of_download(*chains)
    assert gain_prose.of_download(None, chains[1]) == ""


def test_the_second_look_begins_with_what_it_comes_to() -> None:
    """For each delay and order the choices from the largest share to the smallest, a figure for each place."""
    found = [gain(changed(ushape=last_row, hat_paper=0.4, hat=0.2), "demo", "specbench", DOWNLOAD_FIRST, "TTFT")
             for last_row in (0.8, 0.5)]  # fmt: skip
    (said,) = gain_prose.in_short([each for each in found if each is not None])
    assert said.startswith("TTFT, 80, 80 % below U-shape with all rows down, the download first: ")
    assert f"{DOWNLOAD} 25, 62 %" in said
    assert said.index("rows packed") < said.index(DOWNLOAD) < said.index("our drafting")
    assert gain_prose.in_short([]) == []


def test_goals_in_doubt_whose_median_is_short_are_counted() -> None:
    """Doubt must not hide a miss."""
    goals = [Goal("demo", "specbench", "a", "", "", verdict, 3) for verdict in (MET, DOUBTED, DOUBTED)]
    assert prose.counted(goals) == "Of 3 goals: 1 met, 2 in doubt."
    goals[1] = replace(goals[1], shortfalls=(Shortfall("one", (), None),))
    assert prose.counted(goals) == "Of 3 goals: 1 met, 2 in doubt (1 of them with a median short of the bar)."


def test_a_loss_is_called_one() -> None:
    """HAT above U-shape has no gain to share, and what we add can make it slower."""
    measured = changed(2, hat=1.2, hat_plain=1.25, hat_paper=1.1)
    found = gain(measured, "demo", "specbench", "the download first", "TTFT")
    assert found is not None
    assert "20.0 % above" in gain_prose.of_gain(found).replace("20.0 (20.0 … 20.0)", "20.0")
    assert "no gain to share out" in gain_prose.of_gain(found)
    slower, faster = gain_prose.of_ours([found], {})
    assert slower.startswith("With our drafting and scheduling, which the paper has not, TTFT is 13.6 (")
    assert slower.endswith("% higher.") and faster.endswith("% lower.")


@pytest.mark.parametrize(("repeats", "apart"), [(1, 0.0), (2, 15.0)])
def test_what_noise_or_one_repeat_may_have_made_is_not_sure(repeats: int, apart: float) -> None:
    """13.6 and 4 % are told by neither one repeat nor where the same differed from itself by 15 %."""
    found = gain(changed(repeats, hat=1.2, hat_plain=1.25, hat_paper=1.1), "demo", "specbench", DOWNLOAD_FIRST, "TTFT")
    assert found is not None
    assert all("is not sure" in said for said in gain_prose.of_ours([found], {"TTFT": apart}))


def test_ours_is_held_against_the_papers_settings() -> None:
    """At every rate at which both were measured, in both delays."""
    made = [record("rates", method, rate=rate) for method in ("hat", "hat-paper") for rate in (1.0, 2.0)]
    for each, ttft in zip(made, (0.3, 0.9, 0.6, 0.6), strict=True):
        each["latency"]["ttft"]["mean"], each["latency"]["tbt"]["mean"] = ttft, 0.05
    assert prose.of_paper_settings(Measured(parsed(*made)), "demo", "specbench") == (
        "Ours over HAT as in the paper: TTFT 0.50 at 1 requests/s, 1.50 at 2 requests/s; "
        "TBT 1.00 at 1 requests/s, 1.00 at 2 requests/s."
    )
    assert prose.of_paper_settings(Measured(parsed(made[0])), "demo", "specbench") == ""


def test_where_the_bars_come_from_is_said() -> None:
    """54 and 77 % are the paper's against U-Medusa; against its U-shape it has less, as its figures say."""
    said = prose.bars()
    for words in ("54 and 77 %", "U-Medusa with CNN/DM", "TTFT 40.5 %", "TBT 41.3 %", "TTFT 52.0 %", "TBT 74.7 %"):
        assert words in said


def test_real_prompts_are_a_limit() -> None:
    """How many drafts are accepted there, and what is left of the gain; nothing where that was not measured."""
    made = [record("real", method, rate=0.4, dataset="real") for method in ("hat", "ushape-full")]
    for each, tbt in zip(made, (0.11, 0.10), strict=True):
        each["latency"]["tbt"]["mean"], each["latency"]["tau"] = tbt, 1.4
    said = prose.of_real(Measured(parsed(*made)))
    assert "(τ 1.40)" in said and "TBT is -10.0 % below" in said
    assert prose.of_real(Measured(parsed(made[0]))) == ""


def test_what_is_the_same_shows_what_noise_is() -> None:
    """No strategies are U-shape with all rows down, measured twice."""
    made = [record("ablation", "none", rate=2.0), record("rates", "ushape-full", rate=2.0)]
    for each, ttft, tbt in zip(made, (1.1, 1.0), (0.04, 0.05), strict=True):
        each["latency"]["ttft"]["mean"], each["latency"]["tbt"]["mean"] = ttft, tbt
    assert "has TTFT 1.10 times and TBT 0.80 times what" in prose.of_twins(Measured(parsed(*made)), "demo", "specbench")
    assert prose.of_twins(Measured(parsed(made[0])), "demo", "specbench") == ""


@pytest.mark.parametrize(("std", "said"), [(0.5, True), (0.1, False)])
def test_uneven_steps_are_told(std: float, said: bool) -> None:
    """Where they are less even beside U-shape's than the paper's, whose are 0.18 times as uneven."""
    made = [record("rates", method, rate=2.0) for method in ("hat", "ushape-full")]
    made[0]["cloud"]["step_std_s"], made[1]["cloud"]["step_std_s"] = std, 1.0
    found = prose.of_evenness(Measured(parsed(*made)), "demo", "specbench")
    assert bool(found) == said and ("ours 0.50 times" in found) == said


def test_limits_are_those_of_the_records() -> None:
    """Failures, a short machine, few repeats and several machines are said where they were, and nowhere else."""
    good = parsed(*(record("rates", "hat", repeat) for repeat in range(3)))
    bad = parsed(
        record(
            "rates", "hat", setting="wide", latency__failed=2, machine__bottleneck="disk was slow",
            machine__name="another",
        ),
        record("rates", "hat", repeat=REPEATS, setting="wide"),
    )  # fmt: skip
    plain, said = (" ".join(prose.limits(Measured(each), each)) for each in (good, [*good, *bad]))
    assert "A run has 24 requests" in plain
    for words in (
        "a choice, made after", "requests failed", "disk was slow", "fewer than 3", "2 different machines",
        "decided on before",
    ):  # fmt: skip
        assert words in said and words not in plain


@pytest.mark.parametrize(("ours", "said"), [(0.15, "3.0 times the paper's"), (0.04, "")])
def test_links_that_are_slower_beside_a_step_are_told(ours: float, said: str) -> None:
    """An upload over a step that decodes, ours and the paper's; nothing where ours is no slower."""
    records = parsed(record("rates", "hat", scaling__our_upload_per_base=ours, scaling__paper_upload_per_base=0.05))
    limits = " ".join(prose.limits(Measured(records), records))
    assert ("Beside a step that decodes" in limits) == bool(said) and said in limits
