"""Tokens a second of answers that are held to a form, beside answers that are not, with drafts and without.

    PYTHONPATH=tests python -m bench.structured [--rounds 12] [--delay-ms 10] [--quick]

Real processes, with a link of some milliseconds between device and cloud. A round asks about another animal, with a
JSON schema and without, drafted as the device likes, by lookup, or not at all, in another order each time. An answer
without a schema has as many tokens as the one with it had. What counts is the time from the first token to the last.
These texts differ, and so does how well they can be guessed: without drafts the masks alone are measured, and with
drafts by answers that are held to what free ones say anyway, sentences.
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
from streamed import Answer, stream_answer
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
SENTENCES = {"guided_regex": r"""(["']?[A-Z][^.!?{}]*[.!?]["']?[ \n]*)+"""}
ANIMALS = ("fox", "owl", "bear", "duck", "mouse", "rabbit", "dog", "cat", "pig", "hen", "horse", "cow", "goat", "frog")


@dataclass(frozen=True)
class Case:
    """A row of the table: what both answers are asked with, and what holds one of them.

    Attributes:
        new: whether the form is asked for as if for the first time: of another ``cache_salt`` nothing is recalled.
    """

    title: str
    drafts: str
    held: dict[str, Any]
    free: dict[str, Any]
    new: bool = False

    def both(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Members of the two requests of a round."""
        more = {"draft": self.drafts} | ({"cache_salt": f"round {number}"} if self.new else {})
        return self.held | more, self.free | more


SCHEMATIC = {"guided_json": SCHEMA}, {"ignore_eos": True}
CASES = (
    Case("a schema, as the device likes", "", *SCHEMATIC),
    Case("a schema that is new, as the device likes", "", *SCHEMATIC, new=True),
    Case("a schema, drafts of the text and the form", "lookup", *SCHEMATIC),
    Case("a schema, no drafts", "none", *SCHEMATIC),
    Case("sentences, as the device likes", "", SENTENCES, {}, new=True),
)


@dataclass
class Rates:
    """Of one case: tokens a second of each round, held to a form and free; over all rounds the tokens of either answer,
    those that were drafted, and how often both were the same text."""

    held: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)
    tokens: int = 0
    drafted_held: int = 0
    drafted_free: int = 0
    same: int = 0

    def add(self, held: tuple[float, Answer], free: tuple[float, Answer]) -> None:
        """A round."""
        self.held.append(held[0])
        self.free.append(free[0])
        self.tokens += held[1].tokens
        self.drafted_held += held[1].drafted
        self.drafted_free += free[1].drafted
        self.same += held[1].text == free[1].text

    def row(self, case: Case) -> list[str]:
        """A row of the table."""
        ratios = [held / free for held, free in zip(self.held, self.free, strict=True)]
        return [
            case.title,
            f"{statistics.median(self.held):.0f} : {statistics.median(self.free):.0f}",
            spread(ratios, 2),
            f"{self.drafted_held} : {self.drafted_free} of {self.tokens}",
            f"{self.same} of {len(ratios)}",
        ]


def ask(client: httpx.Client, number: int, tokens: int, more: dict[str, Any]) -> tuple[float, Answer]:
    """Stream an answer: tokens a second behind the first piece, and the answer."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"Tell me about a {ANIMALS[number % len(ANIMALS)]} and its friends."}],
        "max_tokens": tokens,
        "temperature": 0.7,
        "seed": number,
    }
    answer = stream_answer("", body | more, client=client)
    if not answer.done:
        raise RuntimeError(answer.error.get("message"))
    return (answer.tokens - 1) / (answer.times[-1] - answer.times[0]), answer


def measure(rounds: int, tokens: int, folder: Path, cloud_port: int, cloud_url: str) -> list[Rates]:
    """All rounds of each case; the first round, to warm up, is not counted."""
    rates = [Rates() for _ in CASES]
    installation = Installation(folder, cloud_port=cloud_port, cloud_url=cloud_url)
    # Loading certificates takes 20 ms, and there are none to check.
    client = httpx.Client(base_url=installation.base, timeout=120, trust_env=False, verify=False)
    with installation, closing(client):
        for number in tqdm(range(rounds + 1), leave=False):
            for case, found in list(zip(CASES, rates, strict=True))[:: 1 if number % 2 else -1]:
                form, none = case.both(number)
                held = ask(client, number, tokens, form)
                free = ask(client, number, held[1].tokens, none)
                if number:
                    found.add(held, free)
    return rates


def run(rounds: int, tokens: int, delay_s: float) -> list[Rates]:
    """The processes, and the link between device and cloud."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, Relay("", "127.0.0.1", port, delay_s) as relay:
        return measure(rounds, tokens, Path(folder), port, f"ws://127.0.0.1:{relay.port}")


def figures(rounds: int, delay_ms: float = DELAY_MS) -> str:
    """What was measured, and its table."""
    rates = run(rounds, 160, delay_ms / 1000)
    head = "held to | tokens a second, held : free | ratio | of the answers' tokens drafted, held : free | same text"
    return (
        f"{rounds} rounds, demo model, a link of {delay_ms:g} ms each way. "
        f"Bar: a ratio of at least {BAR:g}. Medians; the ratio of neighbours with its quartiles.\n\n"
        + table(head, [each.row(case) for case, each in zip(CASES, rates, strict=True)])
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
