"""What EdgeFormer's page shows, of records alone, and the cells that it looks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

from bench import accuracy_pruned_page
from bench.edge import case, foreseen, handing, limited, scored, varied
from bench.edge.cells import ACCELERATE, ENVIRONMENTS, Cell
from bench.edge.methods import METHODS
from bench.edge.records import Records
from bench.edge.shapes import longer
from bench.edge.tables import NOTHING, depth, generation, predictions, products, runs, shown, where
from bench.page import table

PAPER = {
    "half-gpt2-l": (2.31, 1.92, 1.32, 1.15),
    "half-opt-1.3b": (3.68, 3.46, 2.62, 2.06),
    "half-opt-6.7b": (9.74, 8.89, 6.94, 4.98),
    "half-opt-13b": (10.27, 9.29, 7.26, 5.20),
}
"""Seconds of accelerate, DeepSpeed, Galaxy and EdgeFormer over all tasks (Table 2)."""

SHAPES, FIRST, SWEPT = tuple(PAPER), "half-gpt2-l", ("half-gpt2-l", "half-opt-1.3b")
MBIT, SLOW, FAST = 400.0, 200.0, 600.0
"""The paper's bandwidths; that of Table 2 is not said, and is taken to be the middle one."""

EXACT = ("pipeline", "tensor", "galaxy", "joint", "voltage")
"""All other exact modes of the group."""

LENDING = ("edgeformer-paper", "lending")
OURS, PRUNED = "edgeformer", "edgeformer-narrow"
COMPARED = (OURS, *LENDING, *EXACT)
JUDGED = (OURS, "galaxy", "joint", "voltage")
"""What the goal is judged by: measured in all rounds, since cores vary by a quarter from cell to cell."""

MIXED = (OURS, "joint", "tensor-by-speed", *LENDING)
USUAL_OUT, OUTS = 0.25, (0.25, 0.5, 1.0)
"""Of all heads: about what the paper leaves out; what is swept."""

GOAL = 0.95
SAME = 1.02
"""Times that differ by less are the same."""

TASKS = {"ReCoRD": 255, "BoolQ": 142, "MultiRC": 325, "WiC": 52}
"""Rows of the paper's tasks: GPT-2's tokens in the mean over their questions, as the harness words these."""

TASKED = (OURS, "galaxy")

CORNERS = tuple((rows, mbit) for rows in (64, 1024) for mbit in (40.0, 2000.0))
LENT = ("lend-attention", "lend-projections")


def of(shape: str, method: str, environment: str = "three", mbit: float = MBIT, **more: Any) -> Cell:
    """On all of its devices, or so many."""
    count = more.pop("devices", len(ENVIRONMENTS[environment].cores))
    return Cell(environment, shape, method, count, mbit, **more)


def accelerated(shape: str, **more: Any) -> Cell:
    """The library on one device."""
    return of(shape, ACCELERATE, mbit=0.0, devices=1, **more)


def faster(records: Records, cell: Cell, than: Cell | None = None) -> str:
    """How many times as fast a cell is as another, or as one device."""
    ratio = records.ratio(than or cell.local(), cell)
    return records.marked(cell, "–" if ratio is None else f"{ratio:.2f}")


def headline(records: Records) -> str:
    """Times as fast as one device, which accelerate's is; the paper's beside it."""
    rows = []
    for shape, (alone, _, galaxy, edgeformer) in PAPER.items():
        ours = of(shape, OURS)
        took = records.seconds(ours.local())
        said = [faster(records, of(shape, method)) for method in ("pipeline", "tensor", "galaxy", *LENDING)]
        more = faster(records, accelerated(shape)), faster(records, of(shape, PRUNED, out=USUAL_OUT))
        paper = f"{alone / galaxy:.2f}, {alone / edgeformer:.2f}"
        one = "–" if took is None else f"{took:.1f}"
        exact = "not measured" if records.get(ours) is None else f"**{faster(records, ours)}**"
        rows.append([longer(shape, 0).title, one, paper, *said, exact, more[1], more[0]])
    head = ["", "one device, s", "paper: Galaxy, EdgeFormer", "pipeline", "tensor par.", "Galaxy"]
    head += ["EdgeFormer as published, exact", "best lent", "**Trilby, exact**", "25 % of heads out", "accelerate"]
    return table(head, rows)


def choices(records: Records) -> str:
    """What each choice brings, times as fast as with those before it; their product is what all bring."""
    rows = []
    for shape, (alone, _, _, edgeformer) in PAPER.items():
        local, published, lent, ours = of(shape, OURS).local(), *(of(shape, method) for method in (*LENDING, OURS))
        ways = [local, published, lent, ours, of(shape, PRUNED, out=USUAL_OUT)]
        found = [faster(records, cell, before) for before, cell in pairwise(ways)]
        more = faster(records, local, accelerated(shape)), faster(records, ways[-1], accelerated(shape))
        rows.append([longer(shape, 0).title, more[0], *found, more[1], f"{alone / edgeformer:.2f}"])
    head = ["", "our products, beside accelerate's", "blocks and lent attention, as published"]
    head += ["projections and columns lent", "other exact forms, tried", "25 % of heads out", "all", "the paper's"]
    return shown(head, [[*row[:-1], row[-1] if row[-2] != "–" else ""] for row in rows], 1)


def tasks(records: Records) -> str:
    """Times as fast as one device at the lengths of the paper's tasks."""
    rows = []
    for shape, method in product(SWEPT, TASKED):
        found = [faster(records, of(shape, method, rows=count)) for count in TASKS.values()]
        rows.append([longer(shape, 0).title, METHODS[method][0], *found])
    return shown(["", "method", *(f"{name}, {count} rows" for name, count in TASKS.items())], rows, 2)


def goals(records: Records) -> str:
    """Of the exact plan: its bound, and the best other way."""
    rows = []
    for shape in SHAPES:
        ours = of(shape, OURS)
        took = records.seconds(ours)
        if took is None:
            rows.append([longer(shape, 0).title, "–", "–", "–", "not measured"])
            continue
        share = records.foreseen(ours)
        others = [ours.local(), *(of(shape, method) for method in (*EXACT, *LENDING))]
        known = {
            METHODS[cell.method][0]: None if records.doubts(cell) else records.ratio(ours, cell) for cell in others
        }
        best, ratio = max(((name, each) for name, each in known.items() if each is not None), key=lambda each: each[1])
        plan = str(records.found[ours.name]["plan"])
        said = verdict(records.doubts(ours), share, best, ratio) + " (not all measured, or in doubt)" * (
            None in known.values()
        )
        rows.append([longer(shape, 0).title, plan, f"{share:.2f}", f"{best}, {ratio:.2f}", said])
    return table(["", "layers", "of the plan's bound", "beside the best other", "goal"], rows)


def verdict(doubts: Sequence[str], share: float, best: str, ratio: float) -> str:
    """Of the goal: so near its bound, and not slower than the best other way, beside which it takes so long."""
    if doubts:
        return f"in doubt: {', '.join(doubts)}"
    short = [f"{share:.2f} of its bound"] * (share < GOAL) + [f"slower than {best}"] * (ratio > SAME)
    return f"**missed**: {', '.join(short)}" if short else "**met**"


def mixed(records: Records) -> str:
    """20 : 13 : 7: what lends to whom, and how fast it is beside the first device."""
    rows = []
    for shape in SWEPT:
        for method in MIXED:
            cell = of(shape, method, "20-13-7")
            heads = (records.get(cell) or {}).get("heads") or [[]]
            whole = max(sum(map(sum, heads)), 1)
            share = " / ".join(f"{sum(each) / whole:.0%}" for each in zip(*heads, strict=False))
            if records.get(cell):
                rows.append([longer(shape, 0).title, METHODS[method][0], faster(records, cell), share or "by rows"])
    return shown(["", "method", "times as fast as the first device", "heads by device"], rows, 2)


def devices(records: Records) -> str:
    """OPT-1.3B on more and more equal devices."""
    rows = []
    for method in (OURS, "lending"):
        cells = [of("half-opt-1.3b", method, f"equal-{count}") for count in range(2, 7)]
        rows.append([METHODS[method][0], *(faster(records, cell) for cell in cells)])
    return shown(["", *(f"{count} devices" for count in range(2, 7))], rows, 1)


def bandwidths(records: Records) -> str:
    """Times as fast as one device."""
    rows = []
    for shape in SWEPT:
        for method in (OURS, "joint", "galaxy", *LENDING):
            found = [faster(records, of(shape, method, mbit=mbit)) for mbit in (SLOW, MBIT, FAST)]
            rows.append([longer(shape, 0).title, METHODS[method][0], *found])
    return shown(["", "method", *(f"{mbit:g} Mb/s" for mbit in (SLOW, MBIT, FAST))], rows, 2)


def corners(records: Records) -> str:
    """What the second device brings the first, beside what the map says at the same link per compute."""
    rows = []
    for cell in (of(FIRST, method, mbit=mbit, rows=rows, devices=2) for rows, mbit in CORNERS for method in LENT):
        record, one = records.get(cell), records.seconds(cell.local())
        if record is None or one is None:
            continue
        ratio = record["mb_s"] * 1e6 / foreseen.operations_s(cell.model, one)
        said = foreseen.halves(cell.model, ratio)[cell.method]
        words = [f"{cell.rows}", f"{ratio:.1e}", METHODS[cell.method][0]]
        rows.append([*words, f"{said:.2f}", faster(records, cell)])
    return shown(["rows", "bytes per operation", "half of it lent", "nominal, times as fast", "measured"], rows, 3)


def pruned(records: Records) -> str:
    """Seconds by the share of heads that is left out: what a limit of time must be for it."""
    rows = []
    for shape in SWEPT:
        for whole in (of(shape, OURS).local(), of(shape, PRUNED)):
            took, shares = records.seconds(whole), []
            for cell in (replace(whole, out=out) for out in OUTS):
                ratio = records.ratio(cell, whole)
                shares.append(records.marked(cell, "–" if ratio is None else f"{ratio:.2f}"))
            method = METHODS[whole.method][0]
            rows.append([longer(shape, 0).title, method, f"{took:.2f}" if took else "–", *shares])
    return shown(["", "", "all heads, s", *(f"{out:.0%} out, of that" for out in OUTS)], rows, 2)


def ablation(records: Records) -> str:
    """Table 3, OPT-1.3B: times as fast as without both."""
    shape = "half-opt-1.3b"
    without = of(shape, "pipeline")
    ways = {
        "full: the fastest form that leaves heads out, 25 % out": of(shape, PRUNED, out=USUAL_OUT),
        "without pruning": of(shape, OURS),
        "without scheduling: even blocks, 25 % out": of(shape, "pipeline", out=USUAL_OUT),
        "without both: even blocks": without,
    }
    paper = (9.5 / 2.8, 9.5 / 3.8, 9.5 / 4.4, 1.0)
    pairs = zip(ways.items(), paper, strict=True)
    rows = [[name, faster(records, cell, without), f"{said:.2f}"] for (name, cell), said in pairs]
    known = [row for row in rows if row[1] != "–"]
    return table(["", "times as fast", "paper, ReCoRD"], known) if known else NOTHING


def breakdown(records: Records) -> str:
    """Where a layer's time goes."""
    return where(records, [of(shape, method) for shape in SWEPT for method in (OURS, *LENDING, "joint", "tensor")])


def overhead(records: Records) -> str:
    """Memory by device, what travels, and how long the plan took."""
    rows = []
    for shape in SHAPES:
        record = records.get(of(shape, OURS))
        if record is None or "refused" in record:
            continue
        names = sorted(record["memory"])
        planned = " / ".join(f"{record['planned_swept_bytes'][name] / 1e6:.0f}" for name in names)
        grown = " / ".join(f"{record['memory'][name]['grown_kb'] / 1e3:.0f}" for name in names)
        moved = " / ".join(f"{record['bytes_a_layer'][name] / 1e3:.0f}" for name in names)
        once, took = record["planned_s"], record["full_s"]
        rows.append([longer(shape, 0).title, planned, grown, moved, f"{once:.2f} ({once / took:.0%} of one prompt)"])
    head = ["", "planned of the part run, MB", "measured, MB", "sent a layer, kB", "planning, once a life, s"]
    return shown(head, rows, 1)


FIGURES = {
    "headline": headline,
    "choices": choices,
    "tasks": tasks,
    "goals": goals,
    "runs": runs,
    "predictions": predictions,
    "map": lambda records: foreseen.lent_where(FIRST),
    "corners": corners,
    "mixed": mixed,
    "devices": devices,
    "bandwidths": bandwidths,
    "changes": lambda records: varied.shown(records.found),
    "handing": lambda records: handing.shown(records.found.get("handing", {})),
    "pruned": pruned,
    "ablation": ablation,
    "limits": lambda records: limited.shown(records.found.get("limited", {})),
    "accuracy": lambda records: accuracy_pruned_page.shown(records.found),
    "equal": lambda records: accuracy_pruned_page.at_equal_time(records.found),
    "case": lambda records: case.shown(records.found.get("case", {})),
    "scores": lambda records: scored.shown(records.found.get("scored", {})),
    "weights": lambda records: foreseen.by_weight("half-opt-1.3b"),
    "where": breakdown,
    "overhead": overhead,
    "generation": generation,
    "depth": depth,
    "products": lambda records: products(records, [of(shape, OURS).local() for shape in SHAPES]),
}
