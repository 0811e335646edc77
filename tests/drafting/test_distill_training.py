"""Training: it learns, it goes on after a kill to the very same result, and the batches are what they should be."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from samples import sample
from tiny_models import build_tiny

from drafting.distill import checkpoint
from drafting.distill.batches import assembled, planned
from drafting.distill.features import FeatureFiles, Key, compute
from drafting.distill.network import FrozenHead, Medusa, new_network
from drafting.distill.text import Document
from drafting.distill.training import TrainingPlan, rate_share, train
from split_model.checkpoint import Checkpoint
from split_model.reference import Reference

ROOT = Path(__file__).resolve().parents[2]
TOKENS = 12_000

# What the killed process runs: slow enough to be caught in the middle.
PROGRAM = """
import sys, time
from pathlib import Path
sys.path[:0] = {paths!r}
from test_distill_training import trained
trained(Path(sys.argv[1]), Path(sys.argv[2]), pause=0.05)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and features of its own greedy texts."""
    path = tmp_path_factory.mktemp("distill")
    build_tiny("llama", path / "model")
    opened = Checkpoint.open(path / "model")
    model = Reference.load(opened)
    texts = []
    for number in range(40):
        ids = [number % 97, (number * 7) % 97, 5, *model.generate([number % 97, (number * 7) % 97, 5], 6 + number % 20)]
        texts.append(Document(np.array(ids, dtype=np.int32), np.arange(len(ids)) >= 3))
    compute(path / "features", Key.of(opened.digest(), 2, texts), model, texts, lambda _: None)
    return path


def trained(
    folder: Path, run: Path, pause: float = 0.0, kind: str = "fused", loss: str = "kl"
) -> dict[str, torch.Tensor]:
    """The parameters after a run, a checkpoint at every step."""
    opened = Checkpoint.open(folder / "model")
    head = FrozenHead.load(opened)
    network = new_network(kind, opened.spec, head, 0)
    plan = TrainingPlan(loss=loss, unroll=3, tokens=TOKENS, batch_tokens=256, rate=3e-3, save_every_s=0.0)
    train(network, head, FeatureFiles(folder / "features"), plan, run, lambda _: time.sleep(pause))
    return {name: each.detach().clone() for name, each in network.named_parameters()}


@pytest.mark.slow
def test_goes_on_after_a_kill(folder: Path, tmp_path: Path) -> None:
    """A run killed with SIGKILL half-way goes on from its checkpoint and ends at the very same numbers."""
    whole = trained(folder, tmp_path / "whole")
    program = PROGRAM.format(paths=[str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "drafting")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", program, str(folder), str(tmp_path / "killed")], env=environment)
    try:
        file = tmp_path / "killed" / checkpoint.FILE
        until = time.monotonic() + 90
        while time.monotonic() < until and not file.exists() and process.poll() is None:
            time.sleep(0.02)
        time.sleep(0.4)
    finally:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    with safe_open(file, framework="pt") as opened:
        tokens = json.loads(opened.metadata()["progress"])["tokens"]
    assert 0 < tokens < TOKENS
    resumed = trained(folder, tmp_path / "killed")
    for name, each in whole.items():
        torch.testing.assert_close(resumed[name], each, atol=0, rtol=0)


def test_other_plan_starts_anew(folder: Path, tmp_path: Path) -> None:
    """A checkpoint of another loss is not taken up."""
    trained(folder, tmp_path, loss="hat")
    before = (tmp_path / checkpoint.FILE).read_bytes()
    a = trained(folder, tmp_path, loss="kl")
    b = trained(folder, tmp_path / "fresh", loss="kl")
    assert before != (tmp_path / checkpoint.FILE).read_bytes()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("kind", "loss"),
    sample(
        product(("adapter", "fused", "medusa"), ("hat", "kl", "lk-hybrid")), "adapter-hat fused-lk-hybrid medusa-kl"
    ),
)
def test_learns(kind: str, loss: str, folder: Path, tmp_path: Path) -> None:
    """The overlap with the model grows well beyond what it was at first."""
    opened = Checkpoint.open(folder / "model")
    head = FrozenHead.load(opened)
    network = new_network(kind, opened.spec, head, 0)
    plan = TrainingPlan(loss=loss, tokens=40_000, batch_tokens=256, rate=1e-2)
    done = train(network, head, FeatureFiles(folder / "features"), plan, tmp_path, lambda _: None)
    assert done.tokens >= 40_000 and done.curve[-1][0] <= done.tokens
    first, last = (np.mean([shared for _, _, shared in part]) for part in (done.curve[:2], done.curve[-2:]))
    # The model is random, so its texts can be learned by heart, though hardly by a divergence in features.
    assert last > first + 0.05


def test_medusa_starts_as_the_model(folder: Path) -> None:
    """Untrained heads say what the model's own head says of the row."""
    head = FrozenHead.load(Checkpoint.open(folder / "model"))
    rows = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    for each in Medusa(head).heads:
        torch.testing.assert_close(each(rows), head.logits(rows))


def test_every_document_once_an_epoch() -> None:
    """The groups of an epoch hold each document once, within the size, in another order each epoch."""
    lengths = [1 + (number * 37) % 90 for number in range(1200)]
    epochs = [planned(lengths, 512, 0, epoch) for epoch in range(2)]
    for groups in epochs:
        assert sorted(each for group in groups for each in group) == list(range(1200))
        assert all(max(lengths[each] for each in group) * len(group) <= 512 for group in groups)
    assert epochs[0] != epochs[1] and epochs[0] == planned(lengths, 512, 0, 0)
    assert planned([600, 5], 512, 0, 0) in ([[0], [1]], [[1], [0]])


def test_earlier_answers_are_sometimes_forgotten(tmp_path: Path, folder: Path) -> None:
    """The last answer always has its deep rows; an earlier one has all or none, and then bears no loss."""
    model = Reference.load(Checkpoint.open(folder / "model"))
    own = np.array([0, 1, 1, 0, 0, 1, 1, 1], dtype=bool)
    text = Document(np.arange(8, dtype=np.int32), own)
    files = compute(tmp_path / "features", Key("", 2, ""), model, [text], lambda _: None)
    seen = set()
    for seed in range(20):
        batch = assembled(files, [0], random.Random(seed))
        assert torch.equal(batch.own, batch.rows.known)
        assert batch.own[0].tolist()[3:] == own.tolist()[3:]
        seen.add(tuple(batch.own[0].tolist()[:3]))
    assert seen == {(False, True, True), (False, False, False)}
    assert assembled(files, [0], None).own[0].tolist() == own.tolist()


def test_rate() -> None:
    """The rate rises, is at its peak early and ends at zero."""
    assert rate_share(0.0) < 0.05 and rate_share(0.03) == pytest.approx(1, abs=1e-3)
    assert rate_share(0.5) > rate_share(0.9) > rate_share(1.0) == pytest.approx(0, abs=1e-9)


def test_a_batch_that_teaches_medusas_heads_nothing_is_passed_over(tmp_path: Path, folder: Path) -> None:
    """Answers of a single token: there is none behind the next. What was learned stays as it was."""
    opened = Checkpoint.open(folder / "model")
    texts = [Document(np.array([3, 1, 4, 1], dtype=np.int32), np.arange(4) >= 3) for _ in range(4)]
    key = Key.of(opened.digest(), 2, texts)
    compute(tmp_path / "features", key, Reference.load(opened), texts, lambda _: None)
    head = FrozenHead.load(opened)
    network = new_network("medusa", opened.spec, head, 0)
    before = {name: each.detach().clone() for name, each in network.named_parameters()}
    plan = TrainingPlan(tokens=64, batch_tokens=16)
    progress = train(network, head, FeatureFiles(tmp_path / "features"), plan, tmp_path / "run", lambda _: None)
    assert progress.tokens >= 64
    assert all(torch.equal(each, before[name]) for name, each in network.named_parameters())
