"""Drafting where disks bound a step: one pass of the weights that are read verifies several tokens.

    python -m bench.streamed.drafted [--repeats 3] [--only lime] [--folder build/bench-drafted]

Random weights say nothing that could be foreseen, so this is measured with the demo model, on disks so slow that
reading takes many times as long as computing: with ``--mode local --memory`` on one device, and with ``--mode lime`` on
three. Each cell is a mode, a set of prompts and a ``--draft``; none is what a user gets who says nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any, Final

import msgspec
from bench.draft_texts import Text, foreign, held_out
from bench.edge.job import PORT, SECRET
from bench.page import ROOT
from bench.streamed.drafted_portal import Job, Result, Said
from bench.streamed.page import DRAFTED
from bench.streamed.told import PIPES, Told, member_environment
from bench.testbed import scenario as scenarios
from bench.testbed.bed import Testbed
from bench.testbed.own_disk import disk_obstacle
from bench.testbed.possible import obstacle
from bench.testbed.scenario import load
from checkpoints import DATA, DEMO

SCENARIO: Final = Path(str(scenarios.__file__)).parent / "scenarios" / "lime.toml"
NEW: Final = 32
"""Tokens of an answer at most."""

CORES: Final = 0.5
DISK_MB_S: Final = {"local": "60", "lime": "20"}
"""Of each disk, so that a step without drafts takes about 0.4 s, a hundred times what its row takes to compute."""

MEMORY: Final = {"local": ("34MB",), "lime": ("18MB", "8MB", "8MB")}
"""Of each device, the first of which has the text; the weights take 38 MB in float32."""

SESSIONS: Final = {"local": (1,), "lime": (1, 3)}
POSITIONS: Final = 384
WITHIN_S: Final = 300.0

KEPT: Final = ("mode", "kind", "draft", "sessions", "repeat", "token_s", "tokens_a_second", "wrong")
"""Of a record, for the page."""


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        mode: a key of ``MEMORY``.
        kind: which prompts: a key of what ``texts`` gives.
        draft: what ``--draft`` says; '' for nothing.
        sessions: answers that are generated at once.
        repeat: from 0 on.
    """

    mode: str
    kind: str
    draft: str
    sessions: int = 1
    repeat: int = 0

    @property
    def name(self) -> str:
        """Of its record's file."""
        return f"{self.mode}_{self.kind}_{self.draft or 'default'}_{self.sessions}_{self.repeat}"


def planned(kinds: Sequence[str], repeats: int) -> list[Cell]:
    """All cells, one whole repeat after the other."""
    return [
        Cell(mode, kind, draft, sessions, repeat)
        for mode in MEMORY
        for repeat in range(repeats)
        for kind in kinds
        for sessions in SESSIONS[mode]
        for draft in ("none", "")
    ]


def texts(each: int = 4) -> dict[str, list[Text]]:
    """Prompts with transformers' answers: those the demo model was made for, of every skill, and strange ones, where
    they are at hand (``obstacle_of_strange``)."""
    found = {"held-out": held_out(NEW, 25)[: 2 * each]}
    if not obstacle_of_strange():
        found["spec-bench"] = [text for text in foreign(NEW, each) if text.kind == "spec_bench"]
    return found


def obstacle_of_strange() -> str:
    """Why there are no strange prompts, and what to do about it; '' where there are."""
    path = DATA / "prompts" / "spec_bench.jsonl"
    return "" if path.exists() else f"{path} is missing: put Spec-Bench's questions there"


def token_s(answers: Sequence[Said]) -> float:
    """The median over answers of seconds a token behind the first, as one session has them."""
    return median(said.seconds / (len(said.tokens) - 1) for said in answers if len(said.tokens) > 1)


def wrong(answers: Sequence[Said], truths: Sequence[Text]) -> int:
    """Tokens that are not transformers'."""
    pairs = zip(answers, truths, strict=True)
    return sum(
        sum(a != b for a, b in zip(said.tokens, text.truth, strict=False)) + abs(len(said.tokens) - len(text.truth))
        for said, text in pairs
    )


class DraftedDevices:
    """Devices of a mode, each a process or none: the first one answers jobs."""

    def __init__(self, bed: Testbed, mode: str, folder: Path, log: IO[bytes]) -> None:
        """log: of all of them, in ``folder``."""
        self._bed, self._log = bed, log
        self.names = [f"device-{number}" for number in range(1, len(MEMORY[mode]) + 1)]
        portal = self._spawn(self.names[0], ["bench.streamed.drafted_portal"], **PIPES)
        self._portal = Told(portal, "the device", folder)
        where = bed.port(self.names[0]).address
        self._settings: dict[str, Any] = {
            "model": str(DEMO),
            "mode": mode,
            "memory": MEMORY[mode][0],
            "max_model_len": POSITIONS,
        }
        if mode != "local":
            more = {"group_listen": f"{where}:{PORT}", "group_key": SECRET, "name": self.names[0]}
            self._settings |= {**more, "devices": len(self.names)}
            for name, memory in list(zip(self.names, MEMORY[mode], strict=True))[1:]:
                words = ["device_agent.group.member", "--join", f"{where}:{PORT}", "--model", str(DEMO)]
                self._spawn(name, [*words, "--name", name, "--threads", "1", "--memory", memory], stdout=self._log)
        self._portal.hear(WITHIN_S)
        for name in self.names:
            bed.host(name).set_cores(CORES)

    def run(self, cell: Cell, prompts: Sequence[Sequence[int]]) -> Result:
        """One cell. Raises DeviceFailed."""
        settings = self._settings | ({"draft": [cell.draft]} if cell.draft else {})
        job = Job(settings, [list(each) for each in prompts], NEW, cell.sessions)
        self._portal.say(job)
        return msgspec.convert(self._portal.hear(WITHIN_S), Result)

    def _spawn(self, name: str, words: Sequence[str], **popen: Any) -> subprocess.Popen[str]:
        own = member_environment(self._bed, name)
        return self._bed.spawn(name, [sys.executable, "-m", *words], env=own, stderr=self._log, **popen)


@contextmanager
def devices(mode: str, folder: Path) -> Iterator[DraftedDevices]:
    """While inside, the devices of a mode are there."""
    variables = {"mb_s": "0", "disk_mb_s": DISK_MB_S[mode]}
    with (folder / f"{mode}.log").open("ab") as log, Testbed(load(SCENARIO, variables), folder) as bed:
        yield DraftedDevices(bed, mode, folder, log)


def measure(cells: Sequence[Cell], folder: Path, each: int) -> None:
    """Each cell that has no record yet leaves one in a file of its own, and a line on the terminal."""
    prompts = texts(each)
    for mode in MEMORY:
        missing = [cell for cell in cells if cell.mode == mode and not (folder / f"{cell.name}.json").is_file()]
        if not missing:
            continue
        with devices(mode, folder) as there:
            for cell in missing:
                asked = prompts[cell.kind]
                result = there.run(cell, [text.prompt for text in asked])
                record = {**vars(cell), **msgspec.to_builtins(result)}
                if not result.refused:
                    tokens = sum(len(said.tokens) for said in result.answers)
                    record |= {
                        "token_s": token_s(result.answers),
                        "tokens_a_second": tokens / result.seconds,
                        "wrong": wrong(result.answers, asked),
                    }
                (folder / f"{cell.name}.json").write_text(json.dumps(record))
                print(shown(cell, result, record), flush=True)


def shown(cell: Cell, result: Result, record: dict[str, Any]) -> str:
    """A record for people."""
    if result.refused:
        return f"{cell.name}: {result.refused}"
    rounds = sum(said.rounds for said in result.answers)
    proposed = sum(said.proposed for said in result.answers)
    accepted = sum(said.accepted for said in result.answers)
    speeds = sorted((len(said.tokens) - 1) / said.seconds for said in result.answers if len(said.tokens) > 1)
    parts = [
        f"{cell.name}: {1e3 * record['token_s']:.0f} ms a token, {speeds[0]:.1f} to {speeds[-1]:.1f} tokens a second",
        f"all answers {record['tokens_a_second']:.2f} a second, {record['wrong']} tokens wrong",
        f"{result.draft}: {rounds} rounds, {proposed} tokens drafted, {accepted} accepted",
        f"believed: round {result.round_ms:.0f} ms, row {result.row_ms:.2f}, draft {result.draft_ms:.2f}",
        f"read {result.read_mb_s:.1f} MB/s",
    ]
    return "; ".join(parts)


def main() -> None:
    """Measure what has no record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--each", type=int, default=4, help="prompts of a set")
    parser.add_argument("--only", default="", help="cells whose names contain this")
    parser.add_argument("--draft", action="append", help="these drafters beside none and the default")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench-drafted")
    arguments = parser.parse_args()
    if obstacle() or disk_obstacle():
        raise SystemExit(f"no emulated devices here: {obstacle() or disk_obstacle()}")
    kinds = ["held-out"]
    if obstacle_of_strange():
        print(f"no strange prompts: {obstacle_of_strange()}")
    else:
        kinds.append("spec-bench")
    cells = planned(kinds, arguments.repeats)
    cells += [
        Cell(cell.mode, cell.kind, draft, cell.sessions, cell.repeat)
        for cell in cells
        if not cell.draft
        for draft in arguments.draft or ()
    ]
    arguments.folder.mkdir(parents=True, exist_ok=True)
    measure([cell for cell in cells if arguments.only in cell.name], arguments.folder, arguments.each)
    if not arguments.only:
        pack(arguments.folder)


def pack(folder: Path, into: Path = DRAFTED) -> None:
    """What the page shows of the records in a folder."""
    found = (json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json")))
    lines = (json.dumps({key: record[key] for key in KEPT}) for record in found if record.get("token_s"))
    into.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
