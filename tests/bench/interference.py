"""What prompts that arrive do to those who decode: with chunking, and without it.

    PYTHONPATH=tests python -m bench.interference [--rounds 4] [--seconds 6] [--threads 2] [--slack X] [--quick]

The cloud's engine as the cloud builds it, in this process, with a random Llama in bfloat16. Eight sessions decode;
rounds alternate, in one run, between phases: quiet; beside two sessions that send one prompt after another; the same
with chunking off, where a whole prompt is one forward and runs in one step. The devices are near, or in two further
phases far away. All the while the event loop is asked how late it is.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import perf_counter

import torch
from bench.page import machine, table, write_section
from bench.random_llama import TINY, Shape, write_checkpoint
from bench.runs import spread
from engine_callers import Caller, warmed_up
from tqdm import tqdm

from cloud_server.build import build
from cloud_server.config import CloudConfig
from cloud_server.engine.engine import Engine
from cloud_server.engine.session import Answered

NEAR_S, FAR_S = 0.0015, 0.04
"""From an answer to the session's next row: what the way to a device and back takes on loopback (section overhead), and
to one on another network, with its own layers and head."""

SETTLE_S = 0.5
"""Decoding before a phase is measured: the sessions find together."""

LAG_EVERY_S = 0.001
CHUNK = 128
"""Rows of a prompt in one forward, where chunking is on."""

BAR = 1.3
LAG_BAR_MS = 5.0
QUIET, CHUNKED, WHOLE = "quiet", "prompts", "prompts, chunking off"
FAR_QUIET, FAR_CHUNKED = "far devices, quiet", "far devices, prompts"
QUIET_OF = {QUIET: QUIET, CHUNKED: QUIET, WHOLE: QUIET, FAR_QUIET: FAR_QUIET, FAR_CHUNKED: FAR_QUIET}
"""The phases in their order, each with the one that it is compared with."""

_numbers = count(1)


@dataclass(frozen=True)
class Work:
    """``decoders`` sessions go on from ``context`` positions; ``prompters`` send prompts of ``prompt`` rows."""

    shape: Shape
    prompt: int
    seconds: float
    decoders: int = 8
    prompters: int = 2
    context: int = 64


@dataclass
class Phase:
    """What was seen in one phase of one round; times in seconds.

    Attributes:
        gaps: between two answers of a decoder, all decoders together.
        prompts: from a prompt's first row to its answer, of every prompt that was completed.
        lags: by which the event loop was late.
        rows_per_s: rows of prompts answered in a second.
    """

    gaps: list[float] = field(default_factory=list)
    prompts: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    rows_per_s: float = 0.0


def begun(engine: Engine, positions: int, prompt: int) -> Caller:
    """A session on the engine, as its device would use it."""
    number = next(_numbers)
    return Caller(engine, (1, number)).open(positions, f"device {number}", prompt=prompt)


async def run_phase(engine: Engine, work: Work, name: str) -> Phase:
    """One phase of this name. Raises SessionFailed where the engine ends a session."""
    rows = torch.randn(work.prompt, work.shape.hidden, dtype=torch.bfloat16)
    most = work.prompt if name == WHOLE else min(work.prompt, CHUNK)
    back_s = FAR_S if QUIET_OF[name] == FAR_QUIET else NEAR_S
    phase, begin, end = Phase(), perf_counter() + SETTLE_S, perf_counter() + SETTLE_S + work.seconds

    prefilled: list[int] = []

    async def decode() -> None:
        session = begun(engine, work.shape.positions, work.context)
        await session.send(rows[: work.context], 1)
        before = perf_counter()
        while before < end:
            await asyncio.sleep(back_s)
            await session.send(rows[:1], 1)
            now = perf_counter()
            if now >= begin:
                phase.gaps.append(now - before)
            before = now
        session.close()

    async def decode_all() -> None:
        await asyncio.gather(*(decode() for _ in range(work.decoders)))

    async def send_prompts() -> None:
        await asyncio.sleep(begin - perf_counter())
        while True:
            session = begun(engine, work.prompt, work.prompt)
            started, sent, answered = perf_counter(), 0, 0
            waiting: list[tuple[int, asyncio.Future[Answered]]] = []
            while answered < work.prompt:
                size = min(most, work.prompt - sent)
                if size and sent - answered + size <= max(most, CloudConfig("").window_rows):
                    sent += size
                    waiting.append((size, session.send(rows[sent - size : sent], sent == work.prompt)))
                    continue
                size, answer = waiting.pop(0)
                await answer
                answered += size
                prefilled.append(size)
            phase.prompts.append(perf_counter() - started)
            session.close()

    async def ask_lag() -> None:
        await asyncio.sleep(begin - perf_counter())
        while True:
            asked = perf_counter()
            await asyncio.sleep(LAG_EVERY_S)
            phase.lags.append(perf_counter() - asked - LAG_EVERY_S)

    beside = [asyncio.create_task(ask_lag())]
    if name != QUIET_OF[name]:
        beside += [asyncio.create_task(send_prompts()) for _ in range(work.prompters)]
    decoding = asyncio.create_task(decode_all())
    await asyncio.wait([decoding, *beside], return_when=asyncio.FIRST_COMPLETED)
    for task in beside:
        if task.done():
            task.result()  # Only a failure ends it.
        task.cancel()
    await decoding
    phase.rows_per_s = sum(prefilled) / (perf_counter() - begin)
    await asyncio.gather(*beside, return_exceptions=True)
    for key in list(engine.ledger.entries):
        engine.sessions.close(key)
    # Once this row is answered, no step of the phase is under way any more.
    last = begun(engine, 1, 1)
    await last.send(rows[:1], 1)
    last.close()
    return phase


def cloud(checkpoint: Path, work: Work, slack: float | None) -> Engine:
    """The engine as the product sets it, or with another ``slack``; it also takes a whole prompt in one forward."""
    positions = work.prompters * work.prompt + work.decoders * work.shape.positions
    return build(
        CloudConfig(
            model=str(checkpoint),
            split=0,
            dtype="bfloat16",
            kv_mb=1 + 2 * positions * work.shape.kv_bytes(torch.bfloat16.itemsize) // 10**6,
            max_rows=work.prompt,
            window_rows=work.prompt,
            step_slack=CloudConfig("").step_slack if slack is None else slack,
        )
    ).engine


@contextmanager
def chunking_off(engine: Engine, work: Work) -> Iterator[None]:
    """Within this, whatever waits runs in the next step. One engine serves all phases: a second one in the process
    would make the first one's steps longer (see ``split_model/load_apart.py``)."""
    kept = engine.pace.slack, engine.pace.step_rows
    engine.pace.slack, engine.pace.step_rows = 1e9, work.prompters * work.prompt + work.decoders
    try:
        yield
    finally:
        engine.pace.slack, engine.pace.step_rows = kept


async def measure(checkpoint: Path, work: Work, rounds: int, slack: float | None) -> dict[str, list[Phase]]:
    """All phases of all rounds; a first round, in which the engines learn what steps take, is not counted."""
    engine = cloud(checkpoint, work, slack)
    running = asyncio.create_task(engine.run())
    await warmed_up(engine, running)
    seen: dict[str, list[Phase]] = {name: [] for name in QUIET_OF}
    try:
        for number in tqdm(range(rounds + 1), desc="rounds", leave=False):
            for name in QUIET_OF:
                with chunking_off(engine, work) if name == WHOLE else nullcontext():
                    phase = asyncio.create_task(run_phase(engine, work, name))
                    await asyncio.wait([phase, running], return_when=asyncio.FIRST_COMPLETED)
                if not phase.done():
                    raise RuntimeError("the engine has ended")
                if number:
                    seen[name].append(phase.result())
                else:
                    phase.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return seen


def percentile(values: Sequence[float], part: float) -> float:
    """The value that this part of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def report(seen: dict[str, list[Phase]], work: Work, rounds: int, threads: int) -> str:
    """The section of docs/benchmarks.md."""
    lines = []
    for name, phases in seen.items():
        gaps = [gap for phase in phases for gap in phase.gaps]
        ratios = [
            [
                percentile(phase.gaps, part) / percentile(quiet.gaps, part)
                for phase, quiet in zip(phases, seen[QUIET_OF[name]], strict=True)
            ]
            for part in (0.5, 0.99)
        ]
        done = [second for phase in phases for second in phase.prompts]
        lines.append(
            [
                name,
                f"{percentile(gaps, 0.5) * 1e3:.1f} / {percentile(gaps, 0.99) * 1e3:.1f}",
                *("1" if name == QUIET_OF[name] else spread(ratio, 2) for ratio in ratios),
                "–" if name == QUIET_OF[name] else f"{statistics.mean(phase.rows_per_s for phase in phases):.0f}",
                f"{statistics.median(done):.2f}" if done else "–",
                f"{percentile([lag for phase in phases for lag in phase.lags], 0.99) * 1e3:.2f}",
            ]
        )
    head = "phase | time between tokens, p50 / p99, ms | p50 to quiet | p99 to quiet | prompt rows a second"
    shape = work.shape
    return (
        f"Measured on {machine()}; {rounds} rounds of {work.seconds:g} s a phase, {threads} threads; a random Llama "
        f"of {shape.layers} layers, hidden size {shape.hidden}, {shape.heads // shape.kv_heads} heads to a KV head, "
        f"bfloat16; {work.decoders} "
        f"sessions decode, {work.prompters} send prompts of {work.prompt} rows; a device is back after "
        f"{NEAR_S * 1e3:g} ms, a far one after {FAR_S * 1e3:g} ms. Bars: p99 with prompts at most {BAR:g} times the "
        f"quiet one; event loop late by less than {LAG_BAR_MS:g} ms. Ratios are medians over rounds, with "
        "quartiles.\n\n" + table(f"{head} | s a prompt | event loop late, p99, ms", lines)
    )


def main() -> None:
    """Measure; write the table unless --quick or at another slack than the product's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one phase")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slack", type=float, help="try this instead of the product's; nothing written")
    parser.add_argument("--quick", action="store_true", help="a tiny model and one short round, nothing written")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    work, rounds = Work(Shape(), prompt=2048, seconds=options.seconds), options.rounds
    if options.quick:
        work, rounds = Work(TINY, prompt=256, seconds=0.5), 1
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_checkpoint(work.shape, Path(folder))
        seen = asyncio.run(measure(checkpoint, work, rounds, options.slack))
    text = report(seen, work, rounds, options.threads)
    print(text)
    if not options.quick and options.slack is None:
        write_section("interference", text)


if __name__ == "__main__":
    main()
