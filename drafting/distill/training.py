"""Training of one drafter on cached features."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from drafting.distill import checkpoint
from drafting.distill.batches import TrainingBatch, assembled, places, planned
from drafting.distill.features import FeatureFiles
from drafting.distill.losses import LOSSES, Compared, cross_entropy, entropy, overlap
from drafting.distill.network import Adapter, Drafter, FrozenHead, Fused, Medusa
from drafting.distill.trainable import later

DEPTH_WEIGHT = 0.8
WARMUP = 0.03
CLIP = 1.0


@dataclass(frozen=True)
class TrainingPlan:
    """Everything a training run is told.

    Attributes:
        loss: a key of `LOSSES`; Medusa's heads have no rows to compare and are always trained with cross entropy.
        unroll: depths trained, weighted 0.8 ** depth; only a fused drafter has more than one.
        tokens: to be read in all, filling not counted; the rate ends at zero with them.
        rate: peak learning rate of AdamW; None: 0.5 / hidden size.
    """

    loss: str = "lk-hybrid"
    unroll: int = 3
    tokens: int = 4_000_000
    batch_tokens: int = 1024
    rate: float | None = None
    seed: int = 0
    save_every_s: float = 60.0


@dataclass
class Progress:
    """How far training has come; `curve` has (tokens, loss, overlap at depth 1) every few steps."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    curve: list[tuple[int, float, float]] = field(default_factory=list)


CURVE_EVERY = 10


def train(
    network: Drafter,
    head: FrozenHead,
    files: FeatureFiles,
    plan: TrainingPlan,
    folder: Path,
    told: Callable[[Progress], None],
) -> Progress:
    """Trains `network` in place, from the checkpoint in `folder` where there is one of this very plan.

    told: called at first and after every step.
    """
    rate = plan.rate if plan.rate is not None else 0.5 / files.hidden_size
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    progress = Progress()
    identity = {"plan": asdict(plan), "kind": network.kind, "form": network.form, "key": files.key.__dict__}
    found = checkpoint.load(folder, identity)
    if found is not None:
        progress = Progress(**found.progress)
        checkpoint.restore(network, optimizer, found.tensors)
    told(progress)
    unit = unit_of(files)
    saved = time.monotonic()
    epoch, groups, first = -1, list[list[int]](), 0
    while progress.tokens < plan.tokens:
        began = time.monotonic()
        while progress.step - first >= len(groups):
            first += len(groups)
            epoch += 1
            groups = planned(files.lengths, plan.batch_tokens, plan.seed, epoch)
        group = groups[progress.step - first]
        batch = assembled(files, group, random.Random(f"{plan.seed}-{progress.step}"), unit)
        noted = (progress.step + 1) % CURVE_EVERY == 0
        loss, shared = step_loss(network, head, batch, plan, noted)
        if loss.requires_grad:  # Answers of one token teach heads for later ones nothing.
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            for settings in optimizer.param_groups:
                settings["lr"] = rate * rate_share(progress.tokens / plan.tokens)
            optimizer.step()
        progress.step += 1
        progress.tokens += sum(files.lengths[number] for number in group)
        if noted:
            progress.curve.append((progress.tokens, float(loss.detach()), float(shared)))
        progress.seconds += time.monotonic() - began
        if time.monotonic() - saved > plan.save_every_s or progress.tokens >= plan.tokens:
            checkpoint.save(folder, network, optimizer, asdict(progress), identity)
            saved = time.monotonic()
        told(progress)
    network.in_rows_of(unit)
    return progress


def unit_of(files: FeatureFiles) -> float:
    """The root mean square of the shallow rows of the first documents."""
    rows = torch.cat([files[number].shallow.float() for number in range(min(len(files), 64))])
    return float(rows.square().mean().sqrt())


def rate_share(passed: float) -> float:
    """The learning rate as a share of its peak: a short rise, then half a cosine down to zero."""
    if passed < WARMUP:
        return 0.02 + 0.98 * passed / WARMUP
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (passed - WARMUP) / (1 - WARMUP)))


def step_loss(
    network: Drafter, head: FrozenHead, batch: TrainingBatch, plan: TrainingPlan, noted: bool = True
) -> tuple[Tensor, Tensor]:
    """The loss of a batch, and where `noted` the mean overlap with the model's distribution at depth 1."""
    if isinstance(network, Medusa):
        return _medusa_loss(network, head, batch, noted)
    steps = plan.unroll if isinstance(network, Fused) else 1
    return _row_loss(network, head, batch, plan.loss, steps, noted)


def _row_loss(
    network: Adapter | Fused, head: FrozenHead, batch: TrainingBatch, name: str, steps: int, noted: bool
) -> tuple[Tensor, Tensor]:
    at_first = places(batch.own, 0)
    with torch.no_grad():
        target_normed = head.normed(batch.rows.deep[at_first])
        log_p = head.logits(target_normed).log_softmax(-1)
        p, of_p = log_p.exp(), entropy(log_p)
    total = torch.zeros(())
    weight = 0.0
    shared = torch.zeros(())
    for depth, out in enumerate(network.drafted(batch.rows, steps)):
        here = places(batch.own, depth)
        chosen = here[at_first]
        if not chosen.any():
            break
        normed = head.normed(out[here])
        log_q = head.logits(normed).log_softmax(-1)
        of_model = (target_normed, p, of_p) if depth == 0 else (target_normed[chosen], p[chosen], of_p[chosen])
        compared = Compared(normed, of_model[0], log_q, of_model[1], of_model[2])
        total = total + DEPTH_WEIGHT**depth * LOSSES[name](compared)
        weight += DEPTH_WEIGHT**depth
        if noted and depth == 0:
            with torch.no_grad():
                shared = overlap(log_q, p).mean()
    return total / max(weight, 1e-9), shared


def _medusa_loss(network: Medusa, head: FrozenHead, batch: TrainingBatch, noted: bool) -> tuple[Tensor, Tensor]:
    """Head J at position t is taught the model's distribution of token t + 2 + J, given the text up to there."""
    normed = head.normed(batch.rows.deep)
    at_first = places(batch.own, 0)
    total = torch.zeros(())
    weight = 0.0
    shared = torch.zeros(())
    with torch.no_grad():
        p = head.logits(normed[at_first]).softmax(-1)
    for number, medusa in enumerate(network.heads):
        # A row t knows its deep row if t + 1 is own; it is answered by the model's row at t + 1 + number.
        here = places(batch.own, number + 1)
        chosen = here[at_first]
        if not chosen.any():
            break
        log_q = medusa(later(normed, number + 1)[here]).log_softmax(-1)
        total = total + DEPTH_WEIGHT**number * cross_entropy(log_q, p[chosen])
        weight += DEPTH_WEIGHT**number
        if noted and number == 0:
            with torch.no_grad():
                shared = overlap(log_q, p[chosen]).mean()
    return total / max(weight, 1e-9), shared
