"""The cloud's engine alone against transformers and llama.cpp, and what bounds it.

    PYTHONPATH=tests python -m bench.engine [--sessions 1 4 8 16] [--rounds 5] [--threads 2] [--slack 20]
                                            [--llama PYTHON] [--quick]

One random Llama in bfloat16 (llama.cpp: float16), the same prompts, the same threads, greedy. Rounds alternate between
ours and each rival in one run, so that a ratio compares neighbours in time. Ours is the cloud's engine as the cloud
builds it, with all layers, driven in this process by sessions that do embedding and head themselves.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench.engine_devices import Devices
from bench.page import machine, table, write_section
from bench.peaks import product_bytes_per_s, product_flops
from bench.random_llama import TINY, Shape, mixed_lengths, prompts, write_checkpoint
from bench.rivals import llama_server, transformers_batching
from bench.rivals.llama_server import LlamaServer
from bench.rivals.transformers_batching import ContinuousBatching, static_batch
from bench.runs import Run, check, spread
from tqdm import tqdm

OURS, OURS_MIXED = "ours, equal", "ours, mixed"
STATIC, CONTINUOUS, LLAMA = "transformers, static batch", "transformers, continuous batching", "llama.cpp, f16"
BARS = {
    **{(STATIC, sessions): 1.1 for sessions in (1, 4, 8, 16)},
    **{(CONTINUOUS, sessions): 2.0 for sessions in (8, 16)},
    (LLAMA, 1): 0.9,
    (LLAMA, 8): 1.3,
}
"""The least that ours should reach of a rival's tokens a second, by rival and sessions; the others have no bar."""

LAG_BAR_MS = 5.0
WARM_UP_TOKENS = 8
PEAK_ROWS, PEAK_WIDTH = 512, 4096
ITEM = torch.bfloat16.itemsize


@dataclass(frozen=True)
class Work:
    """What every engine is given: prompts of ``prompt`` tokens, or of so many in the mean, and ``new`` after each."""

    shape: Shape
    prompt: int
    new: int

    @property
    def positions(self) -> int:
        """Room for any session."""
        return 2 * self.prompt + self.new


@dataclass(frozen=True)
class Measured:
    """All counted rounds at one number of sessions, by engine; and how late the event loop was, in seconds."""

    sessions: int
    runs: dict[str, list[Run]]
    lags: list[float]

    def row(self, rival: str) -> list[str]:
        """A row of the table of rivals: medians, and ratios with their quartiles."""
        mixed = rival == CONTINUOUS
        both = list(zip(self.runs[OURS_MIXED if mixed else OURS], self.runs[rival], strict=True))
        ratios = [ours.per_second / theirs.per_second for ours, theirs in both]
        decoding = [ours.decoded_per_second / theirs.decoded_per_second for ours, theirs in both]
        bar = BARS.get((rival, self.sessions))
        verdict = "–" if bar is None else f"{bar:g}, {'met' if statistics.median(ratios) >= bar else 'missed'}"
        whole = [statistics.median(run.per_second for run in runs) for runs in zip(*both, strict=True)]
        decode = [statistics.median(run.decoded_per_second for run in runs) for runs in zip(*both, strict=True)]
        return [
            str(self.sessions),
            "mixed" if mixed else "equal",
            rival,
            f"{whole[0]:.1f} : {whole[1]:.1f}",
            spread(ratios, 2),
            verdict,
            f"{decode[0]:.1f} : {decode[1]:.1f}",
            spread(decoding, 2),
        ]


@dataclass(frozen=True)
class Peaks:
    """What the machine can do, with the threads that are used."""

    bytes_per_s: float
    flops: float


def measure(
    work: Work, sessions: int, rounds: int, devices: Devices, model: Any, llama: LlamaServer | None
) -> Measured:
    """Rounds of everything that is compared, every other backwards; a short one before, to warm up, is not counted."""
    runs: dict[str, list[Run]] = {}
    with ContinuousBatching(model, sessions, work.positions, work.new) as batching:
        for number in tqdm(range(rounds + 1), desc=f"{sessions} sessions", leave=False):
            equal = prompts(work.shape, [work.prompt] * sessions, 2 * number)
            mixed = prompts(work.shape, mixed_lengths(sessions, work.prompt), 2 * number + 1)
            order: list[tuple[str, Callable[[list[list[int]], int], Run], list[list[int]]]] = [
                (STATIC, partial(static_batch, model), equal),
                (OURS, devices.run, equal),
                (OURS_MIXED, devices.run, mixed),
                (CONTINUOUS, batching.run, mixed),
            ]
            if llama is not None:
                order.insert(2, (LLAMA, llama.run, equal))
            for name, engine, these in order if number % 2 else reversed(order):
                new = work.new if number else WARM_UP_TOKENS
                run = check(engine(these, new), sessions, new)
                if number:
                    runs.setdefault(name, []).append(run)
    mixed = prompts(work.shape, mixed_lengths(sessions, work.prompt), 2 * rounds + 2)
    return Measured(sessions, runs, devices.lags(mixed, work.new))


def bounds(work: Work, measured: Measured, peaks: Peaks) -> list[str]:
    """What our own runs on equal prompts must take at least, part by part, beside what they took: a row, in ms."""
    shape, sessions, ours = work.shape, measured.sessions, measured.runs[OURS]
    parameters = shape.layer_parameters + shape.head_parameters
    step = 1e3 * sessions / statistics.median(run.decoded_per_second for run in ours)
    weights = 1e3 * parameters * ITEM / peaks.bytes_per_s
    products = 1e3 * 2 * parameters * sessions / peaks.flops
    # All sessions decode from the prompt's length on.
    kv = 1e3 * sessions * (work.prompt + work.new / 2) * shape.kv_bytes(ITEM) / peaks.bytes_per_s
    rest = step - max(weights, products) - kv
    parts = {"weights": weights, "products": products, "keys and values": kv, "interpreter and small kernels": rest}
    prefill = 1e3 * statistics.median(run.prefill_s for run in ours)
    gemm = 1e3 * 2 * shape.layer_parameters * work.prompt * sessions / peaks.flops
    numbers = [f"{each:.1f}" for each in (step, weights, products, kv, rest)]
    return [str(sessions), *numbers, max(parts, key=lambda part: parts[part]), f"{prefill:.0f}", f"{gemm:.0f}"]


def report(work: Work, all_measured: list[Measured], peaks: Peaks, rounds: int, setting: str) -> str:
    """The section of docs/benchmarks.md."""
    rivals = table(
        ["sessions", "prompts", "rival", "tokens a second, ours : rival", "ratio", "bar", "decoding only", "ratio"],
        [each.row(rival) for each in all_measured for rival in (STATIC, LLAMA, CONTINUOUS) if rival in each.runs],
    )
    bound = table(
        [
            "sessions",
            "step, ms",
            "weights",
            "products",
            "keys and values",
            "rest",
            "bound by",
            "prefill, ms",
            "its products",
        ],
        [bounds(work, each, peaks) for each in all_measured],
    )
    lags = table(
        ["sessions", "event loop late, median ms", "p99 ms", f"bar {LAG_BAR_MS:g} ms"],
        [_lag_row(each) for each in all_measured],
    )
    shape = work.shape
    return (
        f"Measured on {machine()}; {setting}. A Llama of {shape.layers} "
        f"layers, hidden size {shape.hidden}: {shape.layer_parameters / 1e6:.0f} million parameters in the layers and "
        f"{shape.head_parameters / 1e6:.0f} million in the head. Prompts of {work.prompt} tokens (mixed: "
        f"{work.prompt // 4} to {work.prompt * 7 // 4}, as many in all), {work.new} new tokens each; {rounds} "
        "alternating rounds; medians, with the quartiles of the paired ratios. Prefill is included unless the column "
        "says otherwise.\n\n"
        + rivals
        + "\n\nWhat a decode step of ours on equal prompts must take at least, head included, against "
        f"{peaks.bytes_per_s / 1e9:.1f} GB a second measured for products of one row over as many bytes of weights, "
        f"and {peaks.flops / 1e9:.0f} billion operations a second for products of {PEAK_ROWS} rows. Weights and "
        "products overlap, so the longer of the two counts; rest is what remains: the interpreter and small kernels, "
        "less what the caches save.\n\n"
        + bound
        + "\n\nHow late the cloud's event loop is while the mixed prompts run, asked every millisecond; an idle loop "
        "is late by up to one, the resolution of its timer.\n\n" + lags
    )


def _lag_row(measured: Measured) -> list[str]:
    lags = sorted(1e3 * lag for lag in measured.lags)
    late = lags[min(len(lags) - 1, int(0.99 * len(lags)))]
    verdict = "met" if late < LAG_BAR_MS else "missed"
    return [str(measured.sessions), f"{statistics.median(lags):.2f}", f"**{late:.2f}**", verdict]


def main() -> None:
    """Measure everything; write the tables unless --quick."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slack", type=float, default=20, help="the cloud's --step-slack; 20 is all for throughput")
    parser.add_argument("--llama", metavar="PYTHON", help=f"an interpreter that has {llama_server.PACKAGES}")
    parser.add_argument("--quick", action="store_true", help="one round of a tiny model, nothing written")
    options = parser.parse_args()
    work = Work(TINY, 32, 8) if options.quick else Work(Shape(), 256, 64)
    rounds = 1 if options.quick else options.rounds
    torch.set_num_threads(options.threads)
    cpu = torch.device("cpu")
    weight_bytes = (work.shape.layer_parameters + work.shape.head_parameters) * ITEM
    width = work.shape.hidden if options.quick else PEAK_WIDTH
    peaks = Peaks(
        product_bytes_per_s(weight_bytes, width, torch.bfloat16, cpu),
        product_flops(PEAK_ROWS, width, torch.bfloat16, cpu),
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_checkpoint(work.shape, Path(folder))
        llama = llama_server.start(options.llama, checkpoint, options.threads)
        model = transformers_batching.load(checkpoint)
        devices = Devices(checkpoint, torch.bfloat16, max(options.sessions), work.positions, options.slack)
        try:
            measured = [measure(work, each, rounds, devices, model, llama) for each in options.sessions]
        finally:
            devices.close()
            if llama is not None:
                llama.close()
    version = f"transformers {transformers_batching.VERSION}, "
    version += "without llama.cpp" if llama is None else f"llama-cpp-python {llama.version}"
    setting = f"{options.threads} threads, --step-slack {options.slack:g}, torch {torch.__version__}, {version}"
    text = report(work, measured, peaks, rounds, setting)
    print(text)
    if not options.quick:
        write_section("engine", text)


if __name__ == "__main__":
    main()
