"""What was measured, read back: one JSON record for each cell, in a file of its own or on a line of one for all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from bench.hat.cells import Cell, all_cells

EXPERIMENTS = ("rates", "single", "ablation", "chunks", "stages", "rtt", "traces", "unloaded", "real")

DATE = re.compile(r", \d{4}-\d\d-\d\d$")
"""What the machine's name ends with; ``began`` says it too."""

MEANS = {"latency.ttft.": "latency.ttft.mean", "latency.tbt.": "latency.tbt.mean", "cloud.step_": "cloud.step_mean_s"}
"""Times, and their mean, which is 0 only where nothing was counted."""


BOUND, SENT = "upload_bound_s", "upload_sent_s"
"""What the upload of a prompt's rows takes at least, as they are, and that of all that was sent up for a request: of
cells whose links do not change, and whose answers are single tokens."""


_Seconds = Annotated[float, msgspec.Meta(ge=0)]


class BadRecord(ValueError):
    """A record that is not one: the message names the file and what is wrong with it."""


@dataclass(frozen=True, order=True)
class Place:
    """What was measured, less its repeat. ``rate`` is in requests/s (0: one at a time), ``rtt_ms`` in milliseconds."""

    experiment: str
    setting: str
    dataset: str
    method: str
    rate: float = 0.0
    stages: int = 1
    rtt_ms: float = 0.0
    trace: str = ""

    @classmethod
    def of(cls, cell: Cell) -> Place:
        """Where a cell belongs."""
        return cls(**{field.name: getattr(cell, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Record:
    """One cell. ``numbers`` has every finite number of the record by its way in, as ``latency.ttft.mean``.

    ``prefill_sla`` and ``decode_sla`` are seconds for 128 prompt tokens and for 10 generated ones, one a request that
    did not fail, sorted; failed ones, which have no end, are counted in ``latency.failed`` only. ``texts`` has a digest
    of each answer by its request, ``requests`` and ``tokens`` are what was asked for: how many, and tokens of each.
    """

    place: Place
    repeat: int
    numbers: Mapping[str, float]
    prefill_sla: tuple[float, ...]
    decode_sla: tuple[float, ...]
    machine: str
    bottleneck: str
    began: str
    commit: str
    texts: Mapping[str, str]
    requests: int
    tokens: int

    @property
    def cell(self) -> Cell:
        """What was measured, as the plan has it."""
        return Cell(**asdict(self.place), repeat=self.repeat, requests=self.requests, tokens=self.tokens)


def load(source: Path) -> list[Record]:
    """Every record of a folder (``*.json``) or of a file as ``packed`` makes it, by name; objects without a ``cell``
    are something else and left out.

    Raises:
        BadRecord: there is none, one is malformed, or two are of the same cell and repeat.
    """
    found: dict[tuple[Place, int], str] = {}
    records = []
    for name, _, record in _parsed(source):
        twin = found.setdefault((record.place, record.repeat), name)
        if twin != name:
            raise BadRecord(f"{name} and {twin} are of the same cell and repeat")
        records.append(record)
    if not records:
        raise BadRecord(f"{source} has no records")
    return records


UNPUBLISHED = {
    *("late", "count", "std", "most"),
    *("used_cores", "busy_p90", "full", "steal", "running_p90", "waiting", "throttled"),
}
"""What a record has for whoever looks into a run, and no page shows."""


def packed(source: Path, kept: Iterable[Record]) -> str:
    """The records of ``source`` that are kept, each on a line, by name: what pages show, in five digits that count.

    Raises as ``load`` does.
    """
    names = {record.cell.name for record in kept}
    lines = {each.cell.name: json.dumps(_short(read), separators=(",", ":")) for _, read, each in _parsed(source)}
    return "".join(f"{line}\n" for name, line in sorted(lines.items()) if name in names)


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items() if name not in UNPUBLISHED}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def unpack(source: Path, folder: Path) -> int:
    """Give each record of ``source`` a file in ``folder``, unless one of its name is there; how many were given.

    Raises:
        BadRecord: see ``load``.
    """
    given = 0
    for _, read, record in _parsed(source):
        if not (folder / f"{record.cell.name}.json").exists():
            put(read, record.cell, folder)
            given += 1
    return given


def put(record: Mapping[str, Any], cell: Cell, folder: Path) -> None:
    """Write the record of a cell, whole or not at all."""
    part = folder / f".{cell.name}.part"
    part.write_text(json.dumps(record, indent=1), encoding="utf-8")
    part.replace(folder / f"{cell.name}.json")


def _parsed(source: Path) -> Iterator[tuple[str, dict[str, Any], Record]]:
    for name, text in _texts(source):
        try:
            read = json.loads(text)
            if isinstance(read, dict) and "cell" not in read:
                continue
            record = parse(read)
        except (ValueError, RecursionError) as error:
            raise BadRecord(f"{name}: {error}") from error
        yield name, read, record


def _texts(source: Path) -> Iterator[tuple[str, str]]:
    if source.is_dir():
        for file in sorted(source.glob("*.json")):
            yield file.name, file.read_text(encoding="utf-8")
    else:
        for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1):
            yield f"{source.name}, line {number}", line


def planned(records: Sequence[Record]) -> list[Record]:
    """Those that the plan of cells has, in whatever repeat. Raises BadRecord where it has none of them."""
    plan = set(all_cells(repeats=1))
    if kept := [each for each in records if replace(each.cell, repeat=0) in plan]:
        return kept
    raise BadRecord(f"none of {len(records)} records is of a cell that is planned")


class _Latency(msgspec.Struct):
    prefill_sla: list[_Seconds | None] = []
    decode_sla: list[_Seconds | None] = []


class _Machine(msgspec.Struct):
    name: str = ""
    bottleneck: str = ""


class _Raw(msgspec.Struct):
    """What is looked at by name. Anything but the cell may be missing."""

    cell: Cell
    latency: _Latency = msgspec.field(default_factory=_Latency)
    machine: _Machine = msgspec.field(default_factory=_Machine)
    texts: dict[str, str] = {}
    began: str = ""
    commit: str = ""


def parse(record: object) -> Record:
    """A record from its JSON. Raises BadRecord where the cell is incomplete, or something is of a wrong type."""
    try:
        raw = msgspec.convert(record, _Raw)
    except msgspec.ValidationError as error:
        raise BadRecord(str(error)) from error
    cell = raw.cell
    if cell.experiment not in EXPERIMENTS:
        raise BadRecord(f"experiment {cell.experiment!r} is none of {', '.join(EXPERIMENTS)}")
    if not (math.isfinite(cell.rate) and cell.rate >= 0):
        raise BadRecord(f"rate is {cell.rate}")
    assert isinstance(record, dict)
    return Record(
        place=Place.of(cell),
        repeat=cell.repeat,
        numbers=_measured(_numbers({name: value for name, value in record.items() if name != "cell"})),
        prefill_sla=_known(raw.latency.prefill_sla),
        decode_sla=_known(raw.latency.decode_sla),
        machine=DATE.sub("", raw.machine.name),
        bottleneck=raw.machine.bottleneck,
        began=raw.began,
        commit=raw.commit,
        texts=raw.texts,
        requests=cell.requests,
        tokens=cell.tokens,
    )


def _known(seconds: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(sorted(each for each in seconds if each is not None and each != math.inf))


def _measured(numbers: list[tuple[str, float]]) -> dict[str, float]:
    """Without the distributions of nothing: a cell in which every request failed has no TTFT of 0."""
    found = dict(numbers)
    answered = found.get("latency.requests", 0.0) - found.get("latency.failed", 0.0)
    if BOUND in found and answered and found.get("link.up_mb_s"):
        found[SENT] = found.get("cloud.up_bytes", 0.0) / answered / (1e6 * found["link.up_mb_s"])
    empty = tuple(way for way, mean in MEANS.items() if not found.get(mean))
    return {name: value for name, value in found.items() if not name.startswith(empty)}


def _numbers(table: Mapping[str, Any], way: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            found += _numbers(value, f"{way}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found.append((f"{way}{name}", float(value)))
    return found
