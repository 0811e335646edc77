"""Tokens a second of answers that are held to a schema, beside answers that are not, with drafts and without.

    PYTHONPATH=tests python -m bench.structured [--rounds 12] [--delay-ms 10] [--quick]

Real processes, with a link of some milliseconds between device and cloud. A round asks six times, in another order
each time: with a schema or without, drafted as the device likes, by lookup, or not at all. An answer without a schema
has as many tokens as the one with it had. What counts is the time from the first token to the last. The texts differ,
and so does how well they can be guessed: without drafts the masks alone are measured.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from bench.page import machine, table, write_section
from bench.runs import spread
from bench.testbed.relay import Relay
from installation import Installation
from processes import free_port
from streamed import stream_answer
from tqdm import tqdm

ROUNDS, DELAY_MS = 12, 10.0

BAR = 0.9
"""Tokens a second with a schema, at least so much of those without."""

FIELDS = ("full name", "home town", "favourite colour", "kind of animal", "best friend", "what it likes to eat")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": 24} for name in FIELDS},
    "required": list(FIELDS),
    "additionalProperties": False,
}
DRAFTS = {"as the device likes": "", "of the text and the form": "lookup", "none": "none"}


@dataclass
class Rates:
    """Tokens a second of each round, with a schema and without; tokens of an answer, and those that were drafted."""

    held: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    drafted_held: list[int] = field(default_factory=list)
    drafted_free: list[int] = field(default_factory=list)

    def row(self, name: str) -> list[str]:
        """A row of the table."""
        ratios = [held / free for held, free in zip(self.held, self.free, strict=True)]
        return [
            name,
            f"{statistics.median(self.held):.0f} : {statistics.median(self.free):.0f}",
            spread(ratios, 2),
            f"{sum(self.drafted_held)} : {sum(self.drafted_free)} of {sum(self.tokens)}",
        ]


def ask(client: httpx.Client, seed: int, draft: str, schema: bool, tokens: int) -> tuple[float, int, int]:
    """Stream an answer: tokens a second behind the first piece, the answer's tokens, and those that were drafted."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Tell me about a fox and its friends."}],
        "max_tokens": tokens,
        "temperature": 0.7,
        "seed": seed,
        "draft": draft,
    }
    answer = stream_answer("", body | ({"guided_json": SCHEMA} if schema else {"ignore_eos": True}), client=client)
    if not answer.done:
        raise RuntimeError(answer.error.get("message"))
    return (answer.tokens - 1) / (answer.times[-1] - answer.times[0]), answer.tokens, answer.drafted


def measure(rounds: int, tokens: int, folder: Path, cloud_port: int, cloud_url: str) -> dict[str, Rates]:
    """All rounds; the first, to warm up, is not counted."""
    rates = {name: Rates() for name in DRAFTS}
    installation = Installation(folder, cloud_port=cloud_port, cloud_url=cloud_url)
    # Loading certificates takes 20 ms, and there are none to check.
    client = httpx.Client(base_url=installation.base, timeout=120, trust_env=False, verify=False)
    with installation, closing(client):
        for number in tqdm(range(rounds + 1), leave=False):
            for name, draft in list(DRAFTS.items())[:: 1 if number % 2 else -1]:
                held, said, drafted = ask(client, number, draft, True, tokens)
                free, _, others = ask(client, number, draft, False, said)
                if number:
                    found = rates[name]
                    found.held.append(held)
                    found.free.append(free)
                    found.tokens.append(said)
                    found.drafted_held.append(drafted)
                    found.drafted_free.append(others)
    return rates


def run(rounds: int, tokens: int, delay_s: float) -> dict[str, Rates]:
    """The processes, and the link between device and cloud."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, Relay("", "127.0.0.1", port, delay_s) as relay:
        return measure(rounds, tokens, Path(folder), port, f"ws://127.0.0.1:{relay.port}")


def figures(rounds: int, delay_ms: float = DELAY_MS) -> str:
    """What was measured, and its table."""
    rates = run(rounds, 160, delay_ms / 1000)
    head = "drafts | tokens a second, with a schema : without | ratio | of the answers' tokens drafted, with : without"
    return (
        f"{rounds} rounds, demo model, a link of {delay_ms:g} ms each way. "
        f"Bar: a ratio of at least {BAR:g}. Medians; the ratio of neighbours with its quartiles.\n\n"
        + table(head, [each.row(name) for name, each in rates.items()])
    )


def main() -> None:
    """Measure; write the table unless --quick."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--delay-ms", type=float, default=DELAY_MS, help="of the link, each way")
    parser.add_argument("--quick", action="store_true", help="two rounds, nothing written")
    options = parser.parse_args()
    text = f"Measured on {machine()}; {figures(2 if options.quick else options.rounds, options.delay_ms)}"
    print(text)
    if not options.quick:
        write_section("structured", text)


if __name__ == "__main__":
    main()
