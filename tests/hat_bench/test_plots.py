"""Plots are drawn where there are figures, are small, and say what the figures say."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.hat.canvas import bars_of, panels
from bench.hat.looks import LOOKS, look
from bench.hat.plots import PLOTS, draw_all, says
from bench.hat.summary import TTFT, Measured, Spread
from hat_bench.invented import campaign, parsed, record
from PIL import Image


def test_every_plot_is_drawn_and_small(tmp_path: Path) -> None:
    """All of them for one data set, under 60 KB, wide enough to be read."""
    here = [each for each in campaign(2) if (each["cell"]["setting"], each["cell"]["dataset"]) == ("demo", "specbench")]
    drawn = draw_all(Measured(parsed(*here)), tmp_path)
    assert drawn == {("demo", "specbench", name): f"demo-specbench-{name}.png" for name in PLOTS}
    for name in drawn.values():
        assert (tmp_path / name).stat().st_size < 60_000
        with Image.open(tmp_path / name) as picture:
            assert picture.size == (990, 462)


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    """An experiment that was not measured, or whose requests all failed, has no plot."""
    made = record("unloaded", "hat")
    assert draw_all(Measured(parsed(made)), tmp_path) == {} and not list(tmp_path.iterdir())


def test_a_plot_of_half_the_records_is_drawn(tmp_path: Path) -> None:
    """HAT alone, one repeat: delays and their parts, steps and SLAs, and no parts of a gain."""
    drawn = draw_all(Measured(parsed(record("rates", "hat", rate=2.0))), tmp_path)
    assert {name for _, _, name in drawn} == {"rates", "spent", "steps", "slas"}


def test_the_same_records_make_the_same_bytes(tmp_path: Path) -> None:
    """So a page made anew changes nothing where nothing was measured anew."""
    measured = Measured(parsed(*(record("rates", method, rate=2.0) for method in LOOKS)))
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    for file in (first, second):
        assert PLOTS["steps"](measured, "demo", "specbench", file)
    assert first.read_bytes() == second.read_bytes()


def test_a_method_has_its_colour_in_the_picture(tmp_path: Path) -> None:
    """HAT's colour is where HAT was measured, and not where it was not."""

    def has_hat(*methods: str) -> bool:
        file = tmp_path / f"{len(methods)}.png"
        assert PLOTS["steps"](Measured(parsed(*(record("rates", each) for each in methods))), "demo", "specbench", file)
        with Image.open(file) as picture:
            counts = picture.convert("RGB").getcolors(2**20) or []
        wanted = tuple(int(look("hat").colour[at : at + 2], 16) for at in (1, 3, 5))
        found = 0
        for count, at in counts:
            assert isinstance(at, tuple)
            found += count * (max(abs(a - b) for a, b in zip(at, wanted, strict=True)) < 6)
        return found > 500

    assert has_hat("hat", "ushape") and not has_hat("ushape")


@pytest.mark.parametrize(
    ("hat", "title"),
    [
        ((0.2, 0.4), "HAT 60 to 80 % below U-shape"), ((0.5, 0.5), "HAT 50 % below U-shape"),
        ((1.1, 0.7), "HAT from 10 % above to 30 % below U-shape"), ((1.2, 1.1), "HAT 10 to 20 % above U-shape"),
    ],
)  # fmt: skip
def test_a_title_says_what_one_sees(hat: tuple[float, float], title: str) -> None:
    """Below, above, or both."""
    records = [record("rates", method, rate=rate) for rate in (1.0, 2.0) for method in ("hat", "ushape-full")]
    for made, ttft in zip(records, (hat[0], 1.0, hat[1], 1.0), strict=True):
        made["latency"]["ttft"]["mean"] = ttft
    measured = Measured(parsed(*records))
    assert says(measured, measured.places, "rate", TTFT, "first token") == f"first token: {title}"


def test_bars_leave_a_gap_for_what_is_missing() -> None:
    """Two groups, one of them without the second method: three bars, each at its median."""
    _, (panel,) = panels(1)
    one = Spread(2.0, 1.0, 4.0, 3)
    bars_of(panel, ["a", "b"], {"hat": [one, one], "ushape": [None, one]})
    heights = [patch.get_height() for patch in panel.patches if hasattr(patch, "get_height")]
    assert heights == [2.0, 2.0, 2.0]
