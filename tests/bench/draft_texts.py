"""What drafters are measured on: prompts, and what transformers says to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from checkpoints import DATA, DEMO
from oracle import oracle_logits, oracle_model
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar

from device_agent.answering.tokenizer import Tokenizer
from split_model.checkpoint import Checkpoint
from wire.request_messages import ChatTurn

STORIES = DATA / "text" / "tinystories_sample.txt"
BEGINNINGS = ("Once upon a time", "One day, ")
SETS = ("alpaca_80", "sharegpt_user_turns", "spec_bench")
"""Prompts that the demo model was not made for."""

LONGEST = 256
"""Tokens of a prompt of these sets."""


@dataclass(frozen=True)
class Text:
    """A prompt, what kind it is, and the greedy answer to it, its end token included."""

    kind: str
    prompt: tuple[int, ...]
    truth: tuple[int, ...]


def end_ids(model: Path) -> frozenset[int]:
    """The tokens that end an answer of this model."""
    return frozenset(Checkpoint.open(model).spec.eos_token_ids)


def held_out(tokens: int, every: int = 1) -> list[Text]:
    """The demo model's held-out prompts, or of each skill one in ``every``."""
    lines = [json.loads(line) for line in (DEMO / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]
    skills: dict[str, int] = {}
    chosen = []
    for line in lines:
        skill = line["skill"]
        if skills.setdefault(skill, 0) % every == 0:
            chosen.append((skill, [ChatTurn(turn["role"], turn["content"]) for turn in line["messages"]]))
        skills[skill] += 1
    tokenizer = Tokenizer.load(DEMO, ())
    return texts_of(DEMO, [(skill, tokenizer.chat(turns)) for skill, turns in chosen], tokens)


def foreign(tokens: int, each: int) -> list[Text]:
    """The first ``each`` short ones of every set of prompts that is at hand."""
    tokenizer = Tokenizer.load(DEMO, ())
    prompts = []
    for name in SETS:
        path = DATA / "prompts" / f"{name}.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = [tokenizer.chat([ChatTurn("user", json.loads(line)["turns"][0])]) for line in lines[: 4 * each]]
        prompts += [(name, prompt) for prompt in found if len(prompt) <= LONGEST][:each]
    return texts_of(DEMO, prompts, tokens)


def stories(model: Path, tokens: int, count: int) -> list[Text]:
    """The first sentences of stories, a space behind each: pieces of these tokenizers run across spaces."""
    lines = STORIES.read_text(encoding="utf-8").splitlines()
    beginnings = [line.split(". ")[0] + ". " for line in lines if line.startswith(BEGINNINGS) and ". " in line]
    tokenizer = Tokenizer.load(model, ())
    different = list(dict.fromkeys(beginnings))[:count]
    return texts_of(model, [("stories", tokenizer.text(each)) for each in different], tokens)


def texts_of(model: Path, prompts: Sequence[tuple[str, Sequence[int]]], tokens: int) -> list[Text]:
    """Prompts, each with its kind, answered by transformers with at most ``tokens`` tokens."""
    ends = end_ids(model)
    disable_progress_bar()  # It would break ours.
    bar = tqdm(prompts, desc=f"transformers, {model.name}", leave=False)
    return [Text(kind, tuple(prompt), true_answer(model, prompt, tokens, ends)) for kind, prompt in bar]


@torch.inference_mode()
def true_answer(model: Path, prompt: Sequence[int], tokens: int, ends: frozenset[int]) -> tuple[int, ...]:
    """The greedy answer of transformers; ``ends`` may be empty."""
    output = oracle_model(model).generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=sorted(ends) or None,
        pad_token_id=0,
    )
    return tuple(output[0, len(prompt) :].tolist())


def margin(model: Path, prompt: Sequence[int], truth: Sequence[int], found: Sequence[int]) -> str:
    """Where a greedy answer leaves the true one, and how far transformers' two best logits are apart there."""
    at = next((at for at, (a, b) in enumerate(zip(truth, found, strict=False)) if a != b), min(len(truth), len(found)))
    best = oracle_logits(model, (*prompt, *truth[:at]))[-1].topk(2).values
    return f"token {at}, logits {float(best[0] - best[1]):.2g} apart"
