"""The cloud's engine alone against transformers and llama.cpp, and what bounds it.

    PYTHONPATH=tests python -m bench.engine [--sessions 1 4 8 16] [--rounds 3] [--threads 2]
                                            [--slack 1.2 20] [--llama PYTHON] [--quick]

One random Llama in bfloat16 (llama.cpp: float16), the same prompts, the same threads, greedy. Rounds alternate between
ours and each rival in one run, so that a ratio compares neighbours in time. Each is in a process of its own
(``apart.py`` says why), and only one runs at a time. Ours is the cloud's engine as the cloud builds it, with all
layers, driven by sessions in its process that do embedding and head themselves.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from bench.apart import Apart
from bench.engine_devices import Devices
from bench.page import machine, table, write_section
from bench.peaks import product_bytes_per_s, product_flops
from bench.random_llama import TINY, Shape, mixed_lengths, prompts, write_checkpoint
from bench.rivals import llama_server, transformers_batching
from bench.rivals.llama_server import LlamaServer
from bench.rivals.transformers_batching import ContinuousBatching, StaticBatch
from bench.runs import Run, check, spread
from tqdm import tqdm

from cloud_server.config import CloudConfig

STATIC, CONTINUOUS, LLAMA = "transformers, static batch", "transformers, continuous batching", "llama.cpp, f16"
BARS = {
    **{(STATIC, sessions): 1.1 for sessions in (1, 4, 8, 16)},
    **{(CONTINUOUS, sessions): 2.0 for sessions in (8, 16)},
    (LLAMA, 1): 0.9,
    (LLAMA, 8): 1.3,
}
"""The least that ours should reach of a rival's tokens a second, by rival and sessions; the others have no bar."""

SLACKS = (CloudConfig("").step_slack, 20.0)
"""The cloud's --step-slack as it is by default, and one that is all for throughput."""

SLACKS_FROM = 8
"""Fewer sessions are measured with the first slack only: one session has nobody to be slack with, and four little."""

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
class Engines:
    """What is compared, loaded: ours by slack, and the rivals; ``checkpoint`` and ``threads`` are everybody's."""

    checkpoint: Path
    threads: int
    ours: dict[float, Apart]
    static: Apart
    llama: LlamaServer | None


@dataclass(frozen=True)
class Measured:
    """All counted rounds at one number of sessions, by engine; and how late the event loop was, in seconds."""

    sessions: int
    slacks: list[float]
    runs: dict[str, list[Run]]
    lags: list[float]

    def row(self, rival: str, slack: float) -> list[str]:
        """A row of the table of rivals: medians, and ratios with their quartiles."""
        mixed = rival == CONTINUOUS
        both = list(zip(self.runs[ours(slack, mixed)], self.runs[rival], strict=True))
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
            f"{slack:g}",
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


def ours(slack: float, mixed: bool) -> str:
    """Our engine's name, by its slack and the prompts it is given."""
    return f"ours, {'mixed' if mixed else 'equal'}, --step-slack {slack:g}"


def measure_peaks(weight_bytes: int, width: int) -> Peaks:
    """On the thread that calls; what the numbers say of matrices of other sizes than ``width``, they say roughly."""
    cpu = torch.device("cpu")
    return Peaks(
        product_bytes_per_s(weight_bytes, width, torch.bfloat16, cpu),
        product_flops(PEAK_ROWS, width, torch.bfloat16, cpu),
    )


def measure(work: Work, sessions: int, rounds: int, engines: Engines) -> Measured:
    """Rounds of everything that is compared, every other backwards; a short one before, to warm up, is not counted."""
    slacks = [slack for slack in engines.ours if sessions >= SLACKS_FROM or slack == next(iter(engines.ours))]
    runs: dict[str, list[Run]] = {}
    room = (engines.checkpoint, sessions, work.positions, work.new)
    with Apart(ContinuousBatching, *room, threads=engines.threads) as continuous:
        for number in tqdm(range(rounds + 1), desc=f"{sessions} sessions", leave=False):
            equal = prompts(work.shape, [work.prompt] * sessions, 2 * number)
            mixed = prompts(work.shape, mixed_lengths(sessions, work.prompt), 2 * number + 1)
            order: list[tuple[str, Callable[[list[list[int]], int], Run], list[list[int]]]] = [
                (STATIC, partial(engines.static.call, "run"), equal),
                *((ours(slack, False), partial(engines.ours[slack].call, "run"), equal) for slack in slacks),
                *((ours(slack, True), partial(engines.ours[slack].call, "run"), mixed) for slack in slacks),
                (CONTINUOUS, partial(continuous.call, "run"), mixed),
            ]
            if engines.llama is not None:
                # Next to both of ours with equal prompts.
                order.insert(2, (LLAMA, engines.llama.run, equal))
            for name, engine, these in order if number % 2 else reversed(order):
                new = work.new if number else WARM_UP_TOKENS
                run = check(engine(these, new), sessions, new)
                if number:
                    runs.setdefault(name, []).append(run)
    mixed = prompts(work.shape, mixed_lengths(sessions, work.prompt), 2 * rounds + 2)
    return Measured(sessions, slacks, runs, engines.ours[slacks[0]].call("lags", mixed, work.new))


def decode_step(run: Run) -> tuple[float, float]:
    """Seconds of a step and its rows, in the mean, from when every session has its first token.

    A step's tokens are known at one moment. With a small slack some sessions end while others decode, so a step need
    not have a row of each.
    """
    begin = run.began + run.prefill_s
    later = [moment for times in run.times for moment in times if moment > begin]
    steps = len(set(later))
    return (max(later) - begin) / steps, len(later) / steps


def bounds(work: Work, measured: Measured, slack: float, peaks: Peaks) -> list[str]:
    """What our own runs on equal prompts must take at least, part by part, beside what they took: a row, in ms."""
    shape, sessions, runs = work.shape, measured.sessions, measured.runs[ours(slack, False)]
    parameters = shape.layer_parameters + shape.head_parameters
    seconds, rows = (statistics.median(each) for each in zip(*map(decode_step, runs), strict=True))
    step = 1e3 * seconds
    weights = 1e3 * parameters * ITEM / peaks.bytes_per_s
    products = 1e3 * 2 * parameters * rows / peaks.flops
    # All sessions decode from the prompt's length on.
    kv = 1e3 * rows * (work.prompt + work.new / 2) * shape.kv_bytes(ITEM) / peaks.bytes_per_s
    rest = step - max(weights, products) - kv
    parts = {"weights": weights, "products": products, "keys and values": kv, "interpreter and small kernels": rest}
    prefill = 1e3 * statistics.median(run.prefill_s for run in runs)
    gemm = 1e3 * 2 * shape.layer_parameters * work.prompt * sessions / peaks.flops
    numbers = [f"{each:.1f}" for each in (rows, step, weights, products, kv, rest)]
    bound = max(parts, key=lambda part: parts[part])
    return [str(sessions), f"{slack:g}", *numbers, bound, f"{prefill:.0f}", f"{gemm:.0f}"]


def report(work: Work, all_measured: list[Measured], peaks: Peaks, rounds: int, setting: str) -> str:
    """The section of docs/benchmarks.md."""
    rivals = table(
        "sessions | prompts | rival | slack | tokens a second, ours : rival | ratio | bar | decoding only | ratio",
        [
            each.row(rival, slack)
            for each in all_measured
            for rival in (STATIC, LLAMA, CONTINUOUS)
            if rival in each.runs
            for slack in each.slacks
        ],
    )
    bound = table(
        "sessions | slack | rows a step | step, ms | weights | products | keys and values | rest | bound by | prefill,"
        " ms | its products",
        [bounds(work, each, slack, peaks) for each in all_measured for slack in each.slacks],
    )
    lags = table(
        f"sessions | event loop late, median ms | p99 ms | bar {LAG_BAR_MS:g} ms",
        [_lag_row(each) for each in all_measured],
    )
    shape = work.shape
    return (
        f"Measured on {machine()}; {setting}; {rounds} alternating rounds. Layers: {shape.layers}, hidden size "
        f"{shape.hidden}, {shape.layer_parameters / 1e6:.0f} million parameters, {shape.head_parameters / 1e6:.0f} "
        f"million in the head. Prompts of {work.prompt} tokens (mixed: {work.prompt // 4} to {work.prompt * 7 // 4}), "
        f"{work.new} new tokens each.\n\n{rivals}\n\nPeaks: {peaks.bytes_per_s / 1e9:.1f} GB a second, "
        f"{peaks.flops / 1e9:.0f} billion operations a second for products of {PEAK_ROWS} rows.\n\n{bound}\n\n{lags}"
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--slack",
        type=float,
        nargs="+",
        default=SLACKS,
        help=f"the cloud's --step-slack; all but the first from {SLACKS_FROM} sessions on only (%(default)s)",
    )
    parser.add_argument("--llama", metavar="PYTHON", help=f"an interpreter that has {llama_server.PACKAGES}")
    parser.add_argument("--quick", action="store_true", help="one round of a tiny model, nothing written")
    options = parser.parse_args()
    work = Work(TINY, 32, 8) if options.quick else Work(Shape(), 256, 64)
    rounds = 1 if options.quick else options.rounds
    most, threads = max(options.sessions), options.threads
    slacks = options.slack if most >= SLACKS_FROM else options.slack[:1]
    weight_bytes = (work.shape.layer_parameters + work.shape.head_parameters) * ITEM
    width = work.shape.hidden if options.quick else PEAK_WIDTH
    with Apart(partial, measure_peaks, weight_bytes, width, threads=threads) as measuring:
        peaks = measuring.call("__call__")
    with ExitStack() as stack:
        checkpoint = write_checkpoint(work.shape, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        llama = llama_server.start(options.llama, checkpoint, threads)
        if llama is not None:
            stack.enter_context(closing(llama))
        static = stack.enter_context(Apart(StaticBatch, checkpoint, threads=threads))
        room = (checkpoint, torch.bfloat16, most, work.positions)
        devices = {slack: stack.enter_context(Apart(Devices, *room, slack, threads=threads)) for slack in slacks}
        engines = Engines(checkpoint, threads, devices, static, llama)
        measured = [measure(work, each, rounds, engines) for each in options.sessions]
    version = f"transformers {transformers_batching.VERSION}, "
    version += "without llama.cpp" if llama is None else f"llama-cpp-python {llama.version}"
    text = report(work, measured, peaks, rounds, f"{threads} threads, torch {torch.__version__}, {version}")
    print(text)
    if not options.quick:
        write_section("engine", text)


if __name__ == "__main__":
    main()
