"""Tables of records for docs/results/lime.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.page import filled, machine, table
from bench.streamed.cases import MODELS, SETTINGS, Cell
from bench.streamed.measure import DISK_MB_S
from bench.streamed.methods import METHODS

OURS = "lime"

Record = dict[str, Any]


class Records:
    """What was measured, by cell."""

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.glob("*.json"))
        self.found: list[Record] = [json.loads(file.read_text(encoding="utf-8")) for file in files]

    def of(self, model: str, setting: str, method: str, sessions: int, mbit: float) -> list[Record]:
        """All repeats."""
        wanted = (model, setting, method, sessions, mbit)
        keys = ("model", "setting", "method", "sessions", "mbit")
        return [record for record in self.found if tuple(record[key] for key in keys) == wanted]

    def rows(self) -> list[tuple[str, str, int, float]]:
        """Model, setting, sessions and bandwidth of all that was measured, in the order of planning."""
        seen = {(r["model"], r["setting"], r["sessions"], r["mbit"]) for r in self.found}
        order = list(SETTINGS)[::-1]
        return sorted(seen, key=lambda row: (row[3], list(MODELS).index(row[0]), order.index(row[1]), row[2]))


def token_s(records: Iterable[Record]) -> float | None:
    """The median of seconds a token; None where it was not measured or does not run."""
    found = [record["token_s"] for record in records if not record["refused"]]
    return statistics.median(found) if found else None


def shown(records: Sequence[Record]) -> str:
    """Milliseconds a token, with the spread; why there are none."""
    if not records:
        return "–"
    found = [record["token_s"] * 1e3 for record in records if not record["refused"]]
    if not found:
        return "out of time" if "said nothing" in records[0]["refused"] else "out of memory"
    spread = f" ({min(found):.0f} … {max(found):.0f})" if len(found) > 1 else ""
    wrong = "" if all(record["equal"] for record in records if not record["refused"]) else " **wrong tokens**"
    return f"{statistics.median(found):.0f}{spread}{wrong}"


def results(records: Records) -> str:
    """Milliseconds a token of each method."""
    head = ["model", "memory", "traffic", "Mb/s", *(title for title, _ in METHODS.values()), "best other : ours"]
    lines = []
    for model, setting, sessions, mbit in records.rows():
        of = {method: records.of(model, setting, method, sessions, mbit) for method in METHODS}
        times = {method: token_s(found) for method, found in of.items()}
        others = [seconds for method, seconds in times.items() if seconds is not None and not method.startswith(OURS)]
        ours = times[OURS]
        gain = f"{min(others) / ours:.2f}" if others and ours else "no other runs" if ours else "–"
        words = [MODELS[model].title, SETTINGS[setting].title, traffic(sessions), f"{mbit:g}"]
        lines.append([*words, *(shown(found) for found in of.values()), gain])
    return table(head, lines)


def traffic(sessions: int) -> str:
    """The paper's word."""
    return "sporadic" if sessions == 1 else "bursty"


def predictions(records: Records) -> str:
    """What a step was said to take, and took; and what was read for it."""
    head = (
        "model | memory | traffic | Mb/s | method | read a step, MB | planned, ms | measured, ms | measured : planned"
    )
    lines = []
    for model, setting, sessions, mbit in records.rows():
        for method, (title, _) in METHODS.items():
            found = [r for r in records.of(model, setting, method, sessions, mbit) if not r["refused"]]
            if found:
                planned = statistics.median(r["predicted_s"] for r in found)
                took = statistics.median(r["generated_s"] / r["new"] for r in found)
                words = [MODELS[model].title, SETTINGS[setting].title, traffic(sessions), f"{mbit:g}", title]
                times = [f"{planned * 1e3:.0f}", f"{took * 1e3:.0f}", f"{took / planned:.2f}"]
                lines.append([*words, f"{sum(found[0]['streamed']) / 1e6:.0f}", *times])
    return table(head, lines)


def counted(records: Records) -> str:
    """How many runs, and whether all tokens are transformers'."""
    ran = [record for record in records.found if not record["refused"]]
    tokens = sum(len(each) for record in ran for each in record["tokens"])
    wrong = sum(not record["equal"] for record in ran)
    return (
        f"{len(records.found)} runs, {len(records.found) - len(ran)} of which could not be; {tokens} tokens, "
        f"{'all' if not wrong else f'but for {wrong} runs all'} equal to transformers'. "
        f"Measured on {machine()}; disks of {DISK_MB_S:g} MB/s."
    )


def fill(records: Records, page: Path) -> None:
    """Put all figures into the page."""
    makers = {"results": results, "predictions": predictions, "counted": counted}
    text = page.read_text(encoding="utf-8")
    page.write_text(filled(text, lambda name: makers[name](records) if name in makers else None), encoding="utf-8")


def missing(cells: Iterable[Cell], folder: Path) -> list[Cell]:
    """Those without a record."""
    return [cell for cell in cells if not (folder / f"{cell.name}.json").is_file()]
