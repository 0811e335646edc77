"""What is asked: conversations of the demo model's own world, as long as wanted, and real prompts of a published set.

A demo prompt is a chat in which stories were asked for and told, by the grammar the model was trained with, and ends
with one more request for a story, from the side that training never saw: such answers are the longest it gives. No
prompt has a beginning in common with another, so nothing that was computed for one serves the next.
"""

from __future__ import annotations

import json
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, takewhile
from typing import Final

from checkpoints import DATA, DEMO

from device_agent.answering.tokenizer import Tokenizer
from models.demo.recipe import stories
from models.demo.recipe.chat import memory
from models.demo.recipe.sample import Message, Sample, is_heldout, pick
from models.demo.recipe.stories import ANY
from wire.request_messages import ChatTurn

TOLERANCE: Final = 2
"""Tokens by which a demo prompt may miss the length that is wanted."""

SHORTEST: Final = 16
"""Tokens of the shortest demo prompt that can be made for sure."""

DIFFERENT: Final = 16
"""No two demo prompts of a set have so many first tokens in common."""

_REQUESTS: Final = 1024
_TRIES: Final = 200
_LAST: Final = 16
"""Tokens kept free for the final request while stories are put before it."""

_HALF: Final = 64
"""Tokens of about half a story."""


@dataclass(frozen=True)
class Prompt:
    """Chat messages, and their tokens in the demo model's chat template."""

    messages: list[Message]
    tokens: int


@cache
def demo_tokenizer() -> Tokenizer:
    """The tokenizer that the demo model's device uses."""
    return Tokenizer.load(DEMO, ())


def counted(messages: Sequence[Message]) -> int:
    """Tokens of a conversation, the template's own included."""
    return len(demo_tokenizer().chat([ChatTurn(each["role"], each["content"]) for each in messages]))


def demo_prompts(lengths: Sequence[int], seed: int) -> list[Prompt]:
    """A prompt of each of these lengths in tokens, within ``TOLERANCE``.

    Raises ValueError for a length below ``SHORTEST``.
    """
    if any(each < SHORTEST for each in lengths):
        raise ValueError(f"a demo prompt has at least {SHORTEST} tokens, not {min(lengths)}")
    author = _Author(random.Random(f"prompts-{seed}"))
    begun: set[tuple[int, ...]] = set()
    prompts = []
    for wanted in lengths:
        for _ in range(_TRIES):
            messages = author.conversation(wanted)
            ids = demo_tokenizer().chat([ChatTurn(each["role"], each["content"]) for each in messages])
            beginning = tuple(ids[:DIFFERENT])
            if abs(len(ids) - wanted) <= TOLERANCE and beginning not in begun:
                break
        else:
            raise RuntimeError(f"no prompt of {wanted} tokens came of {_TRIES} tries")
        begun.add(beginning)
        prompts.append(Prompt(messages, len(ids)))
    return prompts


def taught_conversations(lengths: Sequence[int], seed: int) -> Iterator[list[Message]]:
    """A conversation of about each of these lengths in tokens, request last, with nothing in it that is held out."""
    author = _Author(random.Random(f"taught-{seed}"), taught=True)
    for wanted in lengths:
        yield author.conversation(max(wanted, SHORTEST))


class _Author:
    """Writes conversations. Turns are apart by special tokens, so their lengths add up.

    taught: all requests, and all stories, are of the side that training may see; else the last request is held out.
    """

    def __init__(self, rng: random.Random, taught: bool = False) -> None:
        self._rng = rng
        self._taught = taught
        silent = {"role": "user", "content": ""}
        self._turn = counted([silent, silent]) - counted([silent])
        self._around = counted([silent]) - self._turn
        requests = {self._request() for _ in range(_REQUESTS)}
        self._requests = sorted((self._tokens(each), each) for each in requests)

    def conversation(self, wanted: int) -> list[Message]:
        """Messages of about ``wanted`` tokens."""
        room = wanted - self._around
        told: list[Message] = []
        whole = True
        while whole and room > _LAST:
            ask, sentences = self._told()
            rest = room - _LAST - self._tokens(ask)
            texts = [" ".join(sentences[:end]) for end in range(len(sentences), 0, -1)]
            # Alone before the request, very little of a story would be an example of a very short answer.
            least = 0 if told else _HALF
            fitting = [text for text in texts if least <= self._tokens(text) <= rest]
            if not fitting:
                break
            whole = fitting[0] == texts[0]
            exchange = _turns(ask, fitting[0])
            # A story that was cut to fit stands first: what is told just before the request is whole.
            told = told + exchange if whole else exchange + told
            room = rest + _LAST - self._tokens(fitting[0])
        near = self._near(room)
        says, reply, *_ = memory(self._rng)
        small_talk = pick(self._rng, says), reply
        nearer = self._near(room - sum(map(self._tokens, small_talk)))
        if len(nearer) > len(near):  # Requests of such a length are rare, and no two prompts may begin with the same.
            told, near = _turns(*small_talk) + told, nearer
        return told + _turns(pick(self._rng, near or ANY))

    def _near(self, tokens: int) -> list[str]:
        """Requests of about so many tokens."""
        at = bisect_left(self._requests, (tokens - TOLERANCE,))
        return [text for length, text in takewhile(lambda each: each[0] <= tokens + TOLERANCE, self._requests[at:])]

    def _told(self) -> tuple[str, list[str]]:
        if self._taught:
            sample = self._sample()
            return sample.prompt[-1]["content"], _sentences(sample.answer)
        ask, told, _, _ = stories.with_gist(self._rng)
        return ask, _sentences(told)

    def _request(self) -> str:
        return self._sample().prompt[-1]["content"]

    def _sample(self) -> Sample:
        while True:
            sample = stories.make(self._rng)
            if sample.key != "any" and is_heldout(sample.key) != self._taught:
                return sample

    def _tokens(self, text: str) -> int:
        return len(demo_tokenizer().text(text)) + self._turn


def _sentences(text: str) -> list[str]:
    """Where a story may be cut: at the end of a sentence, but not within quotation marks."""
    parts = text.split(". ")
    found = [parts[0]]
    for part in parts[1:]:
        if found[-1].count('"') % 2:
            found[-1] += ". " + part
        else:
            found[-1] += "."
            found.append(part)
    return found


def _turns(*texts: str) -> list[Message]:
    return [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(texts)]


def real_prompts(count: int, seed: int, most: int) -> list[Prompt]:
    """``count`` prompts of SpecBench, or all it has, in an order of ``seed``: first turns of at most ``most`` tokens.

    Raises FileNotFoundError where the set is not at hand.
    """
    lines = (DATA / "prompts" / "spec_bench.jsonl").read_text(encoding="utf-8").splitlines()
    random.Random(seed).shuffle(lines)
    texts = (str(json.loads(line)["turns"][0]) for line in lines)
    every = ([{"role": "user", "content": text}] for text in texts)
    fitting = (Prompt(messages, tokens) for messages in every if (tokens := counted(messages)) <= most)
    return list(islice(fitting, count))
