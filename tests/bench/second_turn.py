"""The second turn of a chat after a long first one: time to its first token, against prefilling all of it again.

    PYTHONPATH=tests python -m bench.second_turn [--rounds 12] [--first 1000] [--quick]

Real processes on loopback, a client that streams. A round is a conversation of two turns; beside its second turn, now
before it and now after it, is one of the same length in a conversation that nobody has seen before. On loopback rows
cost next to nothing to send, so what is saved there is computing; one case has the bandwidth of a device's real link.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from bench.page import machine, table, write_section
from bench.random_llama import Shape, speaking
from bench.runs import spread
from checkpoints import DEMO
from fault_proxy import FaultProxy, Faults
from installation import Installation
from processes import free_port
from streamed import stream_answer
from tqdm import tqdm

from device_agent.answering.tokenizer import Tokenizer
from split_model.checkpoint import Checkpoint
from wire.limits import ITEM_BYTES
from wire.request_messages import ChatTurn

BAR = 0.2
LINK_MBIT = 50.0
ANSWER_TOKENS = 24
NEXT = "And what came of it in the end?"
PAUSE_S = 0.3
"""Between two turns; a person takes longer."""

WORDS = [
    "the", "a", "fox", "tree", "house", "river", "garden", "moon", "saw", "found", "made", "gave", "took", "little",
    "old", "new", "and", "but", "then", "with", "under",
]  # fmt: skip

Turns = list[dict[str, str]]


@dataclass(frozen=True)
class Case:
    """One model, and the bandwidth between device and cloud, both ways, in megabits a second; 0 is loopback's own."""

    name: str
    model: Path
    dtype: str
    mbit: float = 0.0


@dataclass
class Second:
    """Second turns of one kind, one for each round: seconds to the first token, and bytes the cloud received."""

    seconds: list[float] = field(default_factory=list)
    received: list[int] = field(default_factory=list)


@dataclass
class Measured:
    """Both kinds of second turns of a case; ``tokens`` are in the last of their prompts."""

    case: Case
    kept: Second = field(default_factory=Second)
    unseen: Second = field(default_factory=Second)
    tokens: int = 0

    def row(self) -> list[str]:
        """A row of the table."""
        ratios = [a / b for a, b in zip(self.kept.seconds, self.unseen.seconds, strict=True)]
        row_bytes = Checkpoint.open(self.case.model).spec.hidden_size * ITEM_BYTES[self.case.dtype]
        kept, unseen = (statistics.median(each.received) for each in (self.kept, self.unseen))
        return [
            self.case.name,
            str(self.tokens),
            f"{statistics.median(self.kept.seconds) * 1e3:.0f} : {statistics.median(self.unseen.seconds) * 1e3:.0f}",
            spread(ratios, 3),
            f"{kept / 1e3:.1f} : {unseen / 1e3:.1f}",
            f"{kept / row_bytes:.0f} : {unseen / row_bytes:.0f}",
        ]


def conversation(tokenizer: Tokenizer, tokens: int, seed: int) -> Turns:
    """A first turn of at least ``tokens`` tokens, begun unlike that of any other seed."""
    noise = random.Random(seed)
    words: list[str] = []
    while len(tokenizer.chat([ChatTurn("user", " ".join(words))])) < tokens:
        words += noise.choices(WORDS, k=8)
    return [{"role": "user", "content": " ".join(words)}]


def ask(client: httpx.Client, turns: Turns, tokens: int) -> tuple[float, str]:
    """Stream an answer of ``tokens`` tokens: seconds until the first of it came, and its text."""
    began = time.monotonic()
    body = {"messages": turns, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    answer = stream_answer("", body, client=client)
    if not answer.done:
        raise RuntimeError(answer.error.get("message"))
    # A token whose text is not complete by itself shows first as the end of an answer of one token.
    return (answer.times[0] if answer.times else time.monotonic()) - began, answer.text


def measure(case: Case, rounds: int, tokens: int, folder: Path, cloud_port: int, cloud_url: str) -> Measured:
    """All rounds of one case; the first, to warm up, is not counted."""
    settings = ("--dtype", case.dtype)
    tokenizer = Tokenizer.load(case.model, ())
    measured = Measured(case)
    installation = Installation(
        folder,
        model=case.model,
        cloud_port=cloud_port,
        cloud_url=cloud_url,
        device_settings=settings,
        cloud_settings=settings,
    )
    # Loading certificates takes 20 ms, and there are none to check.
    client = httpx.Client(base_url=installation.base, timeout=120, trust_env=False, verify=False)

    def received() -> int:
        return int(installation.cloud_state()["devices"][0]["received_bytes"])

    with installation, closing(client):
        for number in tqdm(range(rounds + 1), desc=case.name, leave=False):
            begun = conversation(tokenizer, tokens, 2 * number)
            _, answer = ask(client, begun, ANSWER_TOKENS)
            more = [{"role": "assistant", "content": answer}, {"role": "user", "content": NEXT}]
            unseen = conversation(tokenizer, tokens, 2 * number + 1)
            pair = [(begun + more, measured.kept), (unseen + more, measured.unseen)]
            for turns, kind in pair if number % 2 else pair[::-1]:
                time.sleep(PAUSE_S)
                before = received()
                seconds, _ = ask(client, turns, 1)
                if number:
                    kind.seconds.append(seconds)
                    kind.received.append(received() - before)
                measured.tokens = len(tokenizer.chat([ChatTurn(turn["role"], turn["content"]) for turn in turns]))
    return measured


async def run_case(case: Case, rounds: int, tokens: int) -> Measured:
    """One case, with the network it wants between device and cloud."""
    port = free_port()
    url = f"ws://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        if not case.mbit:
            return await asyncio.to_thread(measure, case, rounds, tokens, Path(folder), port, url)
        async with FaultProxy(url, Faults(bytes_s=case.mbit * 1e6 / 8)) as proxy:
            return await asyncio.to_thread(measure, case, rounds, tokens, Path(folder), port, proxy.url)


def report(cases: list[Measured], rounds: int, first: int) -> str:
    """The section of docs/benchmarks.md."""
    head = "model and link | tokens in the prompt | to the first token, ms, kept : unseen | ratio"
    head += " | kB to the cloud, kept : unseen | the same in rows"
    return (
        f"Measured on {machine()}; {rounds} rounds, first turns of {first} tokens. Bar: a ratio of at most {BAR:g}. "
        "Medians; the ratio of neighbours with its quartiles.\n\n" + table(head, [each.row() for each in cases])
    )


def main() -> None:
    """Measure all cases; write the table unless --quick."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--first", type=int, default=1000, help="tokens in the first turn")
    parser.add_argument("--quick", action="store_true", help="a small model, two short rounds, nothing written")
    options = parser.parse_args()
    rounds, first = (2, 300) if options.quick else (options.rounds, options.first)
    vocab = Checkpoint.open(DEMO).spec.vocab_size
    with tempfile.TemporaryDirectory() as folder:
        cases = [
            Case("demo, float32, loopback", DEMO, "float32"),
            Case(f"demo, float32, {LINK_MBIT:g} Mbit/s", DEMO, "float32", LINK_MBIT),
        ]
        if not options.quick:
            shape = Shape(vocab=vocab)
            size = f"{shape.layer_parameters / 1e6:.0f} M random"
            cases.append(Case(f"{size}, bfloat16, loopback", speaking(shape, Path(folder)), "bfloat16"))
        text = report([asyncio.run(run_case(case, rounds, first)) for case in cases], rounds, first)
    print(text)
    if not options.quick:
        write_section("second-turn", text)


if __name__ == "__main__":
    main()
