"""The share of right answers for each skill, and the loss on answers the model has not seen.

``python -m models.demo.recipe.evaluate [FOLDER] [--scale 5] [--wrong]``
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from .corpus import HELDOUT_COUNTS, heldout_set, row
from .judge import right
from .sample import Message
from .tokenizer import END, encode_chat, prompt_ids, special

EVALUATION_SEED = 777
"""Draws more held-out prompts than the frozen file has, for steadier figures."""


class Speaker:
    """The published model with its tokenizer, answering greedily."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.end = special(self.tokenizer, END)

    @torch.inference_mode()
    def answer(self, messages: list[Message], longest: int = 220) -> str:
        """What the model says next in a conversation."""
        ids = torch.tensor([prompt_ids(self.tokenizer, messages)])
        past, said = None, list[int]()
        while len(said) < longest:
            out = self.model(input_ids=ids, past_key_values=past, use_cache=True, logits_to_keep=1)
            token = int(out.logits[0, -1].argmax())
            if token == self.end:
                break
            said.append(token)
            past, ids = out.past_key_values, torch.tensor([[token]])
        return str(self.tokenizer.decode(said))

    @torch.inference_mode()
    def loss(self, messages: list[Message]) -> tuple[float, int]:
        """The summed loss on the last message's tokens, and their number."""
        ids, _ = encode_chat(self.tokenizer, messages)
        start = len(prompt_ids(self.tokenizer, messages[:-1]))
        logits = self.model(input_ids=torch.tensor([ids])).logits[0, start - 1 : -1]
        target = torch.tensor(ids[start:])
        return float(torch.nn.functional.cross_entropy(logits, target, reduction="sum")), len(target)


def rows_of(folder: Path) -> list[dict[str, object]]:
    """The frozen test rows of a published folder."""
    return [json.loads(line) for line in (folder / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]


def more_rows(scale: int) -> list[dict[str, object]]:
    """Further held-out rows, ``scale`` times as many as the frozen ones."""
    counts = {skill: count * scale for skill, count in HELDOUT_COUNTS.items()}
    return [row(sample, number) for number, sample in enumerate(heldout_set(counts, EVALUATION_SEED))]


@dataclass
class Figures:
    """Right answers, all answers, and loss with the tokens it is summed over."""

    good: int = 0
    count: int = 0
    loss: float = 0.0
    tokens: int = 0

    def add(self, other: Figures) -> None:
        """Count another's figures in."""
        self.good += other.good
        self.count += other.count
        self.loss += other.loss
        self.tokens += other.tokens


def measure(folder: Path, rows: list[dict[str, object]]) -> tuple[dict[str, Figures], list[str]]:
    """The figures of each skill and of all together, and a note on each wrong answer."""
    speaker = Speaker(folder)
    found: dict[str, Figures] = {}
    wrong: list[str] = []
    for one in rows:
        messages, want = one["messages"], one["want"]
        assert isinstance(messages, list) and isinstance(want, list)
        said = speaker.answer(messages)
        good = right(said, str(one["check"]), want)
        loss, tokens = speaker.loss([*messages, {"role": "assistant", "content": str(one["answer"])}])
        found.setdefault(str(one["skill"]), Figures()).add(Figures(int(good), 1, loss, tokens))
        if not good:
            wrong.append(f"{one['id']}: {messages[-1]['content']!r}\n   said {said!r}\n   not  {one['answer']!r}")
    every = Figures()
    for one_skill in found.values():
        every.add(one_skill)
    return {**found, "all": every}, wrong


def report(folder: Path, limit: int | None = None, scale: int = 0, show_wrong: bool = False) -> str:
    """A table of right answers and loss for each skill; ``scale`` draws more rows in place of the frozen ones."""
    rows = more_rows(scale) if scale else rows_of(folder)
    if limit:
        rows = rows[:: max(1, len(rows) // limit)]
    found, wrong = measure(folder, rows)
    lines = ["skill        right    of   loss a token"]
    for skill, one in found.items():
        lines.append(f"{skill:12} {one.good / one.count:6.1%} {one.count:5d}   {one.loss / one.tokens:.3f}")
    return "\n".join(lines + (wrong if show_wrong else []))


def main() -> None:
    """Print the table for a published folder."""
    parser = argparse.ArgumentParser(description="Share of right answers of the demo model for each skill.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("models/demo"))
    parser.add_argument(
        "--scale", type=int, default=0, help="draw this many times more prompts than the frozen file has"
    )
    parser.add_argument("--wrong", action="store_true", help="show every wrong answer")
    given = parser.parse_args()
    print(report(given.folder, scale=given.scale, show_wrong=given.wrong))


if __name__ == "__main__":
    main()
