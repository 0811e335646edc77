"""What is measured for Galaxy+'s evaluation, and what its links stand for.

make bench-galaxy             # what has no record yet, and then the page
make bench-galaxy ARGS=--quick
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from bench.edge import kills, straggler
from bench.edge.cells import ENVIRONMENTS, REPEATS, Cell
from bench.edge.methods import METHODS
from bench.edge.records import Records
from bench.edge.run import Apart, run
from bench.edge.shapes import SHAPES as SHAPES_BY_NAME
from bench.edge.tables import depth, generation, predictions, products, runs, shown, where
from bench.page import table

from device_agent.planning.task import Task

SHAPES = ("distilbert", "bert-l", "vit-huge", "t5-large", "gpt2-large", "opt-1.3b")

Row = tuple[float, float, float, float]
"""How many times as long M-LM, SP, EdgeShard and Galaxy take as Galaxy+; infinite where memory is short."""

OOM = float("inf")
PAPER: dict[str, dict[str, Row]] = {
    "distilbert": {"A": (1.34, 1.20, 2.31, 1.19), "B": (3.91, 3.54, 4.01, 1.41)},
    "bert-l": {"A": (1.82, 1.34, 3.55, 1.20), "B": (3.52, OOM, 3.55, 1.28)},
    "vit-huge": {"A": (1.25, OOM, 2.21, 1.15), "B": (2.91, OOM, 2.58, 1.20)},
    "t5-large": {"A": (1.64, OOM, 3.21, 1.16), "B": (3.97, OOM, 3.75, 1.14)},
    "gpt2-large": {"A": (1.42, OOM, 2.97, 1.12), "B": (3.41, OOM, 3.59, 1.16)},
    "opt-1.3b": {"A": (1.41, OOM, 3.60, 1.00), "B": (OOM, OOM, 4.24, 1.09)},
}
"""At 500 Mb/s."""

BASELINES = ("tensor", "sequence", "edgeshard", "galaxy")
OURS = ("galaxy-plus", "joint")
MORE = ("tensor-by-speed",)
BANDWIDTHS = (125.0, 250.0, 1000.0)
SCALED_ROWS = 96


def port_mb_s(shape: str, task: Task, local_s: float) -> float:
    """MB/s of every port that stand for 500 Mb/s: those at which Megatron's two all-reduces a layer take as long as in
    the paper's environment A. There they are what it takes more than a quarter of EdgeShard, which is one device."""
    megatron, _, edgeshard, _ = PAPER[shape]["A"]
    reduces_s = (megatron / edgeshard - 1 / 4) * local_s
    moved = 2 * 2 * (3 / 4) * task.work.rows * task.shape.row_bytes * task.shape.layers
    return moved / reduces_s / 1e6


def cells(quick: bool) -> Iterator[Cell]:
    """All, the most wanted first."""
    runs = 1 if quick else 3
    first = ("bert-l", "gpt2-large")
    rounds = product(range(1 if quick else REPEATS), first if quick else dict.fromkeys([*first, *SHAPES]), ("A", "B"))
    for repeat, shape, environment in rounds:
        local = Cell(environment, shape, "local", 1, 0.0, runs=runs, repeat=repeat)
        yield local
        yield local.calibration(4)
        for method in (*OURS, *BASELINES, *(MORE if environment == "B" else ())):
            yield Cell(environment, shape, method, 4, runs=runs, repeat=repeat)
    if quick:
        return
    for shape in SHAPES:
        for environment in ("A", "B"):
            for mbit in BANDWIDTHS:
                for method in ("joint", *BASELINES):
                    yield Cell(environment, shape, method, 4, mbit)
    for shape in ("gpt2-large", "opt-1.3b"):
        yield Cell("A", shape, "local", 1, 0.0, rows=SCALED_ROWS)
        yield Cell("A", shape, "local", 1, 0.0, rows=4 * SCALED_ROWS)
        for devices in (2, 3, 4):
            yield Cell("A", shape, "joint", devices, 1000.0, rows=SCALED_ROWS * devices)
            if devices < 4:
                yield Cell("A", shape, "joint", devices, 1000.0, rows=4 * SCALED_ROWS)
    yield Cell("A", "bert-l", "joint", 4, layers=24)
    for method in ("tensor", "joint"):
        yield Cell("A", "gpt2-large", method, 4, new=16)


def beside(records: Records, cell: Cell, ours: Cell) -> str:
    """How many times as long a cell takes as ours."""
    ratio = records.ratio(cell, ours)
    return records.marked(cell, "–" if ratio is None else f"{ratio:.2f}{records.spread(cell, ours)}")


def headline(records: Records) -> str:
    """Each method's time over Trilby's, and in brackets the paper's over Galaxy+'s."""
    rows = []
    for shape in SHAPES:
        for environment, row in PAPER[shape].items():
            ours = Cell(environment, shape, "joint", 4)
            said = [
                f"{beside(records, Cell(environment, shape, method, 4), ours)} ({'OOM' if paper == OOM else paper})"
                for method, paper in zip(BASELINES, row, strict=True)
            ]
            took = records.seconds(ours)
            rows.append(
                [
                    SHAPES_BY_NAME[shape].title,
                    environment,
                    records.marked(ours, f"{took or 0:.2f} ({records.value(ours, 'predicted_full_s'):.2f})"),
                    *said,
                    beside(records, Cell(environment, shape, "tensor-by-speed", 4), ours) if environment == "B" else "",
                    beside(records, Cell(environment, shape, "galaxy-plus", 4), ours),
                    verdict(records, environment, shape),
                ]
            )
    head = ["", "env.", "**Trilby**, s (predicted)", "M-LM", "SP", "EdgeShard", "Galaxy"]
    return table([*head, "M-LM by speed", "Galaxy+ (Alg. 1)", "the paper's row"], rows)


def verdict(records: Records, environment: str, shape: str) -> str:
    """Whether Trilby leaves every baseline as far behind as Galaxy+ does in the paper."""
    ours, row = Cell(environment, shape, "joint", 4), PAPER[shape][environment]
    cells = [Cell(environment, shape, method, 4) for method in BASELINES]
    known = [(cell, records.ratio(cell, ours), paper) for cell, paper in zip(cells, row, strict=True) if paper != OOM]
    if any(ratio is None for _, ratio, _ in known):
        return "not measured" if records.seconds(ours) is None else "not all measured"
    if doubts := records.doubts(ours):
        return f"in doubt: {', '.join(doubts)}"
    doubtful = [METHODS[cell.method][0] for cell, _, _ in known if records.doubts(cell)]
    sure = [(cell, ratio, paper) for cell, ratio, paper in known if not records.doubts(cell)]
    short = [METHODS[cell.method][0] for cell, ratio, paper in sure if ratio is not None and ratio < paper]
    said = [f"**missed**: {', '.join(short)}"] * bool(short) + [f"in doubt: {', '.join(doubtful)}"] * bool(doubtful)
    return "; ".join(said) or "**met**"


def alone(records: Records) -> str:
    """Against the fastest device alone, whatever its memory: over 1 a group is slower."""
    rows = []
    for shape in SHAPES:
        for environment in PAPER[shape]:
            cells = [Cell(environment, shape, method, 4) for method in ("joint", *BASELINES)]
            ratios = [records.ratio(cell, cell.local()) for cell in cells]
            found = [
                records.marked(cell, "–" if ratio is None else f"{ratio:.2f}{records.slower(cell)}")
                for cell, ratio in zip(cells, ratios, strict=True)
            ]
            rows.append([SHAPES_BY_NAME[shape].title, environment, *found])
    return shown(["", "env.", "**Trilby**", "M-LM", "SP", "EdgeShard", "Galaxy"], rows, 2)


def bandwidths(records: Records) -> str:
    """Each method's time over Trilby's at the same bandwidth, where it fits at all."""
    rows, all_of_them = [], sorted((*BANDWIDTHS, 500.0))
    for shape in SHAPES:
        for environment in PAPER[shape]:
            for method in BASELINES:
                cells = [(Cell(environment, shape, method, 4, mbit), mbit) for mbit in all_of_them]
                found = [beside(records, cell, Cell(environment, shape, "joint", 4, mbit)) for cell, mbit in cells]
                if any(each not in ("does not fit", "–") for each in found):
                    rows.append([SHAPES_BY_NAME[shape].title, environment, METHODS[method][0], *found])
    return shown(["", "env.", "method", *(f"{mbit:g} Mb/s" for mbit in all_of_them)], rows, 3)


def scaling(records: Records) -> str:
    """Weak: 96 rows a device, the share of so many times one device's speed. Strong: 384 rows, over one device."""
    rows = []
    for shape, paper in (("gpt2-large", ("82 %", "2.9")), ("opt-1.3b", ("85 %", "3.12"))):
        for count in (2, 3, 4):
            weak = Cell("A", shape, "joint", count, 1000.0, rows=SCALED_ROWS * count)
            strong = Cell("A", shape, "joint", count, 1000.0, rows=4 * SCALED_ROWS)
            one = Cell("A", shape, "local", 1, 0.0, rows=SCALED_ROWS)
            share, faster = records.ratio(one, weak), records.ratio(strong.local(), strong)
            # Attention grows with the square of the rows: a device's work is its share of one device's for all rows.
            share = records.ratio(weak.local(), weak) if records.seconds(weak.local()) else share
            at = f"{count}" if count < 4 else f"4 (paper {paper[0]}, {paper[1]})"
            first = records.marked(weak, f"{100 * (share or 0) / count:.0f} %")
            rows.append([SHAPES_BY_NAME[shape].title, at, first, records.marked(strong, f"{faster or 0:.2f}")])
    return shown(["", "devices", "weak: of linear (goal 90 % at 4)", "strong: times as fast"], rows, 2)


def memory(records: Records) -> str:
    """Trilby's plans: what each device holds of its budget, and what was seen of it while a part of the layers ran."""
    rows = []
    for shape in SHAPES:
        for environment in PAPER[shape]:
            record = records.get(Cell(environment, shape, "joint", 4))
            if record is None or "refused" in record:
                continue
            budgets = ENVIRONMENTS[environment].budgets
            names = sorted(record["memory"])
            planned = " / ".join(f"{record['planned_bytes'][name] / 1e6:.0f}" for name in names)
            allowed = " / ".join(f"{each / 1e6:.0f}" for each in budgets)
            part = " / ".join(f"{record['planned_swept_bytes'][name] / 1e6:.0f}" for name in names)
            grown = " / ".join(f"{record['memory'][name]['grown_kb'] / 1e3:.0f}" for name in names)
            rows.append([SHAPES_BY_NAME[shape].title, environment, record["plan"], planned, allowed, part, grown])
    head = ["", "env.", "layers", "planned, MB", "budget, MB", "planned of the part run, MB", "measured, MB"]
    return shown(head, rows, 2)


def breakdown(records: Records) -> str:
    """Where a layer's time goes at 500 Mb/s, of the ways that share layers and fit everywhere."""
    methods = ("joint", "tensor")
    return where(
        records, [Cell(env, shape, method, 4) for shape in SHAPES for env in PAPER[shape] for method in methods]
    )


FIGURES = {
    "straggler": lambda records: straggler.shown(records.found.get("straggler", {})),
    "kills": lambda records: kills.shown(records.found.get("kills", {}).get("kills", [])),
    "headline": headline,
    "alone": alone,
    "bandwidths": bandwidths,
    "scaling": scaling,
    "memory": memory,
    "where": breakdown,
    "products": lambda records: products(
        records, [Cell(env, shape, "local", 1, 0.0) for shape in SHAPES for env in PAPER[shape]]
    ),
    "depth": depth,
    "generation": generation,
    "predictions": predictions,
    "runs": runs,
}

APART = (Apart("kills", 150.0, kills.write, short=True), Apart("straggler", 150.0, straggler.write, short=False))

if __name__ == "__main__":
    run("galaxy", str(__doc__), cells, port_mb_s, FIGURES, APART, 64_000)
