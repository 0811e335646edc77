"""What clients ask while something breaks: plain answers, second turns, drafted ones; what transformers answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from checkpoints import DEMO
from oracle import oracle_tokens
from streamed import Answer, stream_answer

from device_agent.answering.tokenizer import Tokenizer
from wire.request_messages import ChatTurn

TOKENS: Final = 160
AT: Final = 20
"""After so many pieces of text of every answer something happens."""

MODEL: Final = "trilby-demo"

Turn = tuple[str, str]
"""Role and text."""


@dataclass(frozen=True)
class Shape:
    """One way to ask.

    Attributes:
        questions: the last one is asked while something breaks; those before it were answered in peace.
        draft: the drafter that the request names, "" for the device's own choice.
        tokens: of the last answer.
    """

    questions: tuple[str, ...]
    draft: str = "none"
    tokens: int = TOKENS

    def turns(self) -> tuple[Turn, ...]:
        """The conversation up to the last question, with transformers' answers in it."""
        said: tuple[Turn, ...] = ()
        for question in self.questions:
            said += (("user", question),)
            if question is not self.questions[-1]:
                said += (("assistant", wanted(said, TOKENS)),)
        return said


SHAPES: Final[Mapping[str, Shape]] = {
    "plain": Shape(("Tell me a story about a fox.",)),
    "second turn": Shape(("Who found the key?", "And where was it?")),
    # Long: what is drafted comes so much faster that a short one could be over before anything is broken.
    "drafted": Shape(("Tell me a story about a river.",), "", 3 * TOKENS),
}
"""By the names that settings of ``rows`` have."""


@lru_cache(maxsize=1)
def tokenizer() -> Tokenizer:
    """The demo model's."""
    return Tokenizer.load(DEMO, ())


@lru_cache(maxsize=256)
def wanted_ids(turns: tuple[Turn, ...], tokens: int) -> tuple[int, ...]:
    """The tokens that transformers answers a conversation with, greedily."""
    prompt = tokenizer().chat([ChatTurn(role, text) for role, text in turns])
    return tuple(oracle_tokens(DEMO, tuple(prompt), tokens))


def wanted(turns: tuple[Turn, ...], tokens: int, first: int | None = None) -> str:
    """The same as text; ``first``: of the first so many of them alone."""
    return tokenizer().decode(list(wanted_ids(turns, tokens)[:first]))


def body_of(turns: tuple[Turn, ...], tokens: int = TOKENS, draft: str = "none") -> dict[str, Any]:
    """The request for a chat answer of so many tokens, greedy."""
    messages = [{"role": role, "content": text} for role, text in turns]
    body = {"model": MODEL, "messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {**body, "draft": draft} if draft else body


def wrong_pieces(answer: Answer, expected: str) -> int:
    """Of the pieces of an answer those from the first character on that is another than expected."""
    length = wrong = 0
    for piece in answer.pieces:
        wrong += expected[length : length + len(piece)] != piece or bool(wrong)
        length += len(piece)
    return wrong


class Asked:
    """All shapes, asked at once.

    Args:
        names: of the shapes.
        do: called once, on a thread of its own, so that clients read on, when each answer has come to ``at`` pieces.
    """

    def __init__(
        self, base: str, names: Iterable[str] = SHAPES, at: int = AT, do: Callable[[], object] = lambda: None
    ) -> None:
        self._base, self._at, self._do = base, at, do
        self._names = tuple(names)
        self._lock = threading.Lock()
        self._there: set[str] = set()
        self._doing: Future[object] | None = None
        self.turns = {name: SHAPES[name].turns() for name in self._names}

    def begin(self) -> None:
        """Have the turns before the last ones answered; raises AssertionError where one is not transformers'."""
        for name in self._names:
            for count in range(1, len(self.turns[name]), 2):
                before = self.turns[name][:count]
                answer = stream_answer(self._base, body_of(before))
                assert answer.done and answer.text == self.turns[name][count][1], (name, answer.error)

    def answers(self) -> dict[str, Answer]:
        """What comes of it, by shape. Raises what ``do`` has raised."""
        self._there.clear()
        with ThreadPoolExecutor(len(self._names) + 1) as pool:
            asked = {name: pool.submit(self._ask, name, pool) for name in self._names}
            found = {name: each.result() for name, each in asked.items()}
        if self._doing is not None:
            self._doing.result()
        return found

    def expected(self, name: str) -> str:
        """What transformers says."""
        return wanted(self.turns[name], SHAPES[name].tokens)

    def _ask(self, name: str, pool: ThreadPoolExecutor) -> Answer:
        body = body_of(self.turns[name], SHAPES[name].tokens, SHAPES[name].draft)
        return stream_answer(self._base, body, partial(self._seen, name, pool))

    def _seen(self, name: str, pool: ThreadPoolExecutor, count: int) -> None:
        if count != self._at:
            return
        with self._lock:
            self._there.add(name)
            all_there = len(self._there) == len(self._names)
        if all_there:
            self._doing = pool.submit(self._do)
