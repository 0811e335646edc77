"""Tables of what is tried by seeds and for long: chaos, frames, the soak, and mendings that are taken out."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bench.page import table

Records = Sequence[Mapping[str, Any]]


def chaos_table(records: Records) -> str | None:
    """The last try of each seed, by site."""
    seeds = {each["seed"]: each for each in records}
    if not seeds:
        return None
    rows = []
    sites = list(dict.fromkeys(each["site"] for each in seeds.values()))
    for site in [*sites, "all"]:
        found = [each for each in seeds.values() if site in (each["site"], "all")]
        sums = [sum(each.get(name, 0) for each in found) for name in ("answers", "compared", "wrong", "lost", "ended")]
        mended = [each["mended_s"] for each in found if "mended_s" in each]
        failed = sum(bool(each["why"]) for each in found)
        took = f"{statistics.median(mended):.1f} ({max(mended):.1f})" if mended else ""
        rows.append([site, str(len(found)), f"**{failed}**", *map(str, sums), took])
    kinds = Counter(kind for each in seeds.values() for kind in each["events"])
    head = (
        "site | seeds | failed | answers | tokens | wrong | lost | ended with an error | whole again, s: median (worst)"
    )
    minutes = sum(each["seconds"] for each in seeds.values()) / 60
    said = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"{len(seeds)} seeds, {minutes:.0f} minutes; {said}.\n\n{table(head, rows)}"


def frames_table(records: Records) -> str | None:
    """All runs, by listener."""
    listeners = list(dict.fromkeys(each["listener"] for each in records))
    rows = []
    for name in listeners:
        found = [each for each in records if each["listener"] == name]
        last = found[-1]
        sums = [sum(each[what] for each in found) for what in ("frames", "batches", "normal")]
        grown = f"{last['memory_mb'][0]:.0f} → {last['memory_mb'][1]:.0f}"
        rows.append([name, *map(str, sums), grown, f"{last['files'][0]} → {last['files'][1]}", last["why"] or "held"])
    total = sum(each["frames"] for each in records)
    head = "listener | frames | connections | normal requests between | memory, MB | open files | ended"
    return f"{total} frames.\n\n{table(head, rows)}" if rows else None


def soak_table(records: Records) -> str | None:
    """The longest soak."""
    if not records:
        return None
    soak = max(records, key=lambda each: each["minutes"])
    rows = [
        [name, f"{of['level_mb']:.0f}", f"{of['slope_mb']:+.2f}", f"{of['files'][0]} → {of['files'][1]}"]
        for name, of in soak["processes"].items()
    ]
    said = ", ".join(f"{count} {what}" for what, count in soak["counts"].items())
    head = "process | memory in the second half, MB | its growth, MB a minute | open files"
    return f"{soak['minutes']:.1f} minutes: {said}.\n\n{table(head, rows)}"


def mendings_table(records: Records) -> str | None:
    """The last try of each mending that was taken out."""
    latest = {(each["row"], each["file"]): each for each in records}
    rows = [
        [each["row"], each["what"], f"`{each['file']}`", f"`{each['test']}`", "yes" if each["failed"] else "**no**"]
        for each in latest.values()
    ]
    return table("row | the mending | taken out of | the test | fails without it", rows) if rows else None
