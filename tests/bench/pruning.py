"""What leaving attention heads out costs and saves, by each way to choose them, at as many heads and so at equal time.

    make bench-pruning [ARGS="--model FOLDER --text FILE"]

Loss: nats a token above the whole model's, over texts that the model is about: for the demo model held-out answers, for
others a file. Time: one pass of a prompt, beside the whole model's in the same minute. Everything in float32.
`make bench-accuracy ARGS=--pruned` counts right answers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from bench.page import machine, table
from checkpoints import DEMO
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

from device_agent.chain.local_pruning import LOOKED_AT
from device_agent.planning.pruning import pruned_sets, work_share
from models.demo.recipe.evaluate import more_rows
from models.demo.recipe.tokenizer import encode_chat, prompt_ids
from split_model.checkpoint import Checkpoint
from split_model.pruning.calibration import calibrate, written
from split_model.pruning.importance import ROWS
from split_model.pruning.kept import HeadSets
from split_model.pruning.orders import MEASURES, by_chance, by_magnitude, by_scores, raw_scores
from split_model.pruning.retrieval import ImportanceStore
from split_model.pruning.stack import PrunedStacks
from split_model.pruning.watched import Layers
from split_model.reference import Reference
from split_model.stack import Span, Stack

SHARES = (0.0625, 0.125, 0.1875, 0.25, 0.375, 0.5)
PROMPT_ROWS, REPEATS = 256, 5
TEXT_TOKENS, TEXTS = 250, 24
SEEDS = 3
"""Orders by chance, whose losses are averaged."""

Order = Callable[[Sequence[int]], Sequence[tuple[int, int]]]
"""The order in which a text's heads go."""


@dataclass(frozen=True)
class Text:
    """Ids, and where what is judged begins."""

    ids: list[int]
    start: int


class Bench:
    """One model and its texts; its ways once it is calibrated."""

    def __init__(self, path: Path, text: Path | None, texts: int = TEXTS) -> None:
        self.model, self._checkpoint = Reference.load(path), Checkpoint.open(path)
        self.spec = self.model.spec
        self.tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        self._first = self.spec.bos_token_id or 0
        self._layers = Layers(self.model.embedding, (self.model.stack,), self.model.head)
        self.without = PrunedStacks(self.model.stack, self._checkpoint, 1 << 28)
        self.texts = _answers(self.tokenizer) if text is None else _pieces(self.tokenizer, text, self._first, texts)

    def calibrate(self) -> None:
        """Find out which heads matter, and have all ways to leave some out."""
        began = time.perf_counter()
        found = calibrate(self._layers, written(self._layers, self._first))
        self.calibrated_s = time.perf_counter() - began
        self.means = found.means
        self.with_means = PrunedStacks(self.model.stack, self._checkpoint, 1 << 28, found.means)
        measured, sizes = tuple(found.order), by_magnitude(self._checkpoint)

        def scored(by: str) -> Order:
            def order(ids: Sequence[int]) -> Sequence[tuple[int, int]]:
                return self.scored(ids, ImportanceStore(tau=-1.0), by)

            return order

        chances = [by_chance(self.spec.num_layers, self.spec.num_heads, seed) for seed in range(SEEDS)]
        self.ways: dict[str, tuple[PrunedStacks, list[Order]]] = {
            "effect, means": (self.with_means, [lambda ids: measured]),
            "effect, nothing": (self.without, [lambda ids: measured]),
            "liscore, means": (self.with_means, [scored("liscore")]),
            "liscore": (self.without, [scored("liscore")]),
            "liscore-literal": (self.without, [scored("liscore-literal")]),
            "magnitude": (self.without, [lambda ids: sizes]),
            "random": (self.without, [lambda ids, each=each: each for each in chances]),  # type: ignore[misc]
        }

    def scored(
        self, ids: Sequence[int], store: ImportanceStore, by: str = "liscore", most: int = ROWS
    ) -> Sequence[tuple[int, int]]:
        """The order in which a text's heads go, by scores of its first rows: those of heads alike are in the store."""
        return by_scores(self.scores(ids, store, by, most))

    def scores(
        self, ids: Sequence[int], store: ImportanceStore, by: str = "liscore", most: int = ROWS
    ) -> list[list[float]]:
        """Of each layer and head, by so many of a text's first rows."""
        return raw_scores(self._layers, ids[:LOOKED_AT], store, MEASURES[by], most=most)

    def read_s(self, ids: Sequence[int]) -> float:
        """What these first rows take without being scored."""
        began = time.perf_counter()
        self._run(self.model.stack, ids[:LOOKED_AT])
        return time.perf_counter() - began

    def sets(self, order: Sequence[tuple[int, int]], share: float) -> HeadSets:
        """Of all layers where this share of all heads is left out."""
        spec = self.spec
        return pruned_sets(order, round(share * len(order)), spec.num_layers, spec.num_heads, spec.heads_per_group)

    def loss(self, choose: Callable[[Sequence[int]], Stack]) -> float:
        """Nats a token over all texts."""
        lost = tokens = 0.0
        for text in self.texts:
            logits = self.model.head.forward(self._run(choose(text.ids), text.ids))[text.start - 1 : -1]
            lost += float(cross_entropy(logits, torch.tensor(text.ids[text.start :]), reduction="sum"))
            tokens += len(text.ids) - text.start
        return lost / tokens

    def lost(self, way: str, share: float, base: float) -> float:
        """What a way loses at a share of heads left out."""
        stacks, orders = self.ways[way]
        losses = [self.loss(lambda ids, by=by: stacks.with_heads(self.sets(by(ids), share))) for by in orders]  # type: ignore[misc]
        return statistics.mean(losses) - base

    def seconds(self, stack: Stack) -> float:
        """One pass of a prompt."""
        began = time.perf_counter()
        self._run(stack, [1] * min(PROMPT_ROWS, self.spec.max_positions))
        return time.perf_counter() - began

    def time_ratio(self, stack: Stack) -> float:
        """The time of a prompt beside the whole model's, in turns."""
        pairs = [(self.seconds(stack), self.seconds(self.model.stack)) for _ in range(REPEATS)]
        return statistics.median(own / whole for own, whole in pairs)

    def _run(self, stack: Stack, ids: Sequence[int]) -> torch.Tensor:
        rows = self.model.embedding.forward(ids)
        return stack.forward(rows, [Span(stack.new_cache(len(ids)), len(ids))])


def _answers(tokenizer: Tokenizer) -> list[Text]:
    """Held-out conversations of the demo model; the answers are judged."""
    rows, texts = more_rows(1), []
    for row in rows[:: max(1, len(rows) // TEXTS)]:
        asked: list[dict[str, str]] = row["messages"]  # type: ignore[assignment]
        ids, _ = encode_chat(tokenizer, [*asked, {"role": "assistant", "content": str(row["answer"])}])
        texts.append(Text(ids, len(prompt_ids(tokenizer, asked))))
    return texts


def _pieces(tokenizer: Tokenizer, path: Path, first: int, texts: int) -> list[Text]:
    ids = tokenizer.encode(path.read_text(encoding="utf-8")[: 20 * texts * TEXT_TOKENS]).ids
    begins = range(0, min(len(ids), texts * TEXT_TOKENS), TEXT_TOKENS)
    return [Text([first, *ids[begin : begin + TEXT_TOKENS]], 1) for begin in begins]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEMO)
    parser.add_argument("--text", type=Path, help="of the model's kind; left out: the demo model's held-out answers")
    parser.add_argument("--shares", type=float, nargs="*", default=SHARES, help="of all heads that are left out")
    given = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(given.model, given.text)
    bench.calibrate()
    base = bench.loss(lambda ids: bench.model.stack)
    print(f"{given.model.name} on {machine()}: {base:.3f} nats a token over {len(bench.texts)} texts, ", end="")
    print(f"calibrated in {bench.calibrated_s:.0f} s. Nats a token more, by share of heads left out.\n", flush=True)
    lines = []
    for share in given.shares:
        sets = bench.sets(bench.ways["effect, means"][1][0]([]), share)
        ratio = bench.time_ratio(bench.with_means.with_heads(sets))
        losses = {way: bench.lost(way, share, base) for way in bench.ways}
        shown = [f"{each:.3f}" for each in losses.values()]
        lines.append([f"{share:.1%}", f"{1 - work_share(sets):.1%}", f"{ratio:.2f}", *shown])
    print(table("heads out | their work | time | " + " | ".join(bench.ways), lines), flush=True)


if __name__ == "__main__":
    main()
