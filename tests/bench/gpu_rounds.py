"""An agent's rounds on a device, plain and drafted, beside the CPU's: whether answers are the same, and the time."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from bench.page import table

from device_agent.chain.chain import Chain
from device_agent.chain.local import LocalSubmodel
from device_agent.chain.model_ends import DeviceParts
from device_agent.sharing.compute import Compute
from device_agent.speculative.drafters import load_drafters
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay
from drafting.choosing import Chooser
from service.draft_settings import DraftSettings
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams
from split_model.slices import middle_slice
from split_model.stack import Stack

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
SPLIT, REPEATS = 2, 5
PROMPT = list(range(40, 104))
KINDS = ("none", "fused", "hybrid", "medusa", str(DEMO))
ANSWERS = {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=0.8, top_p=0.95, seed=3)}
FIXED = DraftSettings(draft_length="fixed", draft_threshold=0.3, draft_cap=6)


async def rounds(device: torch.device, tokens: int) -> str:
    """Measures answers of so many tokens there and on the CPU, the first of each kind not counted, and tells."""
    here, there = await _measured(torch.device("cpu"), tokens), await _measured(device, tokens)
    lines = []
    for (kind, answer), (wanted, cpu_s) in here.items():
        found, took_s = there[kind, answer]
        same = next((at for at in range(tokens) if found[at] != wanted[at]), tokens)
        name = "the model itself" if kind == str(DEMO) else kind
        lines.append([name, answer, f"{same} of {tokens}", f"{1e3 * cpu_s:.2f}", f"{1e3 * took_s:.2f}"])
    return "Rounds of an agent:\n\n" + table(["drafter", "answer", "same tokens", "CPU, ms a token", "there"], lines)


async def _measured(device: torch.device, tokens: int) -> dict[tuple[str, str], tuple[list[int], float]]:
    """By drafter and kind of answer: its tokens, and the seconds that one takes in the median."""
    compute, checkpoint = Compute(), Checkpoint.open(DEMO)
    parts = DeviceParts.load(checkpoint, SPLIT, 0, torch.float32, device)
    middle = Stack.load(checkpoint, middle_slice(checkpoint.spec, SPLIT, 0), torch.float32, device)
    chain = Chain(parts, LocalSubmodel(middle, compute), compute, 0)
    drafters = load_drafters(KINDS, DEMO / "drafters", checkpoint, SPLIT, torch.float32, parts)
    found = {}
    for name, kind in zip(drafters.names, KINDS, strict=False):
        for answer, params in ANSWERS.items():
            took = []
            for _ in range(1 + REPEATS):
                way = DraftingWay.of(drafters.get(name), FIXED)
                session = chain.open(len(PROMPT) + tokens, len(PROMPT), drafter=way.drafter)
                chooser = Chooser(params, PROMPT, params.seed or 0, max_tokens=tokens)
                began = perf_counter()
                said = [chosen.token async for chosen in Generation(session, chooser, way).run()]
                took.append((perf_counter() - began) / tokens)
                session.close()
            found[kind, answer] = said, median(took[1:])
    compute.stop()
    return found
