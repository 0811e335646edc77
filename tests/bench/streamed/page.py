"""Figures for docs/results/lime.md, between its markers."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.page import ROOT, filled, machine, table
from bench.streamed.cases import GROWING, LONG_PROMPT, MODELS, ROOMS, SETTINGS
from bench.streamed.measure import DISK_MB_S
from bench.streamed.methods import METHODS
from bench.streamed.plots import draw
from bench.streamed.records import Record, Records, Row, token_s

OURS = "lime"
HEADLINE: tuple[Row, ...] = (("70b", "over", 1, 100.0), ("70b", "over", 5, 100.0))
DRAFTED = ROOT / "docs" / "results" / "lime-drafted-records.jsonl"
"""Where ``python -m bench.streamed.drafted`` leaves its records."""


def shown(records: Sequence[Record]) -> str:
    """Milliseconds a token, with the spread; why there are none."""
    if not records:
        return "–"
    ran = [record for record in records if not record["refused"]]
    if not ran:
        return _refusal(records[0]["refused"])
    found = [record["token_s"] * 1e3 for record in ran]
    spread = f" ({min(found):.0f} … {max(found):.0f})" if len(found) > 1 else ""
    other = " (its tokens differ)" if METHODS[ran[0]["method"]].planner is None else " **wrong tokens**"
    return f"{statistics.median(found):.0f}{spread}{'' if all(each['equal'] for each in ran) else other}"


def _refusal(why: str) -> str:
    if why.startswith("out of time"):
        return "out of time"
    return "out of memory" if "does not fit" in why else "failed"


def times_of(records: Records, row: Row) -> dict[str, float]:
    """Seconds a token of each method that runs."""
    found = {method: token_s(records.of(row, method)) for method in METHODS}
    return {method: seconds for method, seconds in found.items() if seconds is not None}


def gain(times: dict[str, float]) -> str:
    """How many times as long the best other method takes that reads plain weights, as ours here, and which it is."""
    others = {name: seconds for name, seconds in times.items() if not (METHODS[name].ours or METHODS[name].coded)}
    if OURS not in times:
        return "–"
    if not others:
        return "no other runs"
    best = min(others, key=lambda method: others[method])
    return f"{others[best] / times[OURS]:.2f} ({METHODS[best].title})"


def named(row: Row) -> list[str]:
    """Model, memory, traffic, bandwidth."""
    model, setting, sessions, mbit = row
    return [MODELS[model].title, SETTINGS[setting].title, traffic(sessions), f"{mbit:g}"]


def traffic(sessions: int) -> str:
    """The paper's word."""
    return "sporadic" if sessions == 1 else "bursty"


def headline(records: Records) -> str:
    """All methods where weights are more than memory, fastest first; how many times as long as ours."""
    lines = []
    for method in METHODS:
        of = [records.of(row, method) for row in HEADLINE]
        cells = []
        for row, found in zip(HEADLINE, of, strict=True):
            ours, seconds = token_s(records.of(row, OURS)), token_s(found)
            cells += [shown(found), f"{seconds / ours:.2f}" if ours and seconds else ""]
        if any(of):
            lines.append([METHODS[method].title, *cells])
    return table("method | sporadic | : ours | bursty | : ours", lines)


def results(records: Records) -> str:
    """Milliseconds a token of each method."""
    methods = [method for method in METHODS if any(records.of(row, method) for row in records.rows())]
    methods = [method for method in methods if METHODS[method].planner is not None and method != "one-unit-rings"]
    head = [
        "model", "memory", "traffic", "Mb/s", *(METHODS[method].title for method in methods), "best other : ours",
    ]  # fmt: skip
    lines = []
    for row in records.rows():
        cells = [shown(records.of(row, method)) for method in methods]
        lines.append([*named(row), *cells, gain(times_of(records, row))])
    return table(head, lines)


def predictions(records: Records) -> str:
    """What LIME's steps were said to take, and took; the least they could; what was hidden."""
    head = (
        "model | memory | traffic | Mb/s | read a step, MB | planned, ms | measured, ms | bound : measured | "
        "hidden, planned | hidden, of each device"
    )
    lines = []
    for row in records.rows():
        found = [record for record in records.of(row, OURS) if not record["refused"]]
        if not found:
            continue
        planned, bound, hidden = (
            statistics.median(r[key] for r in found) for key in ("predicted_s", "bound_s", "planned_hidden")
        )
        took = statistics.median(r["token_s"] for r in found) * row[2]
        shares = ", ".join(f"{share:.2f}" for share in found[0]["hidden"]) or "nothing is read"
        times = [f"{planned * 1e3:.0f}", f"{took * 1e3:.0f}", f"{bound / took:.2f}"]
        lines.append([*named(row), f"{sum(found[0]['streamed']) / 1e6:.0f}", *times, f"{hidden:.2f}", shares])
    return table(head, lines)


def memory(records: Records) -> str:
    """The most that any device's process had, beside its limit, by method."""
    lines = []
    for method, of in METHODS.items():
        found = [r for r in records.found if r["method"] == method and not r["refused"] and r.get("peaks")]
        shares = [peak / limit for r in found for peak, limit in zip(r["peaks"], r["limits"], strict=True)]
        if shares:
            lines.append([of.title, f"{len(found)}", f"{max(shares):.2f}", f"{statistics.median(shares):.2f}"])
    return table("method | runs | most, of the limit | median", lines)


def rooms(records: Records) -> str:
    """Where sessions may grow to so many positions."""
    row = ("70b", "S1", 1, 100.0)
    methods = (OURS, "lime-reserved", "offloaded")
    lines = []
    for room in (0, *ROOMS):
        of = {method: records.of(row, method, room=room) for method in methods}
        times = {method: seconds for method in methods if (seconds := token_s(of[method])) is not None}
        read = next((f"{sum(r['streamed']) / 1e6:.0f}" for r in of[OURS] if not r["refused"]), "")
        label = f"{room}" if room else "28"
        if any(of.values()):
            lines.append([label, read, *(shown(of[method]) for method in methods), gain(times)])
    return (
        "*Not measured yet.*"
        if not lines
        else table(
            "positions | lime reads a step, MB | lime | room kept, no planner | pipeline + offloading | : ours", lines
        )
    )


def growing(records: Records) -> str:
    """Where more sessions come than was planned for."""
    row, lines = ("70b", "S3", 5, 100.0), []
    special = {"room": ROOMS[0], "planned": 1, "prompt": LONG_PROMPT}
    ours = token_s(records.of(row, OURS, **special))
    for method in (*GROWING, "offloaded"):
        found = records.of(row, method, **special)
        seconds = token_s(found)
        if found:
            lines.append([METHODS[method].title, shown(found), f"{seconds / ours:.2f}" if ours and seconds else ""])
    return table("method | ms a token | : ours", lines) if lines else "*Not measured yet.*"


def varied(records: Records) -> str:
    """Where bandwidths were drawn while tokens came."""
    row = HEADLINE[1]
    lines = []
    for method in (OURS, "offloaded"):
        steady, found = token_s(records.of(row, method)), records.of(row, method, vary=True)
        if found:
            lines.append([METHODS[method].title, f"{steady * 1e3:.0f}" if steady else "–", shown(found)])
    return table("method | 100 Mb/s | 50 to 250 Mb/s", lines)


def drafted(file: Path = DRAFTED) -> str:
    """With drafts and without, of another bench's records; none where it has not run."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    found: dict[tuple[str, str, int], dict[str, list[float]]] = {}
    wrong = 0
    for record in map(json.loads, lines):
        sessions = record["sessions"]
        seconds = record["token_s"] if sessions == 1 else 1 / record["tokens_a_second"]
        of = found.setdefault((record["mode"], record["kind"], sessions), {})
        of.setdefault("none" if record["draft"] == "none" else "default", []).append(seconds * 1e3)
        wrong += record["wrong"]
    rows = [
        [f"`{mode}`", kind, f"{sessions}", spread(of["none"]), spread(of["default"]), f"{ratio_of(of):.1f}"]
        for (mode, kind, sessions), of in sorted(found.items())
        if len(of) == 2
    ]
    said = table("mode | prompts | sessions | no drafts, ms a token | by default, ms a token | times as fast", rows)
    return f"{said}\n\n{wrong} tokens of {len(lines)} runs are not transformers'." if rows else "*Not measured here.*"


def spread(found: Sequence[float]) -> str:
    """The median, least and most."""
    return f"{statistics.median(found):.0f} ({min(found):.0f} … {max(found):.0f})"


def ratio_of(found: Mapping[str, Sequence[float]]) -> float:
    """Without drafts over with them."""
    return statistics.median(found["none"]) / statistics.median(found["default"])


def counted(records: Records) -> str:
    """How many runs, and whether all tokens are transformers'."""
    of_groups = [record for record in records.found if METHODS[record["method"]].planner is not None]
    ran = [record for record in of_groups if not record["refused"]]
    tokens = sum(len(each) for record in ran for each in record["tokens"])
    wrong = sum(not record["equal"] for record in ran)
    return (
        f"{len(records.found)} runs, of which {len(of_groups) - len(ran)} were refused by a planner; {tokens} tokens "
        f"of groups, {'all' if not wrong else f'but for {wrong} runs all'} equal to transformers'. "
        f"Measured on {machine()}; disks of {DISK_MB_S:g} MB/s."
    )


MAKERS: Mapping[str, Callable[[Records], str]] = {
    "headline": headline,
    "results": results,
    "predictions": predictions,
    "memory": memory,
    "rooms": rooms,
    "varied": varied,
    "growing": growing,
    "counted": counted,
    "drafted": lambda records: drafted(),
}


def fill(records: Records, page: Path) -> None:
    """Put all figures into the page, and draw its pictures beside it."""
    text = page.read_text(encoding="utf-8")
    page.write_text(filled(text, lambda name: MAKERS[name](records) if name in MAKERS else None), encoding="utf-8")
    draw(records, page.parent / "lime")
