"""Drafters on a device that is not the CPU do what every drafter does, and say what they say on the CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from drafted_nodes import judged
from drafter_conformance import TEXT, Follower, Rows, assert_same, check_drafter
from elsewhere import elsewhere
from samples import named_sample
from stand_in import DEVICE, watched
from tiny_drafters import DIGEST, SPLIT, adapter_weights, medusa_weights, random_head, tiny_spec
from tiny_models import build_tiny

from drafting.adapter import AdapterDrafter
from drafting.choosing import Chooser
from drafting.drafter import Drafter, Guess
from drafting.drafter_file import write_drafter
from drafting.hybrid import UNSEEN, HybridDrafter
from drafting.lookup import LookupDrafter
from drafting.medusa import MedusaDrafter
from drafting.proposing import Candidate, Proposer
from drafting.small_model import SmallModelDrafter
from drafting.verification import Rule
from split_model.bans import Bans
from split_model.checkpoint import Checkpoint
from split_model.sampling import NOBODY, SamplingParams
from split_model.tree import Tree

SPEC = tiny_spec()
KINDS = ("adapter", "fused", "keep-mlp", "medusa", "small model", "hybrid")
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9)


def loaded(folder: Path, kind: str, device: torch.device) -> Drafter:
    """A random drafter of a kind, or of the fused kind's form ``keep-mlp``."""
    if kind == "small model":
        small = folder / "small"
        if not small.exists():
            build_tiny("llama-head-dim", small)
            (small / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}}}))
        return SmallModelDrafter.load(str(small), small, Checkpoint.open(small).spec, torch.float32, device)
    if kind == "hybrid":
        return HybridDrafter(loaded(folder, "fused", device), LookupDrafter())
    head, path = random_head(SPEC, device=device), folder / "drafter.safetensors"
    if kind == "medusa":
        write_drafter(path, kind, DIGEST, SPLIT, {}, medusa_weights(SPEC))
        return MedusaDrafter.load(path, SPEC, DIGEST, SPLIT, torch.float32, head)
    form, kind = (kind, "fused") if kind == "keep-mlp" else ("", kind)
    write_drafter(path, kind, DIGEST, SPLIT, {}, adapter_weights(SPEC, kind, form), form)
    return AdapterDrafter.load(path, SPEC, DIGEST, SPLIT, torch.float32, head, kind)


@elsewhere
@pytest.mark.parametrize(
    "kind", named_sample({each: each for each in KINDS if each != "hybrid"}, ("adapter", "medusa"))
)
def test_conforms(tmp_path: Path, kind: str, device: torch.device) -> None:
    """Texts, trees, forks and what is forgotten, all there."""
    check_drafter(loaded(tmp_path, kind, device), SPEC.hidden_size, device)


@elsewhere
@pytest.mark.parametrize("kind", [each for each in KINDS if each != "hybrid"])
def test_says_what_it_says_on_the_cpu(tmp_path: Path, kind: str, device: torch.device) -> None:
    """Of a text, of branches behind it, and of what follows once some of them are final."""
    said: list[list[Guess | None]] = []
    for place in (torch.device("cpu"), device):
        follower = Follower(loaded(tmp_path, kind, place), Rows(SPEC.hidden_size, device=place)).observe(TEXT)
        guesses = [follower.session.guess(), *follower.extend((-1, -1, 0), (9, 4, 2)), *follower.extend((2,), (3,))]
        follower.observe((9, 2, 5), known=2)
        guesses += [follower.session.guess(), *follower.extend((-1, 0), (1, 7))]
        said.append(guesses)
    for there, here in zip(*said, strict=True):
        assert_same(there, here)


@elsewhere
@pytest.mark.parametrize("kind", ["adapter", "small model", "hybrid"])
def test_tokens_that_the_host_does_not_know(tmp_path: Path, kind: str, device: torch.device) -> None:
    """Nodes are run with the tokens that are there; nothing crosses for it. Of a hybrid the model alone speaks then."""
    rows, tokens = Rows(SPEC.hidden_size, device=device), (9, 4, 2)
    told = Follower(loaded(tmp_path, "fused" if kind == "hybrid" else kind, device), rows).observe(TEXT)
    unseen = Follower(loaded(tmp_path, kind, device), rows).observe(TEXT).session
    tree = Tree(len(TEXT))
    for depth, token in enumerate(tokens):
        [wanted] = told.extend([depth - 1], [token])
        tree.add([depth - 1], [NOBODY])
        row = rows.shallow((*TEXT, *tokens[: depth + 1]), 1)
        with watched() as seen:
            [guess] = unseen.extend(tree, row, torch.tensor([token]).to(device))
        assert not seen.to_host
        assert_same(guess, wanted)


@elsewhere
def test_a_hybrid_looks_at_nothing_that_is_there(tmp_path: Path, device: torch.device) -> None:
    """What the text surely says comes first, as on the CPU; else the model speaks, and is believed as often as the
    tokens that were drafted from it came true."""
    drafter, text = loaded(tmp_path, "hybrid", device), (1, 2, 3, 4, 5, 6, 7, 8) * 4
    rows = Rows(SPEC.hidden_size, device=device)
    with watched() as seen:
        sure = Follower(drafter, rows).observe(text).session.guess()
        unsure = Follower(drafter, rows).observe((9, 4, 2)).session.guess()
        follower = Follower(drafter, rows).observe((9, 4, 2))
        promised = []
        for token in range(3, 30):  # Never what was drafted.
            assert follower.session.guess() is not None
            follower.extend([-1], [50])
            promised.append(follower.session._calibration.chance("fused", False, UNSEEN))  # type: ignore[attr-defined]
            follower.observe([token])
    assert sure is not None and sure.ranked[0][0] == 1
    assert unsure is not None and unsure.logits is not None
    assert promised[-1] < promised[0] / 2
    assert not seen.to_host


@elsewhere
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_penalties_for_tokens_that_the_host_does_not_know(params: SamplingParams, device: torch.device) -> None:
    """The same token with the same weight as where it knows them, one that comes twice and one of the prompt too."""
    params = replace(
        params, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, logit_bias={7: 2.0, 3: -1.0}
    )
    for seed in range(20):
        row = 2 * torch.randn(60, generator=torch.Generator().manual_seed(seed))
        likely = row.topk(4).indices.tolist()
        words = tuple((likely[3], each) for each in row.topk(6).indices[4:].tolist())
        params = replace(params, bans=Bans(words=words, ends=(likely[0],), least=7))
        proposer, generated = Proposer(params, [1, likely[0]], seed, "keyed"), [5, likely[1], 5]
        drafted = [likely[2], likely[2], likely[3]]
        [wanted] = proposer.candidates(Guess("any", row), generated, drafted, 1)
        for known in range(4):
            unseen = [torch.tensor([each]).to(device) for each in drafted[known:]]
            with watched() as seen:
                token, weight, _ = proposer.pick(Guess("any", row.to(device)), generated, drafted[:known], unseen)
            assert not seen.to_host
            assert int(token) == wanted.token and float(weight) == pytest.approx(wanted.weight)


@elsewhere
@pytest.mark.parametrize("rule", ["keyed", "rejection", "block"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_candidates_and_verdicts_are_the_cpus(params: SamplingParams, rule: Rule, device: torch.device) -> None:
    """The same tokens with the same weights are drafted, and the same of them stay."""
    chance = torch.Generator().manual_seed(9)
    for seed in range(25):
        guesses = 3 * torch.randn(4, 60, generator=chance)
        logits = torch.cat([guesses, torch.randn(1, 60, generator=chance)]) + torch.randn(5, 60, generator=chance)
        found = []
        for place in (torch.device("cpu"), device):
            proposer = Proposer(params, [1, 2], seed, rule)
            draft: list[Candidate] = []
            for row in guesses.to(place):
                unseen = [torch.tensor([each.token]).to(place) for each in draft]
                with watched() as seen:
                    draft += proposer.candidates(Guess("any", row), [5], [each.token for each in draft], 1)
                assert len(seen.to_host) == (place == DEVICE)
                with watched() as seen:
                    token, weight, chances = proposer.pick(Guess("any", row), [5], [], unseen)
                assert not seen.to_host and (chances is None) == (draft[-1].chances is None)
                assert int(token) == draft[-1].token and float(weight) == pytest.approx(draft[-1].weight)
            ranks = proposer.candidates(Guess("any", guesses[0].to(place)), [5], [], 4)
            there = logits.to(place)
            with watched() as seen:
                verdict = judged(there, draft, rule, params, [1, 2], [5], seed)
            assert len(seen.to_host) == (place == DEVICE)
            found.append(([(each.token, each.weight) for each in (*draft, *ranks)], verdict))
        assert [each for each, _ in found[1][0]] == [each for each, _ in found[0][0]]
        assert [each for _, each in found[1][0]] == pytest.approx([each for _, each in found[0][0]], abs=1e-6)
        assert found[1][1] == found[0][1]


@elsewhere
@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SamplingParams(repetition_penalty=1.4)])
def test_a_trees_verdict_waits_once(params: SamplingParams, device: torch.device) -> None:
    """Whatever stays of it: what follows every node crosses together."""
    parents, tokens = (-1, -1, 0, 1, 2, 2), (3, 4, 5, 6, 7, 8)
    chance, tree = torch.Generator().manual_seed(2), Tree(2)
    tree.add(parents, tokens)
    for seed in range(20):
        logits = torch.randn(7, 40, generator=chance)
        for row, likely in zip(logits, (3, 5, 6, 7, 9, 9, 9), strict=True):
            row[likely] += 4 * (seed % 2)
        choosers = [Chooser(params, [1, 2], seed) for _ in range(2)]
        with watched() as seen:
            there = choosers[0].judge(logits.to(device), tree, range(6), (), "keyed")
        assert len(seen.to_host) == (device == DEVICE)
        assert there == choosers[1].judge(logits, tree, range(6), (), "keyed")
