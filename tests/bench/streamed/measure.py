"""Measures cells, setting by setting; each leaves one JSON record in a file of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import torch
from bench.streamed.bed import DeviceFailed, Setting
from bench.streamed.cases import MODELS, PROMPT, SETTINGS, VOCAB, Cell, cores_of
from bench.streamed.portal import Job

from split_model.checkpoint import Checkpoint
from split_model.slices import held_bytes, whole

SEED = 7
DISK_MB_S = 40.0
"""Of each disk, 10^6 bytes a second: a layer of the largest model takes about a hundred times as long to read as to
compute. Its smallest unit takes 0.06 s, less than the slices in which the kernel gives out bandwidth; but disks read on
and on, so a step sees the mean."""

MB_S_OF_MBIT = 4.6 / 100
"""What a megabit of the paper's links stands for: a hop is to a layer's computing as it is there."""


def checkpoint_of(name: str, folder: Path) -> Path:
    """A random model of this shape, the same every time."""
    import transformers

    path = folder / name
    if not (path / "model.safetensors").is_file():
        config = transformers.LlamaConfig(**MODELS[name].config)
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            model = transformers.LlamaForCausalLM(config)
            # Larger than transformers' own, so that what is likeliest is so by more than rounding.
            for weight in model.parameters():
                if weight.dim() == 2:
                    weight.data.mul_(3.0)
            model.save_pretrained(path)
    return path


def prompts(sessions: int) -> list[list[int]]:
    """The same for every method."""
    drawn = torch.randint(3, VOCAB, (sessions, PROMPT), generator=torch.Generator().manual_seed(SEED))
    return [[int(token) for token in row] for row in drawn]


@torch.inference_mode()
def expected(checkpoint: Path, sessions: int, new: int) -> list[list[int]]:
    """What transformers says, greedy."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    found = []
    for ids in prompts(sessions):
        given = torch.tensor([ids])
        said = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=new + 1, do_sample=False, pad_token_id=0
        )
        found.append([int(token) for token in said[0, PROMPT:]])
    return found


class Measurement:
    """Of one folder of records.

    Args:
        folder: of records; models, logs and what transformers said are kept in it, too.
    """

    def __init__(self, folder: Path, say: Callable[[str], object]) -> None:
        self._folder, self._say = folder, say
        self._expected: dict[tuple[str, int, int], list[list[int]]] = {}

    def all(self, cells: Iterable[Cell], until: float = float("inf")) -> None:
        """Those that have no record yet, until ``time.monotonic`` says so much."""
        missing = [cell for cell in cells if not self.file(cell).is_file()]
        for (model, setting), group in groupby(missing, key=lambda cell: (cell.model, cell.setting)):
            if time.monotonic() < until:
                self._setting(model, setting, list(group), until)

    def file(self, cell: Cell) -> Path:
        """Where its record is."""
        return self._folder / f"{cell.name}.json"

    def _setting(self, model: str, setting: str, cells: list[Cell], until: float) -> None:
        checkpoint = checkpoint_of(model, self._folder / "models")
        spec = Checkpoint.open(checkpoint).spec
        devices = SETTINGS[setting]
        budgets = devices.budgets(held_bytes(spec, [whole(spec)], torch.float32))
        while cells and time.monotonic() < until:
            logs = self._folder / "logs"
            with Setting(logs, checkpoint, budgets, cores_of(devices), DISK_MB_S) as bed:
                try:
                    while cells and time.monotonic() < until:
                        self._cell(bed, checkpoint, cells.pop(0))
                except DeviceFailed as error:  # The next begins with new processes.
                    self._say(f"failed: {error}")

    def _cell(self, bed: Setting, checkpoint: Path, cell: Cell) -> None:
        bed.set_ports(cell.mbit * MB_S_OF_MBIT)
        job = Job(cell.method, bed.names, prompts(cell.sessions), cell.new)
        record: dict[str, Any] = {**vars(cell), "limits": bed.limits}
        try:
            result = bed.run(job)
        except DeviceFailed as error:
            self._write(cell, {**record, "refused": str(error)})
            raise
        record |= msgspec.to_builtins(result)
        if not result.refused:
            right = self._right(checkpoint, cell)
            record["equal"] = result.tokens == right
            record["token_s"] = result.generated_s / (cell.new * cell.sessions)
        self._write(cell, record)
        said = result.refused or f"{record['token_s']:.3f} s a token, tokens {'equal' if record['equal'] else 'WRONG'}"
        self._say(f"{cell.name}: {said}")

    def _right(self, checkpoint: Path, cell: Cell) -> list[list[int]]:
        key = cell.model, cell.sessions, cell.new
        if key not in self._expected:
            self._expected[key] = expected(checkpoint, cell.sessions, cell.new)
        return self._expected[key]

    def _write(self, cell: Cell, record: dict[str, Any]) -> None:
        self.file(cell).write_text(json.dumps(record), encoding="utf-8")
