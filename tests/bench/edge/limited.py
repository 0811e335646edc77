"""What a limit of time leaves of a model and what it costs, by each way to choose heads within the same time
(EdgeFormer, Fig. 16): the product's own pruner on the demo model's held-out answers, behind other conversations.

A text's limit is a share of what it takes with all heads. LiScore's scores come out of the same time, so it leaves out
more, or cannot keep the limit at all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from bench.edge.tables import NOTHING
from bench.page import machine, table
from bench.pruning import Bench, Text
from checkpoints import DEMO
from torch.nn.functional import cross_entropy

from device_agent.chain.local_pruning import LocalPruner
from device_agent.chain.model_ends import DeviceParts
from device_agent.planning.limit import LimitTooShort
from split_model.checkpoint import Checkpoint
from split_model.pruning.orders import PruneBy
from split_model.stack import Span, Stack

FILE = "limited.json"
WAYS: tuple[PruneBy, ...] = ("effect", "liscore", "liscore-literal", "magnitude", "random")
SHARES = (0.95, 0.9, 0.85, 0.8, 0.7)
"""Of what a text takes with all heads."""

ROWS = 448
"""Texts have so many rows, about: those are prompts for which somebody might set a limit."""

ABOUT_S = 300.0


class Limited:
    """The demo model, and pruners of it by each way."""

    def __init__(self) -> None:
        self.bench, self._checkpoint = Bench(DEMO, None), Checkpoint.open(DEMO)
        self._parts = DeviceParts.load(self._checkpoint, self.bench.spec.num_layers, 0, torch.float32)
        self.texts = list(_longer(self.bench.texts))

    def pruner(self, by: PruneBy) -> LocalPruner:
        """One that is ready."""
        found = LocalPruner(self._checkpoint, self._parts, None, 1.0, self.bench.spec.max_positions, by)
        found.prepare()
        return found

    def read(self, stack: Stack, text: Text) -> tuple[float, float]:
        """Nats of a text's answer, all tokens together, and seconds of reading it."""
        began = time.perf_counter()
        cache = stack.new_cache(len(text.ids))
        hidden = stack.forward(self.bench.model.embedding.forward(text.ids), [Span(cache, len(text.ids))])
        took = time.perf_counter() - began
        logits = self.bench.model.head.forward(hidden)[text.start - 1 : -1]
        return float(cross_entropy(logits, torch.tensor(text.ids[text.start :]), reduction="sum")), took


def _longer(texts: Sequence[Text]) -> Iterator[Text]:
    """Each with others before it."""
    for at, text in enumerate(texts):
        before: list[int] = []
        for other in (texts[(at + step) % len(texts)] for step in range(1, len(texts))):
            if len(before) + len(other.ids) + len(text.ids) > ROWS:
                break
            before += other.ids
        yield Text([*before, *text.ids], len(before) + text.start)


def measure() -> dict[str, Any]:
    """Each way and limit over all texts; the whole model by turns with it."""
    limited, rows = Limited(), []
    whole = limited.bench.model.stack
    for by in WAYS:
        pruner = limited.pruner(by)
        for share in SHARES:
            found = _texts(limited, pruner, whole, share)
            rows.append({"by": by, "share": share, **found})
            print(f"limit: {rows[-1]}", flush=True)
    heads = limited.bench.spec.num_layers * limited.bench.spec.num_heads
    return {"machine": machine(), "heads": heads, "texts": len(limited.texts), "rows": rows}


def _texts(limited: Limited, pruner: LocalPruner, whole: Stack, share: float) -> dict[str, Any]:
    lost = took = all_took = chosen = 0.0
    tokens = pruned = read = kept = 0
    for text in limited.texts:
        nats, whole_s = limited.read(whole, text)
        pruner.limit_s = share * pruner.seconds(len(text.ids))
        began = time.perf_counter()
        try:
            layers = pruner.prune(text.ids, "")
        except LimitTooShort:
            continue
        choosing_s = time.perf_counter() - began
        without, read_s = limited.read(layers.front, text)
        pruner.tidy()
        lost, tokens, pruned = lost + without - nats, tokens + len(text.ids) - text.start, pruned + layers.count
        took, all_took, chosen = took + choosing_s + read_s, all_took + whole_s, chosen + choosing_s
        read, kept = read + 1, kept + (choosing_s + read_s <= pruner.limit_s)
    if not read:
        return {"read": 0}
    found = {"lost": lost / tokens, "time": took / all_took, "choosing": chosen / took, "pruned": pruned / read}
    return {"read": read, "kept": kept, **found}


def write(folder: Path, quick: bool) -> None:
    """Measure, unless a folder of records has it; quick: nothing."""
    file = folder / FILE
    if not quick and not file.is_file():
        torch.set_num_threads(1)
        file.write_text(json.dumps(measure()), encoding="utf-8")


def shown(found: Mapping[str, Any]) -> str:
    """By limit, then by way."""
    rows, texts = [], found.get("texts")
    for each in sorted(found.get("rows", []), key=lambda each: -each["share"]):
        words = [f"{each['share']:.0%}", each["by"]]
        if not each["read"]:
            rows.append([*words, f"0 of {texts}", "–", "–", "–", "–"])
            continue
        out = f"{each['pruned'] / found['heads']:.0%}"
        took = f"{each['time']:.2f} ({each['choosing']:.0%} of it choosing)"
        rows.append([*words, f"{each['read']} of {texts}", out, took, f"{each['kept']}", f"{each['lost']:+.3f}"])
    head = ["limit, of the whole time", "by", "texts that it allows", "heads out", "time", "within it", "nats a token"]
    return table(head, rows) if rows else NOTHING
