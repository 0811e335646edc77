"""What is measured: a cell is one method under one condition, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

REPEATS: Final = 3
QUICK_REPEATS: Final = 1


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
        arrivals: by chance (``poisson``), or as a trace of Azure's had them (``azure``).
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
    arrivals: str = "poisson"

    @property
    def name(self) -> str:
        """What its record is called."""
        parts = [self.experiment, self.setting, self.dataset, self.method, f"rate{self.rate:g}"]
        parts += [f"stages{self.stages}"] * (self.stages > 1) + [f"rtt{self.rtt_ms:g}"] * (self.rtt_ms > 0)
        parts += [self.trace] * bool(self.trace) + [self.arrivals] * (self.arrivals != "poisson")
        return "-".join([*parts, str(self.repeat)]).replace("/", "_")

    def as_dict(self) -> dict[str, object]:
        """For the record."""
        return asdict(self)


METHODS: Final = ("ushape-full", "ushape", "u-sarathi", "u-medusa", "u-small", "cloud", "hat-paper", "hat-plain", "hat")
RIVALS: Final = ("llama-rpc",)
"""Other programs, in the same experiments as methods where one device is measured alone."""
ABLATION: Final = ("none", "pc", "sd", "sd+pd", "sd+pc", "sd+pc+pd")
CHUNKS: Final = ("chunk-512", "chunk-256", "chunk-128", "chunk-64", "chunk-auto")
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
STAGES: Final = (1, 2, 3, 4)
PIPELINED: Final = ("ushape-full", "u-sarathi", "u-medusa", "hat")
PIPELINED_LONG: Final = ("ushape-full", "hat")
"""With prompts as long as CNN/DM's."""


def middle(rates: Sequence[float]) -> float:
    """The paper's middle rate."""
    return rates[len(rates) // 2]


def demo_cells(quick: bool) -> Iterator[Cell]:
    """Of the demo model, one repeat."""
    requests = REQUESTS
    for dataset in ("specbench", "cnndm"):
        rates = (middle(RATES[dataset]),) if quick else RATES[dataset]
        for method in METHODS:
            for rate in rates if method != "hat-plain" else [middle(rates)]:
                yield Cell("rates", "demo", dataset, method, rate, requests=requests)
        for method in ABLATION:
            yield Cell("ablation", "demo", dataset, method, middle(RATES[dataset]), requests=requests)
        for method in CHUNKS[-1:] if quick else CHUNKS:
            yield Cell("chunks", "demo", dataset, method, middle(RATES[dataset]), requests=requests)
        for method in ("ushape", "u-medusa", "u-small", "hat-paper", "hat"):
            yield Cell("single", "demo", dataset, method, 0.0, requests=3)
        for method in ("ushape-full", "ushape", "hat-plain", "hat"):
            yield Cell("unloaded", "demo", dataset, method, 0.0, requests=4, tokens=1)
    for dataset, methods in (
        (("specbench", PIPELINED),) if quick else (("specbench", PIPELINED), ("cnndm", PIPELINED_LONG))
    ):
        for method in methods:
            for stages in (1, 2) if quick else STAGES:
                yield Cell("stages", "demo", dataset, method, RATES[dataset][0], stages=stages, requests=requests)
    for method in ("ushape", "hat-paper", "hat"):
        for rtt_ms in (0.0, 20.0, 50.0) if quick else ROUND_TRIPS_MS:
            yield Cell("rtt", "demo", "specbench", method, 0.0, rtt_ms=rtt_ms, requests=3)
    for method in ("ushape-full", "u-medusa", "hat-paper", "hat"):
        for trace in TRACES[:1] if quick else TRACES:
            rate = middle(RATES["specbench"])
            yield Cell("traces", "demo", "specbench", method, rate, trace=trace, requests=requests)
        if not quick:
            yield Cell("real", "demo", "real", method, RATES["real"][0], requests=requests)
            yield Cell("arrivals", "demo", "specbench", method, rate, requests=requests, arrivals="azure")


def wide_cells(quick: bool) -> Iterator[Cell]:
    """Of the 200 M model, one repeat."""
    for dataset in ("specbench",) if quick else ("specbench", "cnndm"):
        for method in METHODS:
            if method != "cloud":
                for rate in WIDE_RATES[dataset]:
                    yield Cell("rates", "wide", dataset, method, rate, requests=6, tokens=64)


def rival_cells(quick: bool) -> Iterator[Cell]:
    """Of other programs, on the same conditions as methods, one repeat."""
    for cell in demo_cells(quick):
        if cell.experiment in ("single", "unloaded") and cell.method == "hat":
            yield from (replace(cell, method=rival) for rival in RIVALS)


def all_cells(
    quick: bool, settings: Sequence[str] = ("demo", "wide"), rivals: bool = False, repeats: int = 0
) -> list[Cell]:
    """Every method of a repeat before the next repeat, and in every other repeat the last one first.

    rivals: theirs too. repeats: so many; 0: ``REPEATS``, or ``QUICK_REPEATS``.
    """
    every = [*demo_cells(quick), *wide_cells(quick), *(rival_cells(quick) if rivals else ())]
    once = [cell for cell in every if cell.setting in settings]
    numbers = range(repeats or (QUICK_REPEATS if quick else REPEATS))
    return [replace(cell, repeat=repeat) for repeat in numbers for cell in (once[::-1] if repeat % 2 else once)]
