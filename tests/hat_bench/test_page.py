"""Pages are written by hand and filled from records alone."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from bench.hat.cells import RATES, all_cells, middle
from bench.hat.page import DOCS, RECORDS, Figures, main, pages, write
from bench.hat.plots import PLOTS, draw
from bench.hat.records import load, unpack
from bench.hat.summary import Measured
from bench.page import filled, names
from click.testing import CliRunner
from hat_bench.invented import parsed, record
from hat_bench.invented import write as write_records
from PIL import Image


@pytest.fixture(scope="module")
def published() -> Figures:
    """What the published records give."""
    return Figures(load(DOCS / RECORDS))


@pytest.mark.parametrize("page", [str(each.relative_to(DOCS)) for each in pages(DOCS)])
def test_a_published_page_has_the_figures_of_the_published_records(page: str, published: Figures) -> None:
    """No figure is of other records, none is missing, and what is linked to is there."""
    text = (DOCS / page).read_text(encoding="utf-8")
    assert filled(text, published) == text
    assert "None" not in text and "nan" not in text and "Not measured" not in text
    assert text.count("<!-- figures:") == text.count("<!-- end -->") == len(names(text)) > 0
    for link in re.findall(r"\]\(([^)#:]+)", text):
        assert (DOCS / page).parent.joinpath(link).is_file(), link


def test_no_plot_is_kept_that_no_page_shows() -> None:
    """And every kind of plot is shown."""
    shown = set(re.findall(r"[\w-]+\.png", "".join(each.read_text(encoding="utf-8") for each in pages(DOCS))))
    assert {each.name for each in (DOCS / "hat").glob("*.png")} == shown
    assert {name.removesuffix(".png").rpartition("-")[2] for name in shown} == set(PLOTS)


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages made elsewhere of a few records, one of them of no planned cell."""
    folder = tmp_path_factory.mktemp("page")
    cells = [asdict(cell) for cell in all_cells(quick=True)]
    write_records(folder / "records", [record(**each) for each in [*cells, {**cells[0], "rate": 77.0}]])
    result = CliRunner().invoke(main, [str(folder / "records"), "--docs", str(folder / "docs")])
    assert result.exit_code == 0, result.output
    return folder / "docs"


def test_pages_of_other_records_are_copies_with_other_figures(docs: Path) -> None:
    """The words are the same; what was not measured says so; what is not planned is left out; plots are drawn."""
    text = (docs / "hat.md").read_text(encoding="utf-8")
    unfilled = [
        filled(each.read_text(encoding="utf-8"), lambda name: "") for each in (docs / "hat.md", DOCS / "hat.md")
    ]
    assert unfilled[0] == unfilled[1]
    assert "an invented one" in text and "4 not measured" in text
    rates = (docs / "hat" / "rates.md").read_text(encoding="utf-8")
    assert "*Not measured.*" in rates and "\n| 77 |" not in rates and "\n| 0.4 | HAT, ours |" in rates
    assert len(list((docs / "hat").glob("*.png"))) == 4


def test_the_page_can_be_made_of_what_is_kept_beside_it(docs: Path, tmp_path: Path) -> None:
    """The records of the page, in one file, give the same page and the same file; each can be a file again."""
    kept = docs / RECORDS
    write(kept, tmp_path / "docs")
    for name in ("hat.md", "hat/rates.md", RECORDS):
        assert (tmp_path / "docs" / name).read_bytes() == (docs / name).read_bytes()
    folder = tmp_path / "records"
    folder.mkdir()
    records = load(kept)
    mine = folder / f"{records[0].cell.name}.json"
    mine.write_text("mine", encoding="utf-8")
    assert unpack(kept, folder) == len(records) - 1 and mine.read_text(encoding="utf-8") == "mine"
    mine.unlink()
    assert unpack(kept, folder) == 1 and load(folder) == records


def test_a_bad_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    """And nothing is written."""
    result = CliRunner().invoke(main, [str(tmp_path), "--docs", str(tmp_path / "docs")])
    assert result.exit_code == 1 and result.output.startswith("Error: ") and "no records" in result.output
    assert not (tmp_path / "docs").exists()


def test_figures_stand_where_their_markers_do() -> None:
    """Within a line, or on lines of their own; what is not named stays, and words around stay too."""
    text = "a <!-- figures: one -->old<!-- end --> b\n<!-- figures: two x -->\nold\nold\n<!-- end -->\nc"
    assert names(text) == ["one", "two x"]
    new = filled(text, {"one": "1", "two x": "2\n3"}.get)
    assert new == "a <!-- figures: one -->1<!-- end --> b\n<!-- figures: two x -->\n2\n3\n<!-- end -->\nc"
    assert filled(new, lambda name: None) == new


def test_plots_are_small_and_the_same_for_the_same_records(tmp_path: Path) -> None:
    """Also of one method alone, and where the parts of its delay were not recorded."""
    made = [record("rates", method, rate=middle(RATES["specbench"])) for method in ("hat", "ushape-full")]
    del made[1]["breakdown"]
    for kind in PLOTS:
        name = f"demo-specbench-{kind}.png"
        for folder in ("a", "b"):
            draw(Measured(parsed(*made)), name, tmp_path / folder)
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        assert (tmp_path / "a" / name).stat().st_size < 60_000
        with Image.open(tmp_path / "a" / name) as picture:
            assert picture.size == (990, 462)
    shutil.rmtree(tmp_path / "a")
