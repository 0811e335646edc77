"""Training by the clock: the learning rate follows the share of the given minutes that has passed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor

from service.bars import Bars

from . import checkpoint
from .batches import Batch, batches
from .network import Network, Shape
from .weights import flat_gradients, fresh_weights, hand_out, joined_names, load_into


@dataclass(frozen=True)
class Plan:
    """Everything a training run is told."""

    out: Path
    minutes: float
    shape: Shape
    rows: int = 8
    length: int = 512
    workers: int = 1
    device: str = "cpu"
    seed: int = 0
    resume: bool = False
    compiled: bool = True
    save_every: float = 180.0
    matrix_rate: float = 5e-3
    other_rate: float = 3e-3
    port: int = 29511


WARMUP_STEPS = 60
DECAY_FROM = 0.45


def rate_factor(step: int, passed: float) -> float:
    """The learning rate as a share of its peak: a short warm-up, a level stretch, a straight way down to zero."""
    level = 1.0 if passed < DECAY_FROM else max(0.0, (1.0 - passed) / (1.0 - DECAY_FROM))
    return min(1.0, (step + 1) / WARMUP_STEPS) * level


def make_optimizers(weights: dict[str, Tensor], plan: Plan) -> dict[str, torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    matrices = [value for name, value in weights.items() if value.ndim == 2 and "embed" not in name]
    others = [value for name, value in weights.items() if value.ndim == 1 or "embed" in name]
    return {
        "matrices": torch.optim.Muon(matrices, lr=plan.matrix_rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        "others": torch.optim.AdamW(others, lr=plan.other_rate, betas=(0.9, 0.98), weight_decay=0.0),
    }


def on_device(batch: Batch, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tensors of a batch where the network is."""
    return tuple(part.to(device) for part in (batch.rows, batch.places, batch.targets, batch.weights))  # type: ignore[return-value]


def worker(rank: int, plan: Plan) -> None:
    """One worker's part of the training; worker 0 also shows progress and writes checkpoints."""
    torch.manual_seed(plan.seed)
    if plan.workers > 1:
        torch.set_num_threads(1)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(plan.port))
        dist.init_process_group("gloo", rank=rank, world_size=plan.workers)
    tokenizer = Tokenizer.from_file(str(plan.out / "tokenizer.json"))
    names = joined_names(plan.shape)
    kept: dict[str, Tensor] = {}
    progress = checkpoint.Progress()
    weights = fresh_weights(plan.shape, plan.seed)
    if plan.resume and (plan.out / checkpoint.FILE).exists():
        loaded, kept, progress = checkpoint.load(plan.out)
        # The optimizers count their parameters, so the order of the names must be that of the first run.
        weights = {name: loaded[name] for name in weights}
    weights = {name: value.to(plan.device) for name, value in weights.items()}
    optimizers = make_optimizers(weights, plan)
    for prefix, optimizer in optimizers.items():
        if kept:
            checkpoint.restore_optimizer(prefix, optimizer, kept)
    network = Network(plan.shape, plan.length).to(plan.device, torch.bfloat16)
    load_into(network, weights, names)
    step_loss = torch.compile(network) if plan.compiled else network
    progress.runs += 1
    # A run that goes on draws new samples, from a stream of its own.
    stream = batches(tokenizer, plan.seed * 1000 + progress.runs, rank, plan.workers, 0, plan.rows, plan.length)
    before, last_saved, average = time.monotonic(), time.monotonic(), 0.0
    seconds = round(plan.minutes * 60)
    with Bars(Console(stderr=True, quiet=rank > 0)) as bars, bars.training(seconds, "seconds") as told:
        told(round(progress.seconds), "")
        while progress.seconds < plan.minutes * 60:
            loss = step_loss(*on_device(next(stream), plan.device))
            loss.backward()
            now = time.monotonic()
            flat = flat_gradients(network, [loss.item(), progress.seconds + now - before])
            before = now
            if plan.workers > 1:
                # Loss and clock travel with the gradients, so that all workers take the very same step.
                dist.all_reduce(flat)
                flat /= plan.workers
            mean_loss, progress.seconds = flat[-2].item(), flat[-1].item()
            network.zero_grad(set_to_none=True)
            hand_out(flat, network, weights, names)
            factor = rate_factor(progress.step, progress.seconds / (plan.minutes * 60))
            for prefix, optimizer in optimizers.items():
                for group in optimizer.param_groups:
                    group["lr"] = factor * (plan.matrix_rate if prefix == "matrices" else plan.other_rate)
                optimizer.step()
            load_into(network, weights, names)
            progress.step += 1
            progress.tokens += plan.rows * plan.length * plan.workers
            average = mean_loss if progress.step == 1 or not average else 0.98 * average + 0.02 * mean_loss
            if rank == 0:
                note = f"step {progress.step} loss {average:.3f} {progress.tokens / 1e6:.2f} Mtokens"
                told(round(progress.seconds), note)
                if time.monotonic() - last_saved > plan.save_every:
                    checkpoint.save(plan.out, weights, optimizers, progress)
                    last_saved = time.monotonic()
    if rank == 0:
        checkpoint.save(plan.out, weights, optimizers, progress)
    if plan.workers > 1:
        dist.destroy_process_group()


def train(plan: Plan) -> None:
    """Train with one worker here or with several beside one another."""
    if plan.workers == 1:
        worker(0, plan)
    else:
        processes.spawn(worker, args=(plan,), nprocs=plan.workers)  # type: ignore[attr-defined,no-untyped-call]
