"""An agent's rounds on a device, plain and drafted, beside the CPU's: whether answers are the same, and the time."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch
from bench.draft_runs import answer
from bench.page import table
from checkpoints import DEMO

from device_agent.chain.chain import Chain
from device_agent.chain.local import LocalSubmodel
from device_agent.chain.model_ends import DeviceParts
from device_agent.sharing.compute import Compute
from device_agent.speculative.drafters import load_drafters
from device_agent.speculative.way import DraftingWay
from service.draft_settings import DraftSettings
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams
from split_model.slices import middle_slice
from split_model.stack import Stack

SPLIT, REPEATS = 2, 5
PROMPT = list(range(40, 104))
KINDS = ("none", "fused", "hybrid", "medusa", str(DEMO))
ANSWERS = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=0.8, top_p=0.95, seed=3)}
FIXED = DraftSettings(draft_length="fixed", draft_threshold=0.3, draft_cap=6)


async def rounds(device: torch.device, tokens: int) -> str:
    """Measures answers of so many tokens there and on the CPU, the first of each kind not counted, and tells."""
    here, there = await _measured(torch.device("cpu"), tokens), await _measured(device, tokens)
    lines = []
    for (kind, how), (wanted, cpu_s) in here.items():
        found, took_s = there[kind, how]
        same = next((at for at in range(tokens) if found[at] != wanted[at]), tokens)
        name = "the model itself" if kind == str(DEMO) else kind
        lines.append([name, how, f"{same} of {tokens}", f"{1e3 * cpu_s:.2f}", f"{1e3 * took_s:.2f}"])
    return "Rounds of an agent:\n\n" + table("drafter | answer | same tokens | CPU, ms a token | there", lines)


async def _measured(device: torch.device, tokens: int) -> dict[tuple[str, str], tuple[tuple[int, ...], float]]:
    """By drafter and kind of answer: its tokens, and the seconds that one takes in the median."""
    compute, checkpoint = Compute(), Checkpoint.open(DEMO)
    parts = DeviceParts.load(checkpoint, SPLIT, 0, torch.float32, device)
    middle = Stack.load(checkpoint, middle_slice(checkpoint.spec, SPLIT, 0), torch.float32, device)
    chain = Chain(parts, LocalSubmodel(middle, compute), compute, 0)
    drafters = load_drafters(KINDS, DEMO / "drafters", checkpoint, SPLIT, torch.float32, parts)
    found = {}
    for name, kind in zip(drafters.names, KINDS, strict=False):
        for how, params in ANSWERS.items():
            took = []
            for _ in range(1 + REPEATS):
                way = DraftingWay.of(drafters.get(name), FIXED)
                began = perf_counter()
                said = (await answer(chain, PROMPT, tokens, params, way)).tokens
                took.append((perf_counter() - began) / tokens)
            found[kind, how] = said, median(took[1:])
    compute.stop()
    return found
