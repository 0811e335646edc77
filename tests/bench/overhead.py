"""What the way through gateway, wire and agent adds to each token, and the bytes it sends for one.

    PYTHONPATH=tests python -m bench.overhead [--rounds 12] [--tokens 96] [--quick]

Rounds alternate, in one run on one machine, between the one-process reference (the same layers, the same thread count,
no network) and streamed answers through real processes on loopback. The overhead of a round is the median gap between
tokens at the client less the reference's median time for a token: everything but the model's own work.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bench.page import machine, table, write_section
from checkpoints import DEMO
from installation import Installation
from streamed import stream_answer
from tqdm import tqdm

from device_agent.answering.tokenizer import Tokenizer
from split_model.checkpoint import Checkpoint
from split_model.reference import Reference
from split_model.stack import Span
from wire.request_messages import ChatTurn

QUESTION = "Tell me a story about a fox."
BAR_MS = 3.0
BAR_BYTES = 1.1
UP_HEADER, DOWN_HEADER = 8, 4
"""Bytes of a websocket message's own header for frames of this size: with mask towards the cloud, without back."""


@dataclass
class Way:
    """One way through the system and what was measured on it."""

    name: str
    overhead_ms: list[float]
    bytes_per_token: float | None = None
    bytes_ratio: float | None = None


def reference_ms(reference: Reference, prompt: list[int], tokens: int) -> float:
    """Median time of one decoded token in one process, in ms: embedding, layers, head, argmax."""
    cache = reference.stack.new_cache(len(prompt) + tokens)
    logits = _forward(reference, prompt, cache)
    times = []
    for _ in range(tokens):
        began = time.perf_counter()
        logits = _forward(reference, [int(logits[-1].argmax())], cache)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def _forward(reference: Reference, ids: list[int], cache: Any) -> torch.Tensor:
    hidden = reference.stack.forward(reference.embedding.forward(ids), [Span(cache, len(ids))])
    return reference.head.forward(hidden[-1:])


def streamed_ms(base: str, tokens: int) -> float:
    """Median gap between tokens at a client that streams, in ms."""
    messages = [{"role": "user", "content": QUESTION}]
    answer = stream_answer(base, {"messages": messages, "max_tokens": tokens, "ignore_eos": True, "temperature": 0})
    return statistics.median(b - a for a, b in itertools.pairwise(answer.times)) * 1e3


def bytes_per_token(installation: Installation, tokens: int, hidden: int, item: int) -> tuple[float, float]:
    """Bytes both ways for one decoded token, websocket headers included, and their ratio to two bare rows."""

    def count(answer: int) -> int:
        before = installation.cloud_state()["devices"][0]
        streamed_ms(installation.base, answer)
        after = installation.cloud_state()["devices"][0]
        return int(sum(after[way] - before[way] for way in ("received_bytes", "sent_bytes")))

    # Two lengths: their difference leaves out the prompt, open and close.
    per_token = (count(tokens + 32) - count(32)) / tokens + UP_HEADER + DOWN_HEADER
    return per_token, per_token / (2 * hidden * item)


def measure(dtype: str, mode: str, rounds: int, tokens: int, folder: Path) -> Way:
    """One way, measured beside the reference of the same dtype."""
    checkpoint = Checkpoint.open(DEMO)
    torch.set_num_threads(1)
    reference = Reference.load(checkpoint, getattr(torch, dtype))
    prompt = Tokenizer.load(DEMO, ()).chat([ChatTurn("user", QUESTION)])
    settings = ("--dtype", dtype, "--threads", "1")
    way = Way(f"{mode}, {dtype}", [])
    # The way through cloud and back, chunks as usual: of the mode of that name it has only that nothing is drafted.
    words = ("--mode", "hat", "--draft", "none") if mode == "ushape" else ("--mode", mode)
    with Installation(folder, device_settings=(*settings, *words), cloud_settings=settings) as installation:
        streamed_ms(installation.base, tokens)
        reference_ms(reference, prompt, 8)
        for _ in tqdm(range(rounds), desc=way.name, leave=False):
            way.overhead_ms.append(streamed_ms(installation.base, tokens) - reference_ms(reference, prompt, tokens))
        if mode == "ushape":
            item = 4 if dtype == "float32" else 2
            hidden = checkpoint.spec.hidden_size
            way.bytes_per_token, way.bytes_ratio = bytes_per_token(installation, tokens, hidden, item)
    return way


def report(ways: list[Way], rounds: int, tokens: int) -> str:
    """The section of docs/benchmarks.md."""
    rows = []
    for way in ways:
        low, high = min(way.overhead_ms), max(way.overhead_ms)
        quarter, _, three = statistics.quantiles(way.overhead_ms, n=4)
        rows.append(
            [
                way.name,
                f"**{statistics.median(way.overhead_ms):.2f}**",
                f"{quarter:.2f} … {three:.2f} ({low:.2f} … {high:.2f})",
                "–" if way.bytes_per_token is None else f"{way.bytes_per_token:.0f}",
                "–" if way.bytes_ratio is None else f"**{way.bytes_ratio:.3f}**",
            ]
        )
    columns = ["way", "added ms a token, median", "quartiles (range)", "bytes a token, both ways", "ratio to two rows"]
    return (
        f"Measured on {machine()}; {rounds} alternating rounds of {tokens} tokens, one thread each. "
        f"Bars: at most {BAR_MS:g} ms, ratio at most {BAR_BYTES:g}.\n\n" + table(columns, rows)
    )


def main() -> None:
    """Measure all ways; write the table unless --quick."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--quick", action="store_true", help="one short round, nothing written")
    options = parser.parse_args()
    rounds, tokens = (3, 16) if options.quick else (options.rounds, options.tokens)
    ways = []
    for mode, dtype in (("ushape", "float32"), ("ushape", "bfloat16"), ("local", "float32")):
        with tempfile.TemporaryDirectory() as folder:
            ways.append(measure(dtype, mode, rounds, tokens, Path(folder)))
    text = report(ways, rounds, tokens)
    print(text)
    if not options.quick:
        write_section("overhead", text)


if __name__ == "__main__":
    main()
