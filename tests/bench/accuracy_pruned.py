"""What leaving heads out of real weights loses, by each way to choose them: right answers, and perplexity.

    make bench-accuracy ARGS=--pruned       # what has no record yet, then EdgeFormer's page

In one process, many texts in a batch, each without its own heads: their context is replaced behind the attention, which
gives what leaving them out before the projections gives. Times are those of narrower layers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

import torch
from bench.accuracy_parts import LONGEST, Figure, questions
from bench.page import machine
from bench.pruning import PROMPT_ROWS, Bench
from checkpoints import DATA, DEMO
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from models.demo.recipe.judge import right
from models.demo.recipe.tokenizer import END, prompt_ids, special
from split_model.cached_batch import CacheBatch
from split_model.kv_cache import KVCache
from split_model.pruning.kept import HeadSets
from split_model.stack import Span

PREFIX: Final = "accuracy_"
WHOLE: Final = "whole"
WAYS: Final = ("effect, means", "effect, nothing", "liscore", "liscore-literal", "magnitude", "random")
"""Of ``Bench.ways``."""

SHARES: Final = (0.125, 0.25, 0.0625)
"""Of all heads, the most wanted first."""

SMALL: Final = ("tinystories-656k", "stories-260k")
"""Real ones; another that is at hand has four heads in all."""

STORIES: Final = DATA / "text" / "tinystories_sample.txt"
WINDOWS: Final = 64
AT_ONCE: Final = 32
"""Texts in a batch: weights are read once for all of them."""


@dataclass(frozen=True)
class Cell:
    """One way at one share, of one model."""

    model: Path
    way: str = WHOLE
    out: float = 0.0

    @property
    def name(self) -> str:
        """Of its record."""
        way = self.way.replace(", ", "-")
        return f"{PREFIX}{self.model.name}_{way}" + f"_{self.out:g}" * bool(self.out)


def cells(quick: bool = False) -> list[Cell]:
    """All, those first that take seconds, then the demo model's by how much they are wanted; quick: some of these."""
    if quick:
        return [Cell(DEMO), Cell(DEMO, "effect, means", SHARES[0]), Cell(DEMO, "liscore", SHARES[0])]
    small = [path for name in SMALL if (path := DATA / "models" / name).is_dir()]
    found = []
    for models in (small, [DEMO]):
        found += [Cell(model) for model in models]
        found += [Cell(model, way, out) for out, model, way in product(SHARES, models, WAYS)]
    return found


class Without(CacheBatch):
    """Rows of texts of which each goes without some heads.

    Args:
        kept: of each span and layer the heads that it has, bool ``[spans, layers, heads]``.
        means: what stands for the others, float32 ``[layers, heads, head_dim]``; None: nothing.
    """

    def __init__(self, spans: Sequence[Span], kept: torch.Tensor, means: torch.Tensor | None) -> None:
        super().__init__(spans)
        self._kept = kept.repeat_interleave(torch.tensor([span.rows for span in spans]), 0)
        self._means = means

    def attend(self, layer: int, window: int | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        context = super().attend(layer, window, q, k, v)
        heads = context.view(len(context), self._kept.shape[2], -1)
        instead = torch.zeros(()) if self._means is None else self._means[layer].to(heads.dtype)
        return torch.where(self._kept[:, layer, :, None], heads, instead).view_as(context)


class Measured:
    """One model, and what its texts give without heads.

    Args:
        count: of questions, where it answers any, or of windows of a text.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.demo = path == DEMO
        self.bench = Bench(path, None if self.demo else STORIES, count)
        self.asked = questions(count) if self.demo else []
        self.bench.calibrate()
        self._orders: dict[str, list[Sequence[tuple[int, int]]]] = {}

    @cached_property
    def ids(self) -> list[list[int]]:
        """Of all prompts, or texts."""
        if not self.demo:
            return [text.ids for text in self.bench.texts]
        return [prompt_ids(self.bench.tokenizer, list(sample.prompt)) for sample in self.asked]

    def figure(self, cell: Cell) -> Figure:
        """Whether each answer is right, or each window's mean log-probability."""
        spec = self.bench.spec
        if cell.way == WHOLE:
            kept = torch.ones((len(self.ids), spec.num_layers, spec.num_heads), dtype=torch.bool)
        else:
            kept = torch.stack([mask(self.bench.sets(order, cell.out)) for order in self._of(cell.way)])
        stacks = None if cell.way == WHOLE else self.bench.ways[cell.way][0]
        means = self.bench.means if stacks is self.bench.with_means else None
        if not self.demo:
            return Figure("perplexity", "", tuple(self._scored(kept, means)))
        answers = self._answers(kept, means)
        good = [right(said, sample.check, sample.want) for said, sample in zip(answers, self.asked, strict=True)]
        return Figure("answers", "%", tuple(map(float, good)))

    def time_ratio(self, cell: Cell) -> float:
        """What a prompt takes beside the whole model's, its scores included."""
        if cell.way == WHOLE:
            return 1.0
        stacks, orders = self.bench.ways[cell.way]
        ids = [1] * min(PROMPT_ROWS, self.bench.spec.max_positions)
        ratio = self.bench.time_ratio(stacks.with_heads(self.bench.sets(orders[0](ids), cell.out)))
        if "liscore" in cell.way:
            began = time.perf_counter()
            orders[0](ids)
            ratio += (time.perf_counter() - began) / self.bench.seconds(self.bench.model.stack)
        return ratio

    def _of(self, way: str) -> list[Sequence[tuple[int, int]]]:
        """The order of each text; chance has several, which take turns."""
        if way not in self._orders:
            orders = self.bench.ways[way][1]
            each = tqdm(enumerate(self.ids), f"orders, {way}", len(self.ids), leave=False)
            self._orders[way] = [orders[number % len(orders)](ids) for number, ids in each]
        return self._orders[way]

    @torch.inference_mode()
    def _rows(
        self, rows: Sequence[Sequence[int]], caches: Sequence[KVCache], kept: torch.Tensor, means: torch.Tensor | None
    ) -> torch.Tensor:
        model = self.bench.model
        spans = [Span(cache, len(each)) for cache, each in zip(caches, rows, strict=True)]
        hidden = model.embedding.forward([one for each in rows for one in each])
        return model.stack.run(hidden, Without(spans, kept, means))

    def _scored(self, kept: torch.Tensor, means: torch.Tensor | None) -> Iterator[float]:
        model = self.bench.model
        for begin in range(0, len(self.ids), AT_ONCE):
            texts = self.ids[begin : begin + AT_ONCE]
            caches = [model.stack.new_cache(len(each)) for each in texts]
            hidden = self._rows(texts, caches, kept[begin : begin + AT_ONCE], means)
            for ids, own in zip(texts, hidden.split_with_sizes([len(each) for each in texts]), strict=True):
                yield -float(cross_entropy(model.head.forward(own[:-1]), torch.tensor(ids[1:])))

    def _answers(self, kept: torch.Tensor, means: torch.Tensor | None) -> list[str]:
        """Greedy ones; who is done makes room for the next."""
        model, end = self.bench.model, special(self.bench.tokenizer, END)
        said: list[list[int]] = [[] for _ in self.ids]
        waiting = iter(tqdm(range(len(self.ids)), "questions", leave=False))
        under_way: dict[int, KVCache] = {}
        while True:
            for at in islice(waiting, AT_ONCE - len(under_way)):
                under_way[at] = model.stack.new_cache(len(self.ids[at]) + LONGEST)
            if not under_way:
                return [self.bench.tokenizer.decode([one for one in each if one != end]) for each in said]
            rows = [said[at][-1:] or self.ids[at] for at in under_way]
            hidden = self._rows(rows, list(under_way.values()), kept[list(under_way)], means)
            last = torch.tensor([len(each) for each in rows]).cumsum(0) - 1
            for at, token in zip(list(under_way), model.head.forward(hidden[last]).argmax(-1).tolist(), strict=True):
                said[at].append(token)
                if token == end or len(said[at]) == LONGEST:
                    del under_way[at]


def mask(sets: HeadSets) -> torch.Tensor:
    """Sets of heads as bool ``[layers, heads]``."""
    return torch.tensor([[head in kept.heads for head in range(kept.total)] for kept in sets])


def measure(folder: Path, planned: Sequence[Cell], count: int, until: float = math.inf) -> None:
    """Each of these that has no record in a folder; none is begun that would not be done ``until`` then, by
    ``time.monotonic``, if it took as long as the longest so far.

    count: of questions.
    """
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    models: dict[Path, Measured] = {}
    taken = 0.0
    for cell in planned:
        file = folder / f"{cell.name}.json"
        if file.is_file():
            continue
        began = time.monotonic()
        if began + taken > until:
            print("the time is over; a later run goes on")
            return
        if cell.model not in models:
            models = {cell.model: Measured(cell.model, count if cell.model == DEMO else min(count, WINDOWS))}
        model = models[cell.model]
        figure = model.figure(cell)
        whole = folder / f"{Cell(cell.model).name}.json"
        record = recorded(cell, figure, json.loads(whole.read_text()) if whole.is_file() else {})
        record |= {"time": model.time_ratio(cell), "machine": machine()}
        file.write_text(json.dumps(record), encoding="utf-8")
        taken = max(taken, time.monotonic() - began)
        print(f"{cell.name}: {said(record)}; {time.monotonic() - began:.0f} s", flush=True)


def recorded(cell: Cell, figure: Figure, whole: dict[str, Any]) -> dict[str, Any]:
    """A record, with how far it is from the whole model's, pair by pair: points, or per cent."""
    found = {"model": cell.model.name, "way": cell.way, "out": cell.out, "value": figure.value}
    found |= {"asked": len(figure.values), "unit": figure.unit, "what": figure.what, "values": figure.values}
    above = figure.above(Figure(figure.what, figure.unit, tuple(whole.get("values", ()))))
    return found | ({} if above is None else {"above": above[0], "half": above[1]})


def said(record: dict[str, Any]) -> str:
    """A record in a line."""
    beside = f", {record['above']:+.2f} ± {record['half']:.2f}" if "above" in record else ""
    return f"{record['value']:.2f}{record['unit']} of {record['asked']}{beside}, {record['time']:.2f} of the time"
