"""`python -m drafting.distill` from text to files, on the demo model and very little text."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from itertools import product
from pathlib import Path
from statistics import median

import pytest
import torch
from checkpoints import DEMO
from click.testing import CliRunner, Result
from samples import sample

from drafting.adapter import AdapterDrafter
from drafting.distill import portions, served
from drafting.distill.__main__ import main
from drafting.distill.features import FeatureFiles
from drafting.distill.loops import loop_begin
from drafting.drafter_file import read_drafter
from split_model.checkpoint import Checkpoint
from split_model.stack import Embedding, Head

ANIMALS = ("fox", "bear", "cat", "dog", "bird", "fish", "frog", "hare")
CHATS = [{"prompt": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}."} for a in range(1, 5) for b in range(1, 6)]


@pytest.fixture(autouse=True)
def few_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a drafter brings is measured on two answers; how well is not looked at here."""
    monkeypatch.setattr(served, "LEAST_ANSWERS", 2)
    monkeypatch.setattr(served, "ENOUGH_S", 0.0)
    monkeypatch.setattr(portions, "MEASURED", 4)


def distill(folder: Path, *options: str, model: Path = DEMO) -> Result:
    text = folder / "chats.jsonl"
    text.write_text("\n".join(map(json.dumps, CHATS)))
    arguments = ["--model", str(model), "--text", str(text), "--out", str(folder / "out"), "--threads", "1", *options]
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize("kind", ["adapter", "fused", "medusa"])
def test_from_text_to_a_drafter(kind: str, tmp_path: Path) -> None:
    """The file is one of this model, its card tells how it was made, and page and plots lie beside it."""
    done = distill(
        tmp_path, "--split", "2", "--kind", kind, "--tokens", "2500", "--regenerate", "--answer-tokens", "12"
    )
    assert done.exit_code == 0, done.output
    out = tmp_path / "out"
    file = read_drafter(out / f"{kind}.safetensors")
    checkpoint = Checkpoint.open(DEMO)
    assert (file.kind, file.split, file.digest) == (kind, 2, checkpoint.digest())
    assert file.card["parameters"] == file.parameters and file.card["training"]["tokens"] >= 2500
    assert 1 <= file.card["heldout"]["tau"] <= 7
    drafters = ("medusa",) if kind == "medusa" else ("hybrid", kind)
    rows = [(each["draft"], each["rule"].split(",")[0], each["temperature"]) for each in file.card["served"]]
    assert rows == list(product(drafters, ("auto", "fixed"), (0.0, 1.0)))
    assert all(each["tau"] >= 1 and each["prompts"] >= 1 for each in file.card["served"])
    assert "As it serves" in (out / f"{kind}.md").read_text() and "fixed, threshold 0.6" in done.output
    assert f"{file.parameters:,}" in (out / f"{kind}.md").read_text()
    for plot in out.glob("*.svg"):
        assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert len(list(out.glob("*.svg"))) == 2
    if kind != "medusa":
        head = Head.load(checkpoint, checkpoint.spec, torch.float32, Embedding.load(checkpoint, torch.float32))
        loaded = AdapterDrafter.load(
            out / f"{kind}.safetensors", checkpoint.spec, checkpoint.digest(), 2, torch.float32, head, kind
        )
        assert loaded.parameters == file.parameters


@pytest.mark.parametrize("anew", sample([True, False], "False"))
def test_plain_text_is_gone_on_with(anew: bool, tmp_path: Path) -> None:
    """Of plain text the model goes on with prompts as users send them, some passages being kept to measure on,
    and what it says over and over is cut; unless the text is to be taken as it is written."""
    text, out = tmp_path / "stories.txt", tmp_path / "out"
    told = [f"Once upon a time there was a {one} who met a {two}." for one in ANIMALS for two in ANIMALS]
    text.write_text("\n".join(told))
    arguments = ["--model", str(DEMO), "--split", "2", "--text", str(text), "--out", str(out), "--threads", "1"]
    arguments += ["--kind", "adapter", "--tokens", "3000", "--answer-tokens", "32", "--longest", "64"]
    done = CliRunner().invoke(main, [*arguments, *([] if anew else ["--as-written"])])
    assert done.exit_code == 0, done.output
    card = read_drafter(out / "adapter.safetensors").card
    assert ("gone on with by the model" in card["data"]["text"]) is anew
    assert all(each["prompts"] == 2 for each in card["served"])
    answers = list((out / ".cache").glob("answers-*.jsonl"))
    assert len(answers) == 1 + anew
    asked = [json.loads(line) for each in answers for line in each.read_text().splitlines()]
    assert median(each["own"][0] for each in asked) >= 16 and max(len(each["ids"]) for each in asked) <= 64 + 32
    files = FeatureFiles(out / ".cache" / "features-2")
    if anew:
        said = [files[number].ids[files[number].own].tolist() for number in range(len(files))]
        assert all(loop_begin(each) is None for each in said)
    for line in ("text:", "answers:", "features:", "training:", "measuring:", "serving:"):
        assert f"\n{line}" in "\n" + done.stderr


def test_second_run_uses_the_features(tmp_path: Path) -> None:
    """Another kind on the same text computes nothing twice."""
    assert distill(tmp_path, "--split", "2", "--kind", "adapter", "--tokens", "300").exit_code == 0
    shard = tmp_path / "out" / ".cache" / "features-2" / "0000.deep"
    before = shard.stat().st_mtime_ns
    assert distill(tmp_path, "--split", "2", "--kind", "fused", "--tokens", "300").exit_code == 0
    assert shard.stat().st_mtime_ns == before


def test_disk_budget_leaves_text_out(tmp_path: Path) -> None:
    """With room for a few documents only these are used; with room for none it says so."""
    done = distill(tmp_path, "--split", "2", "--kind", "adapter", "--tokens", "300", "--disk-gb", "0.0001")
    assert done.exit_code == 0, done.output
    stored = sum(each.stat().st_size for each in (tmp_path / "out" / ".cache" / "features-2").glob("*.deep"))
    assert 0 < stored <= 100_000
    refused = distill(tmp_path, "--split", "2", "--disk-gb", "0.000001")
    assert refused.exit_code == 2 and "too little" in refused.output


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A split past the model, a folder that is no model, text without answers: a message, no traceback."""
    done = distill(tmp_path, "--split", "12")
    assert done.exit_code == 2 and "12 layers" in done.output
    done = distill(tmp_path, "--split", "2", model=tmp_path)
    assert done.exit_code == 1 and "config.json" in done.output
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"messages": [{"role": "user", "content": "Hello"}]}\n')
    done = CliRunner().invoke(main, ["--model", str(DEMO), "--split", "2", "--text", str(empty)])
    assert done.exit_code == 2 and "too little text" in done.output


def test_help_has_examples_and_the_budget() -> None:
    """The help shows how to call it, what text looks like, and how much disk it may take."""
    shown = CliRunner().invoke(main, ["--help"]).output
    for word in ("Examples:", "--kind fused", '{"prompt"', "--disk-gb", "--regenerate", "lk-hybrid"):
        assert word in shown
