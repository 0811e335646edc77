"""The mixture of all skills: an endless, repeatable stream of training samples, and the frozen test set."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from . import chat, questions, rephrase, stories, summaries, sums
from .sample import Maker, Sample, is_heldout, weighted

MAKERS: dict[str, Maker] = {
    stories.SKILL: stories.make,
    questions.SKILL: questions.make,
    summaries.SKILL: summaries.make,
    sums.SKILL: sums.make,
    rephrase.SKILL: rephrase.make,
    chat.SKILL: chat.make,
}
MIXTURE = [(12, "stories"), (80, "questions"), (12, "summaries"), (30, "sums"), (30, "rephrase"), (20, "chat")]
"""How many of a hundred or so samples come from each skill; sums are short, so they need many."""

HELDOUT_COUNTS = {"stories": 12, "questions": 24, "summaries": 12, "sums": 20, "rephrase": 16, "chat": 16}
HELDOUT_SEED = 20240


def training_sample(rng: random.Random) -> Sample:
    """One sample from the training side."""
    while True:
        sample = MAKERS[weighted(rng, MIXTURE)](rng)
        # Sums hold out single pairs by themselves, wherever they stand in a conversation.
        if sample.skill == sums.SKILL or not any(map(is_heldout, [sample.key, *sample.also])):
            return chat.around(rng, sample) if sample.skill != chat.SKILL and rng.random() < 0.12 else sample


def training_stream(seed: int, start: int = 0) -> Iterator[Sample]:
    """Training samples without end; sample ``n`` depends on the seed and on ``n`` only."""
    number = start
    while True:
        yield training_sample(random.Random(f"train-{seed}-{number}"))
        number += 1


def heldout_sample(skill: str, seed: int | str) -> Sample:
    """One sample from the held-out side."""
    rng = random.Random(f"heldout-{skill}-{seed}")
    if skill == sums.SKILL:
        return sums.make(rng, heldout=True)
    while True:
        sample = MAKERS[skill](rng)
        if is_heldout(sample.key) or any(map(is_heldout, sample.also[-1:])):
            return sample


def heldout_set(counts: dict[str, int] | None = None, seed: int = HELDOUT_SEED) -> list[Sample]:
    """The test set: for each skill a number of held-out samples with different prompts."""
    chosen: list[Sample] = []
    for skill, count in (counts or HELDOUT_COUNTS).items():
        seen: set[str] = set()
        number = 0
        while len(seen) < count:
            sample = heldout_sample(skill, f"{seed}-{number}")
            number += 1
            if sample.key not in seen:
                seen.add(sample.key)
                chosen.append(sample)
    return chosen


def row(sample: Sample, number: int) -> dict[str, object]:
    """One line of the held-out file."""
    return {
        "id": f"{sample.skill}-{number:03d}",
        "skill": sample.skill,
        "messages": sample.prompt,
        "answer": sample.answer,
        "check": sample.check,
        "want": sample.want,
    }


def write_heldout(path: Path) -> None:
    """Write the frozen test set as one JSON object a line."""
    rows = [row(sample, number) for number, sample in enumerate(heldout_set())]
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows), encoding="utf-8")
