"""llama.cpp's RPC split is measured as other methods are: the same cells, prompts, layers and links, and records."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench.hat import __main__ as command
from bench.hat import llama_split
from bench.hat.cells import RIVALS, Cell, all_cells
from bench.hat.latency import latency
from bench.hat.llama import record_of
from bench.hat.llama_split import SCENARIO, VARIABLE, Answer, LlamaSplit, prompt_ids, unavailable
from bench.hat.long_demo import long_demo
from bench.hat.looks import LOOKS
from bench.hat.measure import calibration_of
from bench.hat.methods import RIVALS as ABOUT
from bench.hat.prompts import Prompt, demo_prompts, demo_tokenizer
from bench.hat.records import load
from bench.hat.scaling import Costs
from bench.hat.setups import SCENARIOS, Setup
from bench.rivals import llama_rpc
from bench.testbed.possible import obstacle
from bench.testbed.scenario import load as load_scenario
from click.testing import CliRunner

from device_agent.prompt import read_prompt
from split_model.reference import Reference
from wire.messages import ChatTurn, Generate

COSTS = Costs(512, 0.0135, 0.042)
LENGTHS = (40, 700)
"""Of prompts, in tokens; the second is longer than what the model was trained with."""
NEW = 12
CLOSE = 0.01
"""Of the spread of one position's logits: hidden states are rounded to float16. Without YaRN it is more."""


@pytest.mark.parametrize("quick", [False, True])
def test_it_has_cells_where_one_device_is_measured_alone(quick: bool) -> None:
    """For every cell of such an experiment, in every repeat, one that differs in the method only; and no others."""
    cells = all_cells(quick, rivals=True)
    found = [cell for cell in cells if cell.method in RIVALS]
    assert {(cell.setting, cell.dataset, cell.experiment) for cell in found} == {
        ("demo", dataset, experiment) for dataset in ("specbench", "cnndm") for experiment in ("single", "unloaded")
    }
    assert all(replace(cell, method="ushape") in cells and cell.rate == 0 for cell in found)
    assert max(Counter(cell.name for cell in cells).values()) == 1
    assert [cell for cell in cells if cell.method not in RIVALS] == all_cells(quick)
    assert set(RIVALS) == set(ABOUT) <= set(LOOKS)


def test_its_hosts_are_the_others() -> None:
    """The cloud and one of the devices of the demo model's installation, with a link between them."""
    ours, theirs = load_scenario(SCENARIO), load_scenario(SCENARIOS / "hat_demo.toml", {"delay_ms": "0"})
    for mine, other in (("cloud", "cloud"), ("device", "device-1")):
        one, two = ours.host(mine), theirs.host(other)
        assert (one.cores, one.memory_mb) == (two.cores, two.memory_mb)
    assert (ours.link("device", "cloud").a, len(ours.hosts)) == ("device", 2)


def test_prompts_are_what_a_device_would_read() -> None:
    """The same ids as those of a request with the same messages."""
    for prompt in demo_prompts(LENGTHS, 3):
        turns = [ChatTurn(each["role"], each["content"]) for each in prompt.messages]
        request = Generate(request=1, request_id="r", model="m", prompt=turns)
        assert prompt_ids(demo_tokenizer(), prompt) == read_prompt(request, demo_tokenizer(), 2048, 16, 2048).ids


def test_an_answer_becomes_a_record() -> None:
    """Times count from the load's start; the intervals are those between tokens."""
    found = record_of(3, 256, Answer([5, 6, 7], 102.0, [0.5, 0.75, 1.0]), 100.0)
    assert found.complete and (found.sent_s, found.first_s, found.prompt_tokens, found.tokens) == (2.0, 2.5, 256, 3)
    seen = latency([found])
    assert (seen.ttft.mean, seen.tbt_request.mean, seen.tau) == (0.5, 0.25, 1.0)


def test_without_an_interpreter_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command says why, and the other cells are measured."""
    monkeypatch.delenv(VARIABLE, raising=False)
    words = ["--quick", "--again", "--list", "--setting", "demo", "--only", "single"]
    result = CliRunner().invoke(command.main, words)
    assert result.exit_code == 0, result.output
    first, *rest = result.output.splitlines()
    assert first == f"Without llama-rpc: {unavailable()}" and f"{VARIABLE}: no interpreter named" in first
    listed = {line.strip() for line in rest[1:]}
    assert listed == {cell.name for cell in all_cells(True, ["demo"]) if cell.experiment == "single"}


def needs_interpreter() -> None:
    """Skip where none is named that has it."""
    if unavailable():
        pytest.skip(unavailable())


@pytest.mark.system
def test_stretched_positions_are_converted(tmp_path: Path) -> None:
    """Other ways to stretch them are refused, before anything is written."""
    needs_interpreter()
    (tmp_path / "config.json").write_text(json.dumps({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}))
    argv = [os.environ[VARIABLE], "-m", "bench.rivals.gguf_yarn", str(tmp_path), str(tmp_path / "model.gguf")]
    environment = {**os.environ, "PYTHONPATH": str(llama_rpc.TESTS)}
    found = subprocess.run(argv, env=environment, capture_output=True, text=True)
    assert found.returncode == 1 and "only plain YaRN is converted" in found.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]


class Few(Setup):
    """The demo model, asked little."""

    def prompts(self, cell: Cell) -> list[Prompt]:
        """One short one and one long one."""
        return self.texts(LENGTHS, 1)


@pytest.mark.system
def test_cells_from_the_testbed_to_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both experiments are measured over a shaped link; every token is as likely as the model's best."""
    needs_interpreter()
    if obstacle():
        pytest.skip(f"no testbed here: {obstacle()}")
    asked: list[tuple[list[int], Answer]] = []

    class Heard(LlamaSplit):
        def ask(self, prompt: list[int], new: int) -> Answer:  # type: ignore[override]
            asked.append((prompt, super().ask(prompt, new)))
            return asked[-1][1]

    monkeypatch.setattr(command, "CACHE", tmp_path)
    monkeypatch.setattr(command, "LlamaSplit", Heard)
    monkeypatch.setattr(llama_split, "WARM_LENGTHS", (64,))
    setup = Few("demo", long_demo(tmp_path / "long-demo"), 2, COSTS.row_bytes, 0.25, "device_agent")
    known = {"of": calibration_of(setup), "base_s": COSTS.base_s, "chunk_s": COSTS.chunk_s}
    (tmp_path / "calibration-demo.json").write_text(json.dumps(known))
    records = tmp_path / "records"
    records.mkdir()
    cells = [
        Cell("single", "demo", "specbench", "llama-rpc", 0.0, requests=2, tokens=NEW),
        Cell("unloaded", "demo", "specbench", "llama-rpc", 0.0, requests=2, tokens=1),
    ]
    assert command.run(cells, records, {"demo": setup}) == []
    single, unloaded = sorted((each for each in load(records)), key=lambda each: each.place.experiment)
    asked = asked[-4:]  # Before them the split was warmed.
    for record, tokens in ((single, 2 * NEW), (unloaded, 2)):
        numbers = record.numbers
        assert (numbers["latency.failed"], numbers["latency.tokens"]) == (0, tokens)
        assert numbers["latency.prompt_tokens"] == pytest.approx(sum(LENGTHS) / 2, abs=2)
        # Two float32 for each value of a row go up, and take their time.
        prompt_bytes = 4 * numbers["latency.prompt_tokens"] * COSTS.row_bytes
        assert numbers["cloud.up_bytes"] > 2 * prompt_bytes
        assert numbers["latency.ttft.mean"] > 0.9 * prompt_bytes / (numbers["link.up_mb_s"] * 1e6)
        assert not [name for name in numbers if name.startswith("cloud.step")]
    assert unloaded.numbers["upload_bound_s"] > 0
    reference = Reference.load(setup.model, torch.float32)
    for prompt, answer in asked[:2]:
        logits = reference.logits(prompt + answer.tokens[:-1])[-NEW:]
        short = logits.max(1).values - logits[range(NEW), answer.tokens]
        assert bool((short < CLOSE * logits.std(1)).all()), short / logits.std(1)
