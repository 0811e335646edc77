"""In which order a model's heads are left out, found by running all of its layers here."""

from __future__ import annotations

from dataclasses import replace

import structlog
import torch

from device_agent.chain.pass_costs import Clock
from split_model.checkpoint import Checkpoint
from split_model.pruning.calibration import TOKENS, Calibration, Head, calibrate, most_stages, written
from split_model.pruning.orders import PruneBy, by_chance, by_magnitude, by_scores, raw_scores
from split_model.pruning.retrieval import ImportanceStore
from split_model.pruning.watched import Layers
from split_model.spec import ModelSpec

CALIBRATED_WITHIN_S = 90.0
"""Effects are measured in fewer stages where more would take longer, and not at all where one would."""

WRITTEN_WITHIN_S = 30.0
"""Texts to calibrate with end there, however short."""

log = structlog.get_logger()


def order_by(by: PruneBy, checkpoint: Checkpoint) -> tuple[Head, ...]:
    """The order of a way to choose heads that has one for all prompts and needs no calibration; else ()."""
    if by == "random":
        return by_chance(checkpoint.spec.num_layers, checkpoint.spec.num_heads)
    return by_magnitude(checkpoint) if by == "magnitude" else ()


def calibrated(layers: Layers, spec: ModelSpec, clock: Clock) -> Calibration:
    """By effect, as far as there is time for that."""
    first = spec.bos_token_id if spec.bos_token_id is not None else next(iter(spec.eos_token_ids), 0)
    log.info("finding out which heads matter; this is done once for a model", up_to_s=CALIBRATED_WITHIN_S)
    began = clock()
    tokens = min(TOKENS, spec.max_positions)
    ids = written(layers, first, tokens=tokens, enough=lambda: clock() - began > WRITTEN_WITHIN_S)
    began = clock()
    found = calibrate(layers, ids, stages=0)
    stages = most_stages(layers.count * spec.num_heads, clock() - began, CALIBRATED_WITHIN_S)
    if stages:
        return calibrate(layers, ids, stages)
    log.warning("heads are scored, not measured: the model is too large to leave each out once", lossy=True)
    scores = [raw_scores(layers, text.tolist(), ImportanceStore(tau=-1.0), "variance") for text in ids]
    return replace(found, order=by_scores(torch.tensor(scores).mean(0).tolist()))
