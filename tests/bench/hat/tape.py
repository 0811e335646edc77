"""What drafters said along the answers of the demo model for long prompts, as ``recorded.json`` has it. Pure.

A *tape* is one drafter's: all answers, one after the other. Its places are the tokens that something was drafted
behind: at each place it has the draft that would be begun there, in weights of its tokens, how many of them the text
then had, and where the text's token stood among the runners-up of the first that it had not.

A draft at place ``k`` whose tokens were all right as far as its answer went goes on with the draft at the next answer's
first place: so a tape has no ends, and is played in a circle.

A weight is kept as one of 90 levels, so that being under one of the usual thresholds, in tenths, survives. In the file
a draft of a chain is a letter for the number of right tokens, a digit for the text's place among the runners-up (0:
none), and a character for each token: its level, counted from ``#``, or where the text itself had proposed the token
(lookup) from ``Ā``. A draft of Medusa has for each head the place of the text's token, counted from 1 (0: none), and
the levels of all its candidates, heads being separated by ``!``. Where a chain is what the one before it leaves without
its first token, as it is with drafters that see nothing new in between, it is ``=`` and what it has more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Final

RECORDED: Final = Path(__file__).with_name("recorded.json")

LEVELS: Final = 90
DEEPEST: Final = 24
"""Tokens of a recorded draft at most: the longest that a device makes of itself."""

LEAST_DEEP: Final = 8
"""Tokens that are recorded whatever the drafter thinks of them: HAT's longest draft."""

LEAST_CHANCE: Final = 0.05
"""Nobody drafts on where the chance of the whole, by ``usual_chance``, is less."""

RUNNERS_UP: Final = 3
"""Candidates behind the drafted one."""

_NETWORK, _LOOKUP = ord("#"), ord("Ā")
_NONE_RIGHT = ord("A")
_HEADS = "!"
_SAME = "="


@dataclass(frozen=True)
class Draft:
    """A chain of tokens.

    Attributes:
        weights: the drafter's, of each token, 0 to 1.
        lookups: whether the text itself proposed it.
        right: how many of the first ones the text then had.
        rank: of the text's token among the runners-up of the first wrong one, from 1 on; 0: it is not among them.
    """

    weights: tuple[float, ...]
    lookups: tuple[bool, ...]
    right: int
    rank: int


@dataclass(frozen=True)
class Heads:
    """Medusa's: for each depth its candidates' weights, best first, and which of them the text had (-1: none)."""

    weights: tuple[tuple[float, ...], ...]
    right: tuple[int, ...]


@dataclass(frozen=True)
class Tape:
    """One drafter's drafts.

    Attributes:
        shares: of the weight that a drafted token does not have, what its runners-up have on average.
        answers: drafts of each answer.
    """

    shares: tuple[float, ...]
    answers: tuple[tuple[Draft | Heads, ...], ...]

    @cached_property
    def drafts(self) -> tuple[Draft | Heads, ...]:
        """Of all places."""
        return tuple(draft for answer in self.answers for draft in answer)

    @cached_property
    def left(self) -> tuple[int, ...]:
        """For each place, how many tokens its answer goes on for."""
        return tuple(left for answer in self.answers for left in range(len(answer), 0, -1))

    def __len__(self) -> int:
        return len(self.drafts)

    def draft(self, place: int) -> Draft:
        """Of a chain; the places go round."""
        found = self.drafts[place % len(self)]
        assert isinstance(found, Draft)
        return found

    def goes_on(self, place: int, depth: int) -> tuple[int, int]:
        """Where what follows ``depth`` tokens of the draft at a place is to be read: a place, and a depth there."""
        place %= len(self)
        while depth and depth == self.left[place] == self.draft(place).right:
            place, depth = (place + depth) % len(self), 0
        return place, depth

    def heads(self, place: int) -> Iterator[tuple[tuple[float, ...], int]]:
        """Medusa's depths at a place: weights of the candidates, and which of them the text has (-1: none)."""
        place %= len(self)
        found = self.drafts[place]
        assert isinstance(found, Heads)
        left = self.left[place]
        for depth, (weights, right) in enumerate(zip(found.weights, found.right, strict=True)):
            if depth < left:
                yield weights, right
            else:  # The answer ends before: what the head says of the token that the next one begins with.
                beyond = list(self.heads(place + left))
                yield beyond[depth - left] if depth - left < len(beyond) else (weights, -1)


def level(weight: float) -> int:
    """0 to 89; a weight under a multiple of 1/90 stays under it."""
    return min(max(int(weight * LEVELS + 1e-9), 0), LEVELS - 1)


def weight_of(found: int) -> float:
    """The middle of a level."""
    return (found + 0.5) / LEVELS


def encoded(drafts: Sequence[Draft | Heads]) -> str:
    """An answer's drafts as the file has them."""
    before, texts = "", []
    for draft in drafts:
        text = _encoded(draft)
        rest = _rest(before) if isinstance(draft, Draft) and before else None
        texts.append(_SAME + text[len(rest) :] if rest and text.startswith(rest) else text)
        before = text
    return " ".join(texts)


def decoded(text: str, tree: bool) -> tuple[Draft | Heads, ...]:
    """An answer's drafts, from the file; ``tree``: they are Medusa's. In levels' middles."""
    if tree:
        return tuple(map(_decoded_heads, text.split(" ")))
    before, found = "", []
    for each in text.split(" "):
        if each.startswith(_SAME):
            each = _rest(before) + each[1:]
        before = each
        found.append(_decoded(each))
    return tuple(found)


def _rest(text: str) -> str:
    """A chain's without its first token: letter, digit, the levels of the others."""
    return chr(ord(text[0]) - 1) + text[1] + text[3:]


def _encoded(draft: Draft | Heads) -> str:
    if isinstance(draft, Heads):
        return _HEADS.join(
            f"{right + 1}" + "".join(chr(_NETWORK + level(each)) for each in weights)
            for weights, right in zip(draft.weights, draft.right, strict=True)
        )
    said = zip(draft.weights, draft.lookups, strict=True)
    marks = "".join(chr((_LOOKUP if lookup else _NETWORK) + level(each)) for each, lookup in said)
    return f"{chr(_NONE_RIGHT + draft.right)}{draft.rank}{marks}"


def _decoded(text: str) -> Draft:
    marks = [ord(each) for each in text[2:]]
    lookups = tuple(mark >= _LOOKUP for mark in marks)
    weights = (weight_of(mark - (_LOOKUP if lookup else _NETWORK)) for mark, lookup in zip(marks, lookups, strict=True))
    return Draft(tuple(weights), lookups, ord(text[0]) - _NONE_RIGHT, int(text[1]))


def _decoded_heads(text: str) -> Heads:
    heads = [head for head in text.split(_HEADS) if head]
    weights = []
    for head in heads:
        # Of equal levels the first was the better one; and the middles of levels may be more than 1 together.
        found = [weight_of(ord(mark) - _NETWORK) * (1 - 1e-4 * at) for at, mark in enumerate(head[1:])]
        weights.append(tuple(each / max(1.0, sum(found) / 0.999) for each in found))
    return Heads(tuple(weights), tuple(int(head[0]) - 1 for head in heads))


def load(path: Path = RECORDED) -> dict[str, Tape]:
    """The tapes of all drafters. Raises OSError, ValueError."""
    drafters = json.loads(path.read_text(encoding="utf-8"))["drafters"]
    return {name: read(found) for name, found in drafters.items()}


def read(found: Mapping[str, Any]) -> Tape:
    """One drafter's part of the file."""
    return Tape(tuple(found["shares"]), tuple(decoded(answer, found["tree"]) for answer in found["answers"]))


def likely(weights: Sequence[float], lookups: Sequence[bool]) -> float:
    """The chance of a whole draft, before a device has learned better."""
    return prod(weight if lookup else weight**0.5 for weight, lookup in zip(weights, lookups, strict=True))
