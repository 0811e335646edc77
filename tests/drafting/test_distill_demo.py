"""The drafters that the demo model ships with."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from checkpoints import DEMO
from rich.console import Console
from samples import sample

from drafting.distill.corpus import Renewal, Source
from drafting.distill.making import acceptance
from drafting.distill.network import FrozenHead, Medusa, new_network, parameters
from drafting.distill.served import RULES, TEMPERATURES, Question, Serving
from drafting.distill.text import Document, samples
from drafting.drafter_file import DrafterFile, read_drafter
from service.bars import Bars

TAU = r"\*\*([\d.]+)\*\* ± ([\d.]+)"
KINDS = ("adapter", "fused", "medusa")


def shipped(kind: str) -> DrafterFile:
    return read_drafter(DEMO / "drafters" / f"{kind}.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def test_belongs_to_the_demo_model(kind: str) -> None:
    """Each file is of the weights beside it, bfloat16, with a card that says how it was made and what it measured."""
    source = Source(DEMO)
    file = shipped(kind)
    network = new_network(kind, source.spec, FrozenHead.load(source.checkpoint), 0)
    file.check(kind, source.digest, 2, {name: tuple(each.shape) for name, each in network.named_parameters()})
    assert file.form == network.form and file.parameters == parameters(network) == file.card["parameters"]
    assert file.path.stat().st_size < 2 * file.parameters + 8192
    assert file.card["heldout"]["tau"] > 2 and file.card["training"]["tokens"] > 1_000_000


def test_fused_is_at_most_half_as_large_again() -> None:
    """The fused drafter has no more than 1.5 times the parameters of the adapter."""
    assert shipped("fused").parameters <= 1.5 * shipped("adapter").parameters


@pytest.mark.slow
def test_measures_what_the_card_says(tmp_path: Path) -> None:
    """On a sixth of the held-out prompts each drafter accepts about what its card says, and fused more than adapter."""
    source = Source(DEMO)
    heldout = samples(DEMO / "heldout.jsonl", source.writer)
    texts = [each for each in heldout if isinstance(each, Document)][::6]
    found = {}
    with Bars(Console(quiet=True)) as bars:
        answered = source.answered(texts, Renewal((0.0,), 120), tmp_path, bars, source.exact_model())
        for kind in KINDS:
            head = FrozenHead.load(source.checkpoint)
            network = new_network(kind, source.spec, head, 0)
            file = shipped(kind)
            network.load_state_dict({name: file.tensor(name, torch.float32) for name in file.shapes})
            found[kind] = acceptance(network, head, source, 2, answered, bars)
            card = file.card["heldout"]
            assert found[kind].tau == pytest.approx(card["tau"], rel=0.2)
            depth = 1 if isinstance(network, Medusa) else 5
            assert found[kind].by_depth[depth] == pytest.approx(card["acceptance_by_depth"][depth], abs=0.1)
    assert found["fused"].tau > 1.05 * found["adapter"].tau > 1.05 * found["medusa"].tau


@pytest.mark.parametrize("kind", sample(KINDS, "fused"))
def test_serves_what_the_page_says(kind: str) -> None:
    """Counted as a device counts, on a tenth of the held-out prompts, each drafter brings what its page says, greedy
    and at T = 1, as far as so few answers can tell."""
    source = Source(DEMO)
    heldout = samples(DEMO / "heldout.jsonl", source.writer)
    asked = [Question(each.ids[: each.prompt].tolist()) for each in heldout if isinstance(each, Document)][::10]
    serving = Serving(source.checkpoint, 2, DEMO / "drafters", [kind])
    [rule] = [each for each in RULES if each.settings.draft_length == "fixed"]
    page = (DEMO / "drafters" / f"{kind}.md").read_text(encoding="utf-8")
    [line] = [each for each in page.splitlines() if each.startswith(f"| {kind} | {rule.name} |")]
    for temperature, said, error in zip(TEMPERATURES, *zip(*re.findall(TAU, line), strict=True), strict=True):
        found = serving.answers(kind, rule, asked, temperature)
        assert abs(found.tau - float(said)) < 0.1 * found.tau + 2 * math.hypot(found.error, float(error))
