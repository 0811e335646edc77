"""One seed of the chaos on a site: its clients, what breaks under them, and what must hold."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import httpx
from faults.chaos_plan import LENGTHS, QUESTIONS, Ask, Plan
from faults.chaos_sites import Broken
from faults.shapes import Turn, body_of, wanted, wrong_pieces
from faults.times import longest_pause
from installation import wait_until
from streamed import Answer, stream_answer

OVER_WITHIN_S: Final = 150.0
"""For one client, whatever breaks: twice the time in which a device gives up."""
FREE_WITHIN_S: Final = 60.0
FIRST_TOKENS: Final = 24
ASKED: Final = (
    ("Tell me a story about a fox.", "What did it eat?"),
    ("Who found the key?", "And where was it?"),
    ("What is 2 + 3?", "And with 4 more?"),
    ("Where is the hen?", "Who is with it?"),
    ("Tell me a story about a river.", "Where does it end?"),
    ("What colour is the sky?", "And at night?"),
    ("How much is 12 plus 7?", "Are you sure?"),
    ("Who lives in the forest?", "Since when?"),
)
assert len(ASKED) == QUESTIONS


class Failed(Exception):
    """Something does not hold. ``seen``: what was seen until then."""

    def __init__(self, why: str, seen: dict[str, Any]) -> None:
        super().__init__(why)
        self.seen = seen


class Left(Exception):
    """The client hangs up."""


@dataclass(frozen=True)
class Asked:
    """A client's request, and what transformers answers it with."""

    turns: tuple[Turn, ...]
    tokens: int
    drafted: bool

    @classmethod
    def of(cls, ask: Ask) -> Asked:
        """As the plan says."""
        first, second = ASKED[ask.question]
        turns: tuple[Turn, ...] = (("user", first),)
        if ask.second:
            turns += (("assistant", wanted(turns, FIRST_TOKENS)), ("user", second))
        return cls(turns, ask.tokens, ask.drafted)

    @property
    def expected(self) -> str:
        """The text."""
        return wanted(self.turns, max(LENGTHS), self.tokens)

    def body(self) -> dict[str, Any]:
        """The request."""
        return body_of(self.turns, self.tokens, "" if self.drafted else "none")


def run_seed(broken: Broken, plan: Plan, happened: list[str]) -> dict[str, Any]:
    """All of it; what was seen. ``happened`` gets the kinds of the events that did.

    Raises:
        Failed: something does not hold.
    """
    asked = [Asked.of(ask) for ask in plan.asks]
    for each in asked:
        _ = each.expected  # What transformers says is found out before anything is timed.
    began = time.monotonic()
    pool = ThreadPoolExecutor(len(asked) + 1)
    clients = [
        pool.submit(_client, broken.site.base, each, ask, began) for each, ask in zip(asked, plan.asks, strict=True)
    ]
    breaking = pool.submit(_break, broken, plan, began, happened)
    try:
        seen = _judged(plan, asked, clients, began)
    finally:
        wait([breaking])
        pool.shutdown(wait=False)
    if error := breaking.exception():
        raise Failed(f"not all broke that was to: {type(error).__name__}: {error}"[:1000], seen)
    seen["mended_s"] = round(broken.site.mend(), 2)
    _after(broken, seen)
    return seen


def _client(base: str, asked: Asked, ask: Ask, began: float) -> Answer | None:
    """None where it has hung up."""
    time.sleep(max(0.0, began + ask.at_s - time.monotonic()))

    def seen(pieces: int) -> None:
        if pieces == ask.leaves_after > 0:
            raise Left

    try:
        return stream_answer(base, asked.body(), seen)
    except Left:
        return None


def _break(broken: Broken, plan: Plan, began: float, happened: list[str]) -> None:
    """Everything in its time; what is killed is started again when its event is over. ``happened`` gets what did."""
    numbers = count()
    due: list[tuple[float, int, Callable[[], None]]] = []

    def later(at_s: float, work: Callable[[], None]) -> None:
        heapq.heappush(due, (at_s, next(numbers), work))

    def over(mend: Callable[[], None]) -> None:
        mend()
        broken.site.revive()

    for event in plan.events:

        def happens(event: Any = event) -> None:
            mend = broken.do(event)
            if mend is None:
                return
            happened.append(event.kind)
            later(event.at_s + event.lasts_s, lambda: over(mend))

        later(event.at_s, happens)
    while due:
        at_s, _, work = heapq.heappop(due)
        time.sleep(max(0.0, began + at_s - time.monotonic()))
        with suppress(ProcessLookupError):  # It is dead already, by another event.
            work()


def _judged(plan: Plan, asked: list[Asked], clients: list[Future[Answer | None]], began: float) -> dict[str, Any]:
    seen: dict[str, Any] = dict.fromkeys(("answers", "compared", "wrong", "lost", "ended", "left"), 0)
    pauses, why = [], []
    for number, (each, client) in enumerate(zip(asked, clients, strict=True)):
        try:
            answer = client.result(max(0.0, began + OVER_WITHIN_S - time.monotonic()))
        except NotInTime:
            seen["lost"] += 1
            raise Failed(f"client {number} waits for ever", seen) from None
        if answer is None:
            seen["left"] += 1
            continue
        wrong = wrong_pieces(answer, each.expected)
        seen["answers"] += 1
        seen["compared"] += answer.tokens if answer.done else len(answer.pieces)
        seen["wrong"] += wrong
        seen["ended"] += bool(answer.error)
        pauses.append(longest_pause(began, answer.times))
        if wrong or (answer.done and answer.text != each.expected):
            why.append(f"client {number} has a wrong token: {answer.text!r}, not {each.expected!r}")
        if not answer.done and not answer.error:
            seen["lost"] += 1
            why.append(f"client {number}: an end without a word")
        if answer.error and answer.pieces and not plan.fatal:
            seen["lost"] += 1
            why.append(f"client {number} lost an answer that could go on: {answer.error}")
    seen["longest_s"] = round(max(pauses, default=0.0), 2)
    if why:
        raise Failed("; ".join(why)[:1000], seen)
    return seen


def _after(broken: Broken, seen: dict[str, Any]) -> None:
    """Whole again: the next answer is right, and nothing of before is left."""
    asked = Asked((("user", ASKED[0][0]),), LENGTHS[0], False)
    reply = httpx.post(f"{broken.site.base}/chat/completions", json=asked.body(), timeout=60, trust_env=False)
    text = reply.json()["choices"][0]["message"]["content"] if reply.status_code == 200 else reply.text
    if text != asked.expected:
        raise Failed(f"afterwards, when all is whole: {text!r}", seen)
    try:
        wait_until(lambda: broken.running() == 0 and broken.left() == 0, FREE_WITHIN_S)
    except AssertionError:
        raise Failed(f"{broken.running()} answers and {broken.left()} sessions are left", seen) from None
