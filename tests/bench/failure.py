"""Kills the serving cloud again and again under streamed answers: what is lost, what is wrong, how long it takes.

    PYTHONPATH=tests python -m bench.failure [--kills 200] [--conversations 50] [--installations 3] [--quick]

Gateway, device and two cloud processes. A conversation is first answered undisturbed, then again, and in every turn the
cloud that serves is ended by kill -9 at a random position and started again while the other takes over. Answers are
greedy, so each must be the same as before. The next turn begins when the device is connected to both clouds again; to
spend that time, several such installations run side by side.

The processes are forked from one that has imported what they need: a cloud that is killed is back in tenths of a second
instead of seconds, and its start does not take the processor away from the recovery that is measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bench.page import machine, table, write_section
from checkpoints import DEMO
from installation import Installation, wait_until
from streamed import Answer, stream_answer
from tqdm import tqdm

TOKENS = 64
BAR_S = 2.0


@dataclass
class Turn:
    """One question of a conversation, what it is answered undisturbed, and where the cloud is killed."""

    body: dict[str, Any]
    expected: Answer
    position: int = 0


@dataclass
class Outcome:
    """What the kills did."""

    kills: int = 0
    answers: int = 0
    lost: int = 0
    wrong: int = 0
    idle: int = 0
    """Kills after the last row of an answer had been computed."""
    recovery_s: list[float] = field(default_factory=list)
    away_s: list[float] = field(default_factory=list)
    """Until the device was connected to both clouds again."""


def converse(base: str, questions: list[str]) -> list[Turn]:
    """One conversation, undisturbed."""
    turns: list[Turn] = []
    messages: list[dict[str, str]] = []
    for question in questions:
        messages = [*messages, {"role": "user", "content": question}]
        body = {"messages": messages, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
        answer = stream_answer(base, body)
        if not answer.done:
            raise RuntimeError(f"an undisturbed answer failed: {answer.error}")
        turns.append(Turn(body, answer))
        messages = [*messages, {"role": "assistant", "content": answer.text}]
    return turns


def disturb(installation: Installation, turn: Turn, outcome: Outcome) -> None:
    """Ask again, and kill the cloud that serves at the turn's position."""
    killed_at = 0.0

    def seen(count: int) -> None:
        nonlocal killed_at
        if count == turn.position and not killed_at:
            serving = installation.serving()
            outcome.idle += not serving
            killed_at = time.monotonic()
            port = (serving or installation.cloud_ports)[0]
            installation.cloud_at(port).end(signal.SIGKILL)
            installation.start_cloud_at(port)
            outcome.kills += 1

    answer = stream_answer(installation.base, turn.body, seen)
    outcome.answers += 1
    outcome.lost += not answer.done
    expected = turn.expected.pieces
    outcome.wrong += sum(a != b for a, b in zip(answer.pieces, expected, strict=False))
    if answer.done:
        outcome.wrong += abs(len(answer.pieces) - len(expected))
        outcome.recovery_s += longest_pause(killed_at, answer.times)


def longest_pause(killed_at: float, times: list[float]) -> list[float]:
    """Seconds from the kill to the end of the longest pause after it; nothing when no token came after it.

    Tokens that had left the killed cloud still come after the kill: the first of them is no sign of recovery.
    """
    later = [killed_at, *(each for each in times if each > killed_at)]
    if len(later) == 1:
        return []
    return [max(itertools.pairwise(later), key=lambda pair: pair[1] - pair[0])[1] - killed_at]


def measure(folder: Path, kills: int, conversations: int, seed: int, installations: int) -> Outcome:
    """All conversations twice, shared out over installations that run side by side."""
    share = [kills // conversations + (each < kills % conversations) for each in range(conversations)]
    with tqdm(total=kills, desc="kills") as progress, ThreadPoolExecutor(installations) as pool:

        def run(first: int) -> Outcome:
            part = {each: share[each] for each in range(first, conversations, installations)}
            return measure_on_one(folder / str(first), part, seed, progress)

        outcomes = list(pool.map(run, range(installations)))
    outcome = Outcome()
    for each in outcomes:
        for one in fields(Outcome):
            setattr(outcome, one.name, getattr(outcome, one.name) + getattr(each, one.name))
    assert outcome.kills == kills, "every turn has its kill"
    return outcome


def measure_on_one(folder: Path, share: dict[int, int], seed: int, progress: Any) -> Outcome:
    """Conversations by number, each of so many turns, on one installation."""
    folder.mkdir()
    lines = (DEMO / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["messages"][-1]["content"] for line in lines]
    settings = ("--threads", "1")
    outcome = Outcome()
    both: dict[str, Any] = {"with_standby": True, "forked": True}
    with Installation(folder, cloud_settings=settings, device_settings=settings, **both) as installation:
        for conversation, count in share.items():
            rng = random.Random(f"{seed}/{conversation}")
            for turn in converse(installation.base, rng.sample(questions, count)):
                turn.position = rng.randrange(len(turn.expected.pieces))
                disturb(installation, turn, outcome)
                outcome.away_s.append(wait_until(installation.all_connected))
                progress.update()
    return outcome


def report(outcome: Outcome, conversations: int) -> str:
    """The section of docs/benchmarks.md."""
    times = sorted(outcome.recovery_s)
    row = [
        str(outcome.answers),
        f"**{outcome.lost}**",
        f"**{outcome.wrong}**",
        f"**{statistics.median(times):.2f}**",
        f"{statistics.quantiles(times, n=10, method='inclusive')[-1]:.2f}",
        f"**{times[-1]:.2f}**",
    ]
    columns = ["kills", "lost requests", "wrong tokens", "s from kill to next token, median", "9th decile", "worst"]
    return (
        f"Measured on {machine()}; {conversations} conversations, {TOKENS} tokens an answer, in each one kill -9 at a "
        f"random position, a second cloud running. {outcome.idle} kills came when the last row had been computed. Bar: "
        f"at most {BAR_S:g} s.\n\n" + table(columns, [row])
    )


def main() -> None:
    """Measure; write the table unless --quick."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--conversations", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--installations", type=int, default=3, help="that run side by side")
    parser.add_argument("--quick", action="store_true", help="a few kills, nothing written")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    kills, conversations, installations = options.kills, options.conversations, options.installations
    if options.quick:
        kills, conversations, installations = 4, 2, 1
    with tempfile.TemporaryDirectory() as folder:
        outcome = measure(Path(folder), kills, conversations, options.seed, installations)
    text = report(outcome, conversations)
    print(text)
    print(
        f"\nboth clouds connected again after {statistics.median(outcome.away_s):.2f} s (median), "
        f"{max(outcome.away_s):.2f} s (worst)"
    )
    if not options.quick:
        write_section("failure", text)


if __name__ == "__main__":
    main()
