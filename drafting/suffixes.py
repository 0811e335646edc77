"""What followed before, wherever a text said what it says now: a suffix automaton with counts.

A *context* is a set of strings that end at the same places of the text: the longest of them, and its suffixes down to
the first that also occurs elsewhere. There are less than two for each token, whatever the text. Each has a *link* to
the context of the next shorter suffix, so that the contexts of a text's end, longest first, are a short chain.
Appending a token is amortised O(1) but for that chain, whose contexts are counted up, and taking the last token back
costs as much as appending it did.

Pure Python: a text of 8192 tokens is indexed in some 40 ms, and takes about 0.85 KB a token.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

DEPTH = 32
"""Longer strings are not told apart."""

ROOT = 0
_NONE = -1
_NUMBER_BYTES = 8 + 28  # a list's place, and the number in it


class Match(NamedTuple):
    """A string that occurs in the text. Good until the text changes.

    Attributes:
        context: the one it belongs to.
        length: its tokens, at most the index's depth; 0: the empty string.
    """

    context: int
    length: int


NOTHING = Match(ROOT, 0)


class Follower(NamedTuple):
    """A token that followed a context.

    Attributes:
        times: how often it did so.
        recent: tokens of the text up to and with it, where it did so last.
    """

    token: int
    times: int
    recent: int


class SuffixIndex:
    """All strings of up to ``depth`` tokens of a text that grows, and what followed them."""

    def __init__(self, depth: int = DEPTH) -> None:
        """Raises ``ValueError`` for a depth below 1."""
        if depth < 1:
            raise ValueError(f"depth is {depth}; it must be 1 or more")
        self._depth = depth
        self._start()

    def _start(self) -> None:
        self._tokens: list[int] = []
        # Of every context: where each token leads, tokens of its longest string, the next shorter context, and of those
        # whose shortest string has at most depth + 1 tokens: how often they occur and where they last ended.
        self._after: list[dict[int, int]] = [{}]
        self._lengths = [0]
        self._links = [_NONE]
        self._counts = [0]
        self._recents = [0]
        # Of every prefix of the text, the empty one first: its context, and the longest suffix that is counted.
        self._prefixes = [ROOT]
        self._ends = [NOTHING]
        # Of every token, to take it back: the context that was split for it, and the last ends that it has replaced.
        self._splits: list[int] = []
        self._replaced: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def tokens(self, end: int) -> list[int]:
        """The first ``end`` tokens of the text, or all of them where it has fewer."""
        return self._tokens[:end]

    @property
    def nbytes(self) -> int:
        """Bytes that the index holds, the numbers in its tables estimated."""
        tables = sum(map(sys.getsizeof, self._after)) + sum(map(sys.getsizeof, self._replaced))
        return tables + _NUMBER_BYTES * (5 * len(self._after) + 5 * len(self._prefixes))

    @property
    def end(self) -> Match:
        """The last tokens of the text, as many as are told apart."""
        return self._cut(*self._ends[-1], self._depth)

    def append(self, token: int) -> None:
        """The text goes on with ``token``."""
        after, links, lengths = self._after, self._links, self._lengths
        fresh = len(after)
        self._add({}, len(self._tokens) + 1, ROOT, 0, 0)
        context = self._prefixes[-1]
        while context != _NONE and token not in after[context]:
            after[context][token] = fresh
            context = links[context]
        split = _NONE
        if context != _NONE:
            target = after[context][token]
            if lengths[target] == lengths[context] + 1:
                links[fresh] = target
            else:
                split = target
                links[fresh] = self._split(target, context, token)
        self._tokens.append(token)
        self._prefixes.append(fresh)
        self._splits.append(split)
        self._count(token)

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on with ``tokens``."""
        for token in tokens:
            self.append(token)

    def truncate(self, position: int) -> None:
        """Forget every token from ``position`` on, at the cost of appending them or those that stay, whichever is less.

        Raises ``ValueError`` where the text has not that many.
        """
        if not 0 <= position <= len(self._tokens):
            raise ValueError(f"cannot truncate {len(self._tokens)} tokens to {position}")
        if 2 * position < len(self._tokens):
            kept = self._tokens[:position]
            self._start()
            self.extend(kept)
        while len(self._tokens) > position:
            self._take_back()

    def follow(self, match: Match, token: int) -> Match:
        """The longest suffix of ``match`` and then ``token`` that occurs in the text."""
        context, length = match
        while context != _NONE:
            target = self._after[context].get(token)
            if target is not None:
                return self._cut(target, length + 1, self._depth)
            context = self._links[context]
            length = self._lengths[context]
        return NOTHING

    def contexts(self, match: Match) -> Iterator[Match]:
        """The suffixes of ``match`` that something followed and that are told apart, longest first."""
        context, length = match
        while context != ROOT:
            if self._after[context]:
                yield Match(context, length)
            context = self._links[context]
            length = self._lengths[context]

    def total(self, match: Match) -> int:
        """How often ``match`` was followed by anything."""
        context = match.context
        return self._counts[context] - (self._recents[context] == len(self._tokens))

    def kinds(self, match: Match) -> int:
        """How many tokens followed ``match``."""
        return len(self._after[match.context])

    def count(self, match: Match, token: int) -> int:
        """How often ``token`` followed ``match``."""
        target = self._after[match.context].get(token)
        return 0 if target is None else self._counts[target]

    def followers(self, match: Match) -> list[Follower]:
        """The tokens that followed ``match``, in no order."""
        counts, recents = self._counts, self._recents
        return [Follower(token, counts[to], recents[to]) for token, to in self._after[match.context].items()]

    def _add(self, after: dict[int, int], length: int, link: int, count: int, recent: int) -> None:
        self._after.append(after)
        self._lengths.append(length)
        self._links.append(link)
        self._counts.append(count)
        self._recents.append(recent)

    def _cut(self, context: int, length: int, longest: int) -> Match:
        """A string that may be too long, or whose context may have been split since, as its last ``longest`` tokens."""
        length = min(length, longest)
        while self._lengths[self._links[context]] >= length > 0:
            context = self._links[context]
        return Match(context, length)

    def _split(self, target: int, context: int, token: int) -> int:
        """The strings of ``target`` up to ``context`` and then ``token`` become a context of their own, returned."""
        after, links = self._after, self._links
        part = len(after)
        self._add(
            after[target].copy(),
            self._lengths[context] + 1,
            links[target],
            self._counts[target],
            self._recents[target],
        )
        while context != _NONE and after[context].get(token) == target:
            after[context][token] = part
            context = links[context]
        links[target] = part
        return part

    def _count(self, token: int) -> None:
        """Every suffix of the text, the new token included, occurs once more."""
        counts, recents, links = self._counts, self._recents, self._links
        before = self._cut(*self._ends[-1], self._depth + 1)
        end = self._cut(self._after[before.context][token], before.length + 1, self._depth + 1)
        self._ends.append(end)
        position, context, replaced = len(self._tokens), end.context, []
        while context != ROOT:
            replaced.append(recents[context])
            recents[context] = position
            counts[context] += 1
            context = links[context]
        self._replaced.append(tuple(replaced))

    def _take_back(self) -> None:
        """Everything as it was before the last token was appended."""
        after, links = self._after, self._links
        context = self._ends.pop().context
        for recent in self._replaced.pop():
            self._recents[context] = recent
            self._counts[context] -= 1
            context = links[context]
        token, fresh, split = self._tokens.pop(), self._prefixes.pop(), self._splits.pop()
        part = fresh + 1  # if there is one, it was added next
        if split != _NONE:
            links[split] = links[part]
        context = self._prefixes[-1]
        while context != _NONE:
            target = after[context].get(token)
            if target == fresh:
                del after[context][token]
            elif split != _NONE and target == part:
                after[context][token] = split
            else:
                break
            context = links[context]
        for table in (self._after, self._lengths, self._links, self._counts, self._recents):
            del table[fresh:]
