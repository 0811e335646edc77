"""What is measured: a cell is one method under one condition, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

REPEATS: Final = 3
"""Of a headline cell; every other one is of a sweep and measured once."""


@dataclass(frozen=True)
class Cell:
    """One run of the load generator, and one record.

    Attributes:
        experiment: which table or figure it is for.
        setting: ``demo`` (the demo model, its own acceptance) or ``wide`` (200 M parameters, acceptance replayed).
        dataset: whose prompt lengths: ``specbench``, ``cnndm``; ``real``: real prompts.
        rate: requests a second; 0: one at a time.
        stages: processes that share the cloud's layers as a pipeline.
        rtt_ms: added round trip.
        trace: of the link's bandwidth; empty: drawn anew within the paper's bounds.
        requests: how many; ``tokens``: most of an answer.
    """

    experiment: str
    setting: str
    dataset: str
    method: str
    rate: float
    repeat: int = 0
    stages: int = 1
    rtt_ms: float = 0.0
    trace: str = ""
    requests: int = 24
    tokens: int = 128

    @property
    def name(self) -> str:
        """What its record is called."""
        parts = [self.experiment, self.setting, self.dataset, self.method, f"rate{self.rate:g}"]
        parts += [f"stages{self.stages}"] * (self.stages > 1) + [f"rtt{self.rtt_ms:g}"] * (self.rtt_ms > 0)
        parts += [self.trace] * bool(self.trace)
        return "-".join([*parts, str(self.repeat)]).replace("/", "_")

    @property
    def headline(self) -> bool:
        """Whether the first table of the page rests on it: HAT and its baselines, demo model, middle rate."""
        at_middle = self.experiment == "rates" and self.setting == "demo" and self.rate == middle(RATES[self.dataset])
        return at_middle and self.method != "hat-plain"

    def as_dict(self) -> dict[str, object]:
        """For the record."""
        return asdict(self)


METHODS: Final = ("ushape-full", "ushape", "u-sarathi", "u-medusa", "u-small", "cloud", "hat-paper", "hat-plain", "hat")
ABLATION: Final = ("none", "pc", "sd", "sd+pd", "sd+pc", "sd+pc+pd")
CHUNKS: Final = ("chunk-512", "chunk-128", "chunk-auto")
"""Prompts in chunks of so many rows, or as the cloud advises, and nothing else: what their number alone is worth."""
RATES: Final = {"specbench": (0.25, 0.4, 0.6), "cnndm": (0.12, 0.18, 0.27), "real": (0.4,)}
"""Requests a second: at the lowest the demo model's cloud has time to spare, at the highest U-shape keeps it busy.
Beyond that whoever is served slower has more requests at a time, which are served slower still: then it is the machine
of the day that is measured."""
WIDE_RATES: Final = {"specbench": (0.12,), "cnndm": (0.07,)}
ROUND_TRIPS_MS: Final = (0.0, 10.0, 20.0, 50.0, 80.0)
TRACES: Final = ("mahimahi-lte", "hsdpa-3g", "lumos-5g")
REQUESTS: Final = 8
"""Of a cell in an open loop; their lengths are those of the data set in every repeat, see lengths.py."""
STAGES: Final = {"specbench": (1, 2, 4), "cnndm": (1, 4)}
PIPELINED: Final = {"specbench": ("ushape-full", "u-sarathi", "hat"), "cnndm": ("ushape-full", "hat")}


def middle(rates: Sequence[float]) -> float:
    """The paper's middle rate."""
    return rates[len(rates) // 2]


def demo_cells() -> Iterator[Cell]:
    """Of the demo model, one repeat."""
    for dataset in ("specbench", "cnndm"):
        rates, at = RATES[dataset], middle(RATES[dataset])
        for method in METHODS:
            for rate in [at] if method in ("hat-plain", "hat-paper") else rates:
                yield Cell("rates", "demo", dataset, method, rate, requests=REQUESTS)
        for experiment, methods in (("ablation", ABLATION), ("chunks", CHUNKS)):
            for method in methods:
                yield Cell(experiment, "demo", dataset, method, at, requests=REQUESTS)
        for method in ("ushape", "u-medusa", "u-small", "hat-paper", "hat"):
            yield Cell("single", "demo", dataset, method, 0.0, requests=3)
        for method in ("ushape-full", "ushape", "hat-plain", "hat"):
            yield Cell("unloaded", "demo", dataset, method, 0.0, requests=4, tokens=1)
        for method in PIPELINED[dataset]:
            for stages in STAGES[dataset]:
                yield Cell("stages", "demo", dataset, method, rates[0], stages=stages, requests=REQUESTS)
    for method in ("ushape", "hat-paper", "hat"):
        for rtt_ms in ROUND_TRIPS_MS:
            yield Cell("rtt", "demo", "specbench", method, 0.0, rtt_ms=rtt_ms, requests=3)
    for method in ("ushape-full", "u-medusa", "hat-paper", "hat"):
        for trace in TRACES:
            yield Cell(
                "traces", "demo", "specbench", method, middle(RATES["specbench"]), trace=trace, requests=REQUESTS
            )
        yield Cell("real", "demo", "real", method, RATES["real"][0], requests=REQUESTS)


def wide_cells() -> Iterator[Cell]:
    """Of the 200 M model, one repeat."""
    for dataset, rates in WIDE_RATES.items():
        for method in METHODS:
            if method not in ("cloud", "hat-plain"):
                yield Cell("rates", "wide", dataset, method, middle(rates), requests=6, tokens=64)


def all_cells(quick: bool = False, settings: Sequence[str] = ("demo", "wide"), repeats: int = 0) -> list[Cell]:
    """Every cell of a repeat before the next repeat, and in every other repeat the last one first.

    quick: once, of the demo model's headline, as it is on SpecBench's lengths. repeats: so many of all; 0: as planned.
    """
    once = [cell for cell in (*demo_cells(), *wide_cells()) if cell.setting in settings]
    if quick:
        once, repeats = [cell for cell in once if cell.headline and cell.dataset == "specbench"], repeats or 1
    return [
        replace(cell, repeat=repeat)
        for repeat in range(repeats or REPEATS)
        for cell in (once[::-1] if repeat % 2 else once)
        if repeats or cell.headline or not repeat
    ]
