"""Forty questions about one input as one request for decisions, beside forty chats of one token.

    PYTHONPATH=tests python -m bench.decisions [--rounds 12] [--quick]

Real processes, on loopback and with a link of some milliseconds between device and cloud. A round asks three times, in
another order each time and each time about an input that nobody has seen before: all questions as one request; as chats
that come at once; as chats that come one after the other, each of which goes on from what the device has kept of the
one before. The prompts have the same tokens each way.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from bench.page import machine, table, write_section
from bench.runs import spread
from bench.second_turn import WORDS
from bench.testbed.relay import Relay
from installation import Installation
from processes import free_port
from tqdm import tqdm

from gateway.decisions.parsing import BETWEEN
from gateway.decisions.schema import Predicate
from gateway.decisions.wording import question_of

QUESTIONS, WORDS_READ, ROUNDS = 40, 500, 12
QUICK: Final = (8, 120, 2)
"""The same, where it is to be quick."""

LINKS: Final = {"loopback": (0.0, 0.0), "20 ms there and back, 50 Mbit/s": (0.01, 50e6 / 8)}
"""Seconds each way, and bytes a second."""

Way = Callable[[httpx.AsyncClient, str, list[str]], Awaitable[None]]


@dataclass
class Taken:
    """What each round took: seconds until the last answer, and bytes that the cloud received."""

    seconds: list[float] = field(default_factory=list)
    received: list[int] = field(default_factory=list)


def text_of(seed: int, words: int) -> str:
    """An input unlike that of any other seed."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    """One request. Raises RuntimeError where it is refused."""
    response = await client.post(path, json=body)
    if response.status_code != 200:
        raise RuntimeError(f"{response.status_code}: {response.text}")


async def decided(client: httpx.AsyncClient, text: str, asked: list[str]) -> None:
    """All questions in one request."""
    questions = [{"type": "predicate", "instructions": each} for each in asked]
    await post(client, "decisions", {"input": text, "questions": questions})


async def chat(client: httpx.AsyncClient, text: str, statement: str) -> None:
    """One of them as a chat."""
    asked = question_of(Predicate(instructions=None), statement).text  # type: ignore[arg-type]
    turn = {"role": "user", "content": text + BETWEEN + asked}
    await post(client, "chat/completions", {"messages": [turn], "max_tokens": 1, "temperature": 0})


async def at_once(client: httpx.AsyncClient, text: str, asked: list[str]) -> None:
    """All chats at the same time."""
    await asyncio.gather(*(chat(client, text, each) for each in asked))


async def in_turn(client: httpx.AsyncClient, text: str, asked: list[str]) -> None:
    """One chat after the other."""
    for each in asked:
        await chat(client, text, each)


WAYS: Final[dict[str, Way]] = {
    "one request": decided,
    "chats at once": at_once,
    "chats in turn": in_turn,
}


async def measure(questions: int, words: int, rounds: int, installation: Installation) -> dict[str, Taken]:
    """All rounds; the first, to warm up, is not counted."""
    taken = {name: Taken() for name in WAYS}
    asked = [f"The {WORDS[2 + at % 6]} is named more than {at} times." for at in range(questions)]
    # Loading certificates takes 20 ms, and there are none to check.
    client = httpx.AsyncClient(base_url=installation.base, timeout=300, trust_env=False, verify=False)
    async with client:
        for number in tqdm(range(rounds + 1), leave=False):
            ways = [*WAYS.items()]
            for at, (name, way) in enumerate(ways[number % 3 :] + ways[: number % 3]):
                text, before = text_of(3 * number + at, words), received(installation)
                began = time.perf_counter()
                await way(client, text, asked)
                if number:
                    taken[name].seconds.append(time.perf_counter() - began)
                    taken[name].received.append(received(installation) - before)
    return taken


def received(installation: Installation) -> int:
    """Bytes that the cloud has had of the device."""
    return int(installation.cloud_state()["devices"][0]["received_bytes"])


def run(size: tuple[int, int, int], delay_s: float, bytes_s: float) -> dict[str, Taken]:
    """The processes, and the link between device and cloud; size: questions, words of the input, and rounds."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, Relay("", "127.0.0.1", port, delay_s, bytes_s=bytes_s) as relay:
        url = f"ws://127.0.0.1:{relay.port if delay_s else port}"
        with Installation(Path(folder), cloud_port=port, cloud_url=url) as installation:
            return asyncio.run(measure(*size, installation))


def rows(link: str, taken: dict[str, Taken]) -> list[list[str]]:
    """Of the table: the chats, each way, beside the one request of the same round."""
    ours = taken["one request"]
    return [
        [
            link,
            name,
            f"{statistics.median(ours.seconds) * 1e3:.0f} : {statistics.median(other.seconds) * 1e3:.0f}",
            spread([a / b for a, b in zip(ours.seconds, other.seconds, strict=True)], 3),
            f"{statistics.median(ours.received) / 1e3:.0f} : {statistics.median(other.received) / 1e3:.0f}",
            spread([a / b for a, b in zip(ours.received, other.received, strict=True)], 3),
        ]
        for name, other in taken.items()
        if other is not ours
    ]


def main() -> None:
    """Measure; write the table unless --quick."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="few questions, two rounds, nothing written")
    options = parser.parse_args()
    size = QUICK if options.quick else (QUESTIONS, WORDS_READ, options.rounds)
    found = [row for link, way in LINKS.items() for row in rows(link, run(size, *way))]
    questions, words, rounds = size
    head = "link | beside | ms until the last answer, one request : chats | ratio"
    head += " | kB to the cloud, one request : chats | ratio"
    text = (
        f"Measured on {machine()}; {rounds} rounds, demo model, {questions} questions about {words} words. "
        "Medians; ratios of the same round with their quartiles.\n\n" + table(head, found)
    )
    print(text)
    if not options.quick:
        write_section("decisions", text)


if __name__ == "__main__":
    main()
