"""A load's figures as a picture: against the rate where there are several, else how each time is spread. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from service.bench.figures import Figures, Spread
from service.line_plot import line_plot, stacked


def plot(found: Sequence[Figures]) -> str:
    """An SVG document. found: rising rates, at least one."""
    return stacked(_against_the_rate(found) if len(found) > 1 else _spreads(found[0]))


def _against_the_rate(found: Sequence[Figures]) -> list[str]:
    across = "requests sent a second"

    def times(title: str, of: Callable[[Figures], Spread | None]) -> str:
        there = [(each.rate, spread) for each in found if (spread := of(each)) is not None]
        lines = {
            name: [(rate, float(getattr(spread, name))) for rate, spread in there] for name in ("p50", "p90", "p99")
        }
        return line_plot(title, across, "ms", lines)

    return [
        times("Time to first token", lambda each: each.ttft),
        times("Time between tokens", lambda each: each.tbt),
        times("Whole answer", lambda each: each.e2e),
        line_plot(
            "Answers", across, "a second",
            {
                "sent": [(each.rate, each.rate) for each in found],
                "answered": [(each.rate, each.answered_s) for each in found],
                "good": [(each.rate, each.good_s) for each in found],
            },
        ),
    ]  # fmt: skip


def _spreads(figures: Figures) -> list[str]:
    def curve(title: str, spread: Spread | None) -> str:
        points = [] if spread is None else list(enumerate(spread.curve))
        return line_plot(f"{title}, {figures.rate:g} requests a second", "percentile", "ms", {"ms": points})

    return [
        curve("Time to first token", figures.ttft),
        curve("Time between tokens", figures.tbt),
        curve("Whole answer", figures.e2e),
    ]
