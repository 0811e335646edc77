"""What is trained is what drafts: the differentiable networks and the drafters that run their weights say the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from drafted_nodes import extend
from tiny_drafters import DIGEST, SPLIT, adapter_weights, head_weights, medusa_weights, random_head, tiny_spec

from drafting.adapter import AdapterDrafter
from drafting.distill.network import Adapter, FrozenHead, Fused, Medusa
from drafting.distill.trainable import Rows
from drafting.drafter import Guess
from drafting.drafter_file import write_drafter
from drafting.medusa import MedusaDrafter

SPEC = tiny_spec()
WIDTH = 14
PROMPT = 6
STEPS = 4


def assert_says(guess: Guess | None, logits: torch.Tensor) -> None:
    assert guess is not None and guess.logits is not None
    torch.testing.assert_close(guess.logits, logits, atol=1e-4, rtol=0)


def text() -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Tokens, shallow and deep rows of a text."""
    chance = torch.Generator().manual_seed(2)
    shallow, deep = torch.randn((2, WIDTH, SPEC.hidden_size), generator=chance)
    return list(range(WIDTH)), shallow, deep


def frozen_head() -> FrozenHead:
    weights = head_weights(SPEC)
    return FrozenHead(weights["norm"], weights["matrix"], SPEC.norm_eps)


@pytest.mark.parametrize(("kind", "form"), [("adapter", ""), ("fused", "keep"), ("fused", "keep-mlp")])
def test_at_every_depth_of_a_draft(tmp_path: Path, kind: str, form: str) -> None:
    """A draft from any position, its prompt rows without deep rows, gives at each depth what training saw there."""
    tokens, shallow, deep = text()
    weights = adapter_weights(SPEC, kind, form)
    chance = torch.Generator().manual_seed(0)
    rank = weights["up"].shape[0] if form == "keep-mlp" else 0
    network = Adapter(SPEC, chance) if kind == "adapter" else Fused(SPEC, chance, rank)
    network.load_state_dict(weights)
    known = torch.arange(WIDTH)[None] >= PROMPT
    head = frozen_head()
    with torch.no_grad():
        outs = network.drafted(Rows(shallow[None], deep[None], known), STEPS)
        logits = [head.logits(head.normed(out))[0] for out in outs]

    path = tmp_path / "drafter.safetensors"
    trained = {name: each.detach() for name, each in network.named_parameters()}
    write_drafter(path, kind, DIGEST, SPLIT, {}, trained)
    drafter = AdapterDrafter.load(path, SPEC, DIGEST, SPLIT, torch.float32, random_head(SPEC), kind)
    for root in range(PROMPT, WIDTH - STEPS):
        session = drafter.open(WIDTH)
        end = root + 1
        session.observe(tokens[:PROMPT], shallow[:PROMPT], None)
        session.observe(tokens[PROMPT:end], shallow[PROMPT:end], deep[PROMPT - 1 : root])
        assert_says(session.guess(), logits[0][root])
        for depth in range(1, STEPS):
            place = root + depth
            guess = extend(session, [depth - 2], tokens[place : place + 1], shallow[place : place + 1])[0]
            assert_says(guess, logits[depth][place])


def test_medusas_heads(tmp_path: Path) -> None:
    """Each head of the network is the head of that depth."""
    tokens, shallow, deep = text()
    head = frozen_head()
    network = Medusa(head)
    network.load_state_dict(medusa_weights(SPEC))
    path = tmp_path / "medusa.safetensors"
    trained = {name: each.detach() for name, each in network.named_parameters()}
    write_drafter(path, "medusa", DIGEST, SPLIT, {}, trained)
    session = MedusaDrafter.load(path, SPEC, DIGEST, SPLIT, torch.float32, random_head(SPEC)).open(WIDTH)
    session.observe(tokens, shallow, deep[:-1])
    with torch.no_grad():
        wanted = [each(head.normed(deep[-2])) for each in network.heads]
    guesses = [session.guess(), *extend(session, (-1, 0, 1), (1, 2, 3), shallow[:3])]
    for guess, logits in zip(guesses, wanted, strict=True):
        assert_says(guess, logits)
