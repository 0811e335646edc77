"""Tables that both benches show, of records alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bench.edge.cells import ALONE, CALIBRATION, ENVIRONMENTS, Cell
from bench.edge.methods import METHODS
from bench.edge.records import Records
from bench.edge.shapes import SHAPES
from bench.page import table

NOTHING = "*Not measured yet.*"


def shown(head: Sequence[str], rows: Iterable[Sequence[str]], labels: int) -> str:
    """A table of the rows in which something was measured, besides so many labels; a line where there is none."""
    known = [row for row in rows if any(each not in ("–", "") for each in row[labels:])]
    return table(head, known) if known else NOTHING


def cells_of(records: Records) -> Iterator[Cell]:
    """Of all records, by name; not of one that was measured when its cell was another."""
    for name, record in sorted(records.found.items()):
        if "cell" in record and (cell := Cell(**record["cell"])).name == name:
            yield cell


def title(cell: Cell) -> str:
    """What was run, in a table's first column."""
    more = [f"{cell.rows} rows"] * bool(cell.rows) + [f"{cell.layers} layers"] * bool(cell.layers)
    more += [f"{cell.out:.0%} of heads out"] * bool(cell.out)
    more += [cell.dtype] * (cell.dtype != "float32") + [f"{cell.new} new"] * bool(cell.new)
    return ", ".join([SHAPES[cell.shape].title, *more])


def where(records: Records, cells: Iterable[Cell]) -> str:
    """Where a layer's time goes, and what was predicted."""
    head = ["", "devices", "Mb/s", "method", "layer, ms", "computes", "waits", "bytes take", "ends, ms", "periods"]
    rows = []
    for cell in cells:
        record = records.get(cell)
        if record is None or "refused" in record:
            continue
        layer = record["layers_s"] / cell.depth
        link = max(record["bytes_a_layer"].values(), default=0) / record["mb_s"] / 1e6 if record["mb_s"] else 0.0
        times = [layer, record["compute_s"], record["wait_s"], link, record["ends_s"]]
        words = [title(cell), f"{cell.environment} {cell.devices}", f"{cell.mbit:g}", METHODS[cell.method][0]]
        rows.append([*words, *(f"{each * 1e3:.0f}" for each in times), f"{record['periods']:.1f}"])
    return shown(head, rows, 4)


def predictions(records: Records) -> str:
    """How far measurements are from what planners said before."""
    found = []
    for cell in cells_of(records):
        record = records.get(cell)
        planned = cell.method not in (*ALONE, CALIBRATION) and not cell.out
        if record and "refused" not in record and planned and not records.doubts_of(cell):
            found.append((record["full_s"] / record["predicted_full_s"], cell))
    if not found:
        return "No row is a result yet."
    near = sum(abs(ratio - 1) <= 0.1 for ratio, _ in found)
    low, high = min(found, key=lambda each: each[0]), max(found, key=lambda each: each[0])
    ends = " to ".join(f"{ratio:.2f} ({title(cell)}, {METHODS[cell.method][0]})" for ratio, cell in (low, high))
    return f"{near} of {len(found)} rows are within 10 % of what was predicted; measured : predicted is {ends}."


def runs(records: Records) -> str:
    """What was measured, on what, and how much of it is no result."""
    done = [cell for cell in cells_of(records) if "refused" not in (records.get(cell) or {})]
    if not done:
        return "Nothing was measured yet."
    machines = sorted({str(records.found[cell.name]["machine"]) for cell in done})
    doubtful = [doubt for cell in done for doubt in records.doubts_of(cell)[:1]]
    text = f"{len(done)} cells on {'; '.join(machines)}. {len(doubtful)} of them are no results"
    kinds = sorted({doubt.split(" ")[0] if doubt[0].isalpha() else "short work" for doubt in doubtful})
    return f"{text}{' (' + ', '.join(kinds) + ')' if kinds else ''}."


def products(records: Records, cells: Sequence[Cell]) -> str:
    """One device's speed in this run, and the links that were made of it."""
    rows = []
    for cell in cells:
        record = records.get(cell)
        if record is None:
            continue
        alike = [each for each in cells_of(records) if each.shape == cell.shape and each.mbit]
        others = [each for each in alike if each.environment == cell.environment]
        mb_s = next((500 * records.found[each.name]["mb_s"] / each.mbit for each in others), 0.0)
        layer = record["layers_s"] / cell.depth
        barrier = records.get(cell.calibration(len(ENVIRONMENTS[cell.environment].cores)))
        more = barrier and barrier["layers_s"] / barrier["predicted_layers_s"]
        found = [f"{each:.2f}" if each is not None else "–" for each in (records.calibrated(cell), more)]
        took = f"{layer * 1e3:.0f}", f"{record['full_s']:.2f}", f"{mb_s * 8:.2f}"
        rows.append([title(cell), cell.environment, *took, *found])
    head = ["", "devices", "a layer on one device, ms", "the model, s", "Mb/s that stand for 500"]
    return shown([*head, "calibration", "measured : predicted"], rows, 2)


def depth(records: Records) -> str:
    """Rows at full depth beside what was said of them from a quarter of the layers."""
    rows = []
    for cell in cells_of(records):
        short = Cell(**{**cell.as_dict(), "layers": 0})
        ratio = records.ratio(cell, short) if cell.layers else None
        if ratio is not None:
            pair = f"{records.seconds(cell):.2f}", f"{records.seconds(short):.2f}"
            rows.append([title(cell), METHODS[cell.method][0], *pair, f"{(ratio - 1) * 100:+.1f} %"])
    return shown(["", "method", "full depth, s", "from a part, s", "difference"], rows, 2)


def generation(records: Records) -> str:
    """A token behind the prompt."""
    rows = []
    for cell in cells_of(records):
        record = records.get(cell)
        if cell.new and record and "refused" not in record:
            whole = cell.model.layers / cell.depth
            said = record["step_s"] * whole, record["predicted_step_s"] * whole
            rows.append([title(cell), METHODS[cell.method][0], *(f"{each * 1e3:.0f}" for each in said)])
    return shown(["", "method", "a token, ms (short work)", "predicted, ms"], rows, 2)
