"""Records with numbers that nobody measured, for tests of what is made of records."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from bench.hat.cells import ABLATION, CHUNKS, METHODS, STAGES, middle
from bench.hat.records import Record, parse

TTFT_S: Mapping[str, float] = {
    "hat": 0.30, "hat-plain": 0.32, "hat-paper": 0.34, "ushape-full": 0.80, "ushape": 0.50, "u-sarathi": 0.66,
    "u-medusa": 0.79, "u-small": 0.52, "cloud": 0.10,
    "none": 0.80, "pc": 0.42, "sd": 0.79, "sd+pd": 0.81, "sd+pc": 0.43, "sd+pc+pd": 0.42,
    "chunk-512": 0.48, "chunk-128": 0.42, "chunk-auto": 0.41,
}  # fmt: skip
TBT_S: Mapping[str, float] = {
    "hat": 0.010, "hat-plain": 0.012, "hat-paper": 0.020, "ushape-full": 0.060, "ushape": 0.055,
    "u-sarathi": 0.045, "u-medusa": 0.040, "u-small": 0.042, "cloud": 0.020,
    "none": 0.060, "pc": 0.050, "sd": 0.040, "sd+pd": 0.035, "sd+pc": 0.030, "sd+pc+pd": 0.022,
    "chunk-512": 0.054, "chunk-128": 0.050, "chunk-auto": 0.048,
}  # fmt: skip


RATES: Sequence[tuple[str, str, tuple[float, ...]]] = (
    ("demo", "specbench", (1.0, 2.0, 3.0)),
    ("demo", "cnndm", (0.4, 0.7, 1.0)),
    ("wide", "specbench", (0.3,)),
)


def record(
    experiment: str, method: str, repeat: int = 0, rate: float = 0.0, noise: float = 0.0, **changes: Any
) -> dict[str, Any]:
    """One record as JSON; ``changes`` replace fields of the cell, or by ``latency__failed`` those of a table, or by
    ``latency__ttft__mean`` what is in one of these."""
    cell: dict[str, Any] = {
        "experiment": experiment, "setting": "demo", "dataset": "specbench", "method": method, "rate": rate,
        "repeat": repeat, "stages": 1, "rtt_ms": 0.0, "trace": "", "requests": 24, "tokens": 128,
    }  # fmt: skip
    cell |= {name: value for name, value in changes.items() if name in cell}
    numbers = random.Random(f"{cell} {noise}")
    load = 1 + 0.2 * rate
    slow = numbers.uniform(1 - noise, 1 + noise) * load / cell["stages"] ** 0.3 + cell["rtt_ms"] / 200
    ttft, tbt = TTFT_S.get(method, 1.0) * slow, TBT_S.get(method, 0.1) * slow
    made: dict[str, Any] = {
        "cell": cell,
        "link": {"up_mb_s": 0.5, "down_mb_s": 0.8},
        "scaling": {
            "paper_upload_per_step": 0.031, "our_upload_per_step": 0.031, "paper_row_per_base": 0.0053,
            "our_row_per_base": 0.012, "paper_base_ms": 26.0, "our_base_ms": 8.0,
        },
        "latency": {
            "requests": 24, "failed": 0, "prompt_tokens": 350.0, "tokens_s": 0.8 / tbt,
            "decode_tokens_s": 1 / tbt, "goodput": 0.9 / load, "tau": 2.1, "tokens": 2400,
            "ttft": {"mean": ttft, "p50": 0.9 * ttft, "p90": 1.6 * ttft, "p99": 2.1 * ttft},
            "tbt": {"mean": tbt, "p50": 0.9 * tbt, "p90": 1.5 * tbt, "p99": 3 * tbt},
            "prefill_sla": sorted(numbers.uniform(0.2, 0.6) * ttft for _ in range(24)),
            "decode_sla": sorted(numbers.uniform(8, 14) * tbt for _ in range(24)),
        },
        "breakdown": {
            "prompt": {"device_s": 0.2 * ttft, "link_s": 0.4 * ttft, "queue_s": 0.1 * ttft, "step_s": 0.2 * ttft},
            "decode": {
                "device_s": 0.1 * tbt, "link_s": 0.3 * tbt, "queue_s": 0.1 * tbt, "step_s": 0.4 * tbt, "rounds": 0.5,
            },
        },
        "texts": {"0": "a", "1": "b", "2": "c" if method != "u-medusa" else "d"},
        "cloud": {
            "steps": 900, "step_mean_s": 0.2 * tbt, "step_std_s": 0.05 * ttft, "rows_mean": 14.0,
            "up_bytes": 3e6, "down_bytes": 9e6 if method == "ushape-full" else 2e6,
        },
        "machine": {"name": "an invented one", "quota_cores": 1.8, "cores": 2, "busy_median": 0.7, "bottleneck": ""},
        "began": "2001-02-03T04:05:06", "commit": "0123456789abcdef",
    }  # fmt: skip
    if experiment == "unloaded":
        made["upload_bound_s"] = 0.28
    for name, value in changes.items():
        if name not in cell:
            *tables, field = name.split("__")
            reduce(getitem, tables, made)[field] = value
    return made


def campaign(repeats: int = 3, noise: float = 0.06) -> Iterator[dict[str, Any]]:
    """Every experiment, so many times."""
    for repeat in range(repeats):
        for setting, dataset, rates in RATES:
            common: dict[str, Any] = {"repeat": repeat, "noise": noise, "setting": setting, "dataset": dataset}
            for method in METHODS:
                for rate in rates if method != "hat-plain" else [middle(rates)]:
                    yield record("rates", method, rate=rate, **common)
            if setting == "demo":
                for experiment, methods in (("ablation", ABLATION), ("chunks", CHUNKS)):
                    for method in methods:
                        yield record(experiment, method, rate=rates[1], **common)
                for method in ("ushape", "u-medusa", "u-small", "hat-paper", "hat"):
                    yield record("single", method, **common)
                for method in ("ushape-full", "ushape", "hat-plain", "hat"):
                    yield record("unloaded", method, **common)
        common = {"repeat": repeat, "noise": noise}
        for method in ("ushape-full", "u-sarathi", "u-medusa", "hat"):
            for stages in STAGES["specbench"]:
                yield record("stages", method, rate=2.0, stages=stages, **common)
            for trace in ("mahimahi-lte", "hsdpa-3g", "lumos-5g"):
                yield record("traces", method, rate=2.0, trace=trace, **common)
            yield record("real", method, rate=2.0, dataset="real", **common)
        for method in ("ushape", "hat-paper", "hat"):
            for rtt_ms in (0.0, 10.0, 20.0, 50.0, 80.0):
                yield record("rtt", method, rtt_ms=rtt_ms, **common)


def parsed(*records: Mapping[str, Any]) -> list[Record]:
    """As they are read from files."""
    return [parse(each) for each in records]


def write(folder: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """A folder as a measurement leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate(records):
        (folder / f"{number:04}.json").write_text(json.dumps(each), encoding="utf-8")
