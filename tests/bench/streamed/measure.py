"""Measures cells, setting by setting; each leaves one JSON record in a file of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import torch
from bench.streamed.alone import run_alone
from bench.streamed.bed import Setting
from bench.streamed.cases import (
    LEAST,
    MODELS,
    NEW,
    PROMPT,
    SETTINGS,
    VARIED_NEW,
    VOCAB,
    Cell,
    bandwidths,
    cores_of,
    sessions_of,
)
from bench.streamed.methods import METHODS
from bench.streamed.portal import Job, Result
from bench.streamed.told import DeviceFailed

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
    """A random model of this shape, the same every time, in bfloat16, as checkpoints are published."""
    import transformers

    path = folder / f"{name}-bfloat16"
    if not (path / "model.safetensors").is_file():
        config = transformers.LlamaConfig(**MODELS[name].config)
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            model = transformers.LlamaForCausalLM(config)
            # Larger than transformers' own, so that what is likeliest is so by more than rounding.
            for weight in model.parameters():
                if weight.dim() == 2:
                    weight.data.mul_(3.0)
            model.bfloat16().save_pretrained(path)
    return path


def prompts(sessions: int, rows: int = PROMPT) -> list[list[int]]:
    """The same for every method; those of fewer sessions are the first of them."""
    drawn = torch.randint(3, VOCAB, (sessions, rows), generator=torch.Generator().manual_seed(SEED))
    return [[int(token) for token in row] for row in drawn]


def expected(checkpoint: Path, rows: int = PROMPT) -> list[list[int]]:
    """What transformers says to each prompt, greedy: as many tokens as any cell asks for. Kept beside the model."""
    kept = checkpoint / f"expected-{rows}-{SEED}.json"
    if not kept.is_file():
        kept.write_text(json.dumps(_said(checkpoint, rows)), encoding="utf-8")
    found: list[list[int]] = json.loads(kept.read_text(encoding="utf-8"))
    return found


@torch.inference_mode()
def _said(checkpoint: Path, rows: int) -> list[list[int]]:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    found = []
    for ids in prompts(max(sessions_of("over")), rows):
        given = torch.tensor([ids])
        said = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=max(NEW, VARIED_NEW) + 1,
            do_sample=False,
            pad_token_id=0,
        )
        found.append([int(token) for token in said[0, rows:]])
    return found


class Measurement:
    """Of one folder of records.

    Args:
        folder: of records; models, logs and what transformers said are kept in it, too.
        pythons: by method, the interpreters of other programs.
    """

    def __init__(self, folder: Path, say: Callable[[str], object], pythons: Mapping[str, str]) -> None:
        self._folder, self._say, self._pythons = folder, say, pythons

    def all(self, cells: Iterable[Cell], until: float = float("inf")) -> None:
        """One after the other, until ``time.monotonic`` says so much."""

        def place(cell: Cell) -> tuple[str, str, bool]:
            return cell.model, cell.setting, METHODS[cell.method].planner is None

        for (model, setting, alone), group in groupby(cells, key=place):
            if time.monotonic() >= until:
                return
            if alone:
                for cell in group:
                    if time.monotonic() < until:
                        self._alone(cell)
            else:
                self._setting(model, setting, list(group), until)

    def file(self, cell: Cell) -> Path:
        """Where its record is."""
        return self._folder / f"{cell.name}.json"

    def _budgets(self, model: str, setting: str) -> tuple[Path, list[int]]:
        checkpoint = checkpoint_of(model, self._folder / "models")
        spec = Checkpoint.open(checkpoint).spec
        return checkpoint, SETTINGS[setting].budgets(held_bytes(spec, [whole(spec)], torch.float32))

    def _setting(self, model: str, setting: str, cells: list[Cell], until: float) -> None:
        checkpoint, budgets = self._budgets(model, setting)
        cores = cores_of(SETTINGS[setting])
        for rows in {cell.prompt for cell in cells}:
            expected(checkpoint, rows)  # It takes both cores.
        while cells and time.monotonic() < until:
            logs = self._folder / "logs"
            with Setting(logs, checkpoint, budgets, cores, DISK_MB_S) as bed:
                try:
                    while cells and time.monotonic() < until:
                        self._cell(bed, checkpoint, cells.pop(0))
                except DeviceFailed as error:  # The next begins with new processes.
                    self._say(f"failed: {error}")

    def _cell(self, bed: Setting, checkpoint: Path, cell: Cell) -> None:
        began = time.monotonic()
        mbits = bandwidths(cell.new + 1, SEED) if cell.vary else [cell.mbit] * (cell.new + 1)
        bed.set_ports(mbits[0] * MB_S_OF_MBIT)

        def step(number: int) -> None:
            if mbits[min(number, cell.new)] != mbits[number - 1]:
                bed.set_ports(mbits[number] * MB_S_OF_MBIT)

        record: dict[str, Any] = {**vars(cell), "limits": bed.limits, "mbits": mbits if cell.vary else []}
        try:
            result = bed.run(
                Job(cell.method, bed.names, prompts(cell.sessions, cell.prompt), cell.new, cell.room, cell.planned),
                step,
            )
        except DeviceFailed as error:
            self._write(cell, {**record, "refused": str(error), "took_s": time.monotonic() - began})
            raise
        self._finish(cell, checkpoint, {**record, "peaks": bed.peaks()}, result, began)

    def _alone(self, cell: Cell) -> None:
        checkpoint, budgets = self._budgets(cell.model, cell.setting)
        began = time.monotonic()
        try:
            result, limits = run_alone(
                cell.method,
                self._pythons[cell.method],
                self._folder / "logs",
                checkpoint,
                max(budgets),
                max(cores_of(SETTINGS[cell.setting])),
                DISK_MB_S,
                prompts(1)[0],
                LEAST,
            )
        except DeviceFailed as error:
            self._say(f"{cell.name} failed: {error}")
            self._write(cell, {**vars(cell), "refused": str(error), "took_s": time.monotonic() - began})
            return
        self._finish(cell, checkpoint, {**vars(cell), "limits": limits, "mbits": []}, result, began)

    def _finish(self, cell: Cell, checkpoint: Path, record: dict[str, Any], result: Result, began: float) -> None:
        record |= msgspec.to_builtins(result)
        if not result.refused:
            right = [
                ids[: len(said)] for ids, said in zip(expected(checkpoint, cell.prompt), result.tokens, strict=False)
            ]
            enough = len(result.tokens) == cell.sessions and all(len(said) >= LEAST for said in result.tokens)
            record["equal"] = enough and result.tokens == right
            record["token_s"] = result.generated_s / (len(result.steps_s) * cell.sessions)
        record["took_s"] = time.monotonic() - began
        self._write(cell, record)
        said = result.refused or f"{record['token_s']:.3f} s a token, tokens {'equal' if record['equal'] else 'WRONG'}"
        self._say(f"{cell.name}: {said}; {record['took_s']:.0f} s")

    def _write(self, cell: Cell, record: dict[str, Any]) -> None:
        self.file(cell).write_text(json.dumps(record), encoding="utf-8")
