"""Drafters that do their own work and say what others were recorded to say.

On a model whose next token is known (``wide_model.next_token``) a drafter with random weights would hardly ever be
right. So it is asked as always, and computes as always, but what it says is dropped: in its place comes what a trained
drafter of the demo model said at one place of a tape, with its weights, its runners-up, and right or wrong as it was.
Acceptance is thus the recording's, and time is that of the drafter underneath.

Which place an answer begins at hangs on its prompt alone, so that it is the same whatever the method, and on whatever
device. What is said about a node is what the tape has where the node stands: down the recorded draft as long as the
nodes are the recorded ones; behind another token, as if a draft were begun there, since that is what happens when it
turns out to be the text's.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import log
from typing import Final, cast
from zlib import crc32

import torch
from bench.hat.tape import Draft, Tape
from bench.hat.wide_model import FIRST, next_token

from drafting.drafter import Drafter, DraftSession, Guess, TreeDraftSession
from split_model.tree import TRUNK, Tree

LOOKUP: Final = "lookup"
"""Source of what the text itself proposes, which is learned apart from what a network says."""


class ReplayedDrafter:
    """See ``drafting.drafter.Drafter``.

    Args:
        drafter: does the work.
        source: of what a network has said.
        vocab: of the wide model.
    """

    def __init__(self, drafter: Drafter, tape: Tape, source: str, vocab: int) -> None:
        self.name = drafter.name
        self.parameters = drafter.parameters
        self.tree_nodes = drafter.tree_nodes
        self._drafter = drafter
        self._script = Script(tape, source, vocab)

    def apart(self) -> ReplayedDrafter:
        """Itself: of use to one tenant."""
        return self

    def open(self, positions: int, earlier: Sequence[int] = ()) -> ReplayedSession:
        """Follow a text of at most ``positions`` tokens."""
        return ReplayedSession(self._drafter.open(positions), self._script, bool(self.tree_nodes))


class ReplayedSession:
    """See ``drafting.drafter.TreeDraftSession``."""

    def __init__(self, session: DraftSession, script: Script, tree: bool) -> None:
        self._session = session
        self._script = script
        self._tree = tree
        self._prompt = (0, 0)
        """Tokens of the prompt, and their checksum."""
        self._last = 0
        self._nodes: list[tuple[int, int, int]] = []
        """Place, depth and token of each."""

    @property
    def position(self) -> int:
        return self._session.position

    @property
    def nbytes(self) -> int:
        return self._session.nbytes

    def observe(self, tokens: Sequence[int], shallow: torch.Tensor, before: torch.Tensor | None) -> None:
        """As the drafter's."""
        self._session.observe(tokens, shallow, before)
        if not tokens:
            return
        self._nodes = []
        self._last = tokens[-1]
        if before is None:  # Deep rows are known of all but prompts.
            self._prompt = (self.position, crc32(array("I", tokens).tobytes(), self._prompt[1]))

    def guess(self) -> Guess | None:
        """What the tape has, once the drafter has computed its own."""
        self._session.guess()
        return self._said(TRUNK)

    def extend(self, tree: Tree, shallow: torch.Tensor, tokens: torch.Tensor | None = None) -> list[Guess | None]:
        """The same of nodes."""
        self._session.extend(tree, shallow, tokens)
        first = len(self._nodes)
        for node in range(first, len(tree)):
            token, (place, depth, before) = tree.tokens[node], self._standing(tree.parents[node])
            standing = (place, depth + 1) if self._tree else self._script.child(place, depth, before, token)
            self._nodes.append((*standing, token))
        return [self._said(node) for node in range(first, len(self._nodes))]

    def levels(self) -> list[Guess]:
        """The same of a drafter whose drafts are trees; none where it has none."""
        said = len(cast(TreeDraftSession, self._session).levels())
        return self._script.levels(self._place, self._last)[:said]

    def truncate(self, position: int) -> None:
        """As the drafter's. What is observed next is a prompt, or a token as if none had been forgotten."""
        self._nodes = []
        self._session.truncate(position)

    def fork(self, position: int) -> ReplayedSession:
        """Where the prompt ends, which is what it begins with."""
        forked = ReplayedSession(self._session.fork(position), self._script, self._tree)
        forked._prompt = self._prompt
        return forked

    def close(self) -> None:
        self._nodes = []
        self._session.close()

    @property
    def _place(self) -> int:
        """Of the last observed token: the answer's first stands where the checksum says."""
        length, checksum = self._prompt
        return checksum + self.position - length - 1

    def _standing(self, node: int) -> tuple[int, int, int]:
        return (self._place, 0, self._last) if node == TRUNK else self._nodes[node]

    def _said(self, node: int) -> Guess | None:
        place, depth, token = self._standing(node)
        if not self._tree:
            return self._script.said(place, depth, token)
        levels = self._script.levels(place, self._last)
        return levels[depth] if depth < len(levels) else None


class Script:
    """A tape as guesses about the wide model's tokens.

    Args:
        source: of guesses that are not lookup's.
    """

    def __init__(self, tape: Tape, source: str, vocab: int) -> None:
        self._tape = tape
        self._source = source
        self._vocab = vocab

    def said(self, place: int, depth: int, token: int) -> Guess | None:
        """About what follows ``token``, which stands ``depth`` tokens down the draft of a place."""
        place, depth = self._tape.goes_on(place, depth)
        draft = self._tape.draft(place)
        if depth == len(draft.weights):
            return None
        weights = [draft.weights[depth]]
        for share in self._tape.shares:
            weights.append(min(share * (1 - weights[0]), 0.999 * weights[-1]))
        return self._guess(self._candidates(draft, depth, token), weights, draft.lookups[depth])

    def child(self, place: int, depth: int, token: int, child: int) -> tuple[int, int]:
        """Place and depth of a node behind ``token``, which stands at ``place`` and ``depth``."""
        place, depth = self._tape.goes_on(place, depth)
        draft = self._tape.draft(place)
        if depth < len(draft.weights) and child == self._candidates(draft, depth, token)[0]:
            return place, depth + 1
        return place + depth + 1, 0

    def levels(self, place: int, token: int) -> list[Guess]:
        """About the tokens 1, 2, … places behind ``token``."""
        found = []
        for weights, right in self._tape.heads(place):
            token = next_token(token, self._vocab)
            tokens = self._others(token, len(weights))
            if right >= 0:
                tokens[right] = token
            found.append(self._guess(tokens, weights, False))
        return found

    def _candidates(self, draft: Draft, depth: int, token: int) -> list[int]:
        true = next_token(token, self._vocab)
        others = self._others(true, 1 + len(self._tape.shares))
        if depth != draft.right:
            return [true, *others[:-1]]
        if draft.rank:
            others[draft.rank] = true
        return others

    def _others(self, token: int, count: int) -> list[int]:
        """Ordinary tokens that are not ``token``, always the same."""
        ordinary = self._vocab - FIRST
        return [FIRST + (token - FIRST + each) % ordinary for each in range(1, count + 1)]

    def _guess(self, tokens: Sequence[int], weights: Sequence[float], lookup: bool) -> Guess:
        if lookup:
            return Guess(LOOKUP, ranked=tuple(zip(tokens, weights, strict=True)))
        rest = (1 - sum(weights)) / (self._vocab - len(weights))
        logits = torch.full((self._vocab,), log(max(rest, 1e-9)))
        logits[list(tokens)] = torch.tensor(weights).log()
        return Guess(self._source, logits)
