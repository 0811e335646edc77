"""Drafting with a model and with what the text itself says, whichever promises more for each token.

A promise is the weight of the likeliest token, corrected by how often such weights came true on this device; so the
two sources, whose weights are made in different ways, can be compared. Where what the text says is as good as sure, the
model is not asked at all: the nodes wait, and it runs them in one batch once it is asked again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from drafting.calibration import Calibration, usual_chance
from drafting.drafter import Drafter, DraftSession, Guess, new_nodes
from drafting.lookup import LookupDrafter
from split_model.device import on_host
from split_model.tree import TRUNK, Tree

SURE = 0.95
"""Chance from which on a lookup's token is taken without asking the model. A model's step is cheap beside a row that is
sent in vain, so it is only saved where there is hardly anything to win."""


class HybridDrafter:
    """See ``drafting.drafter.Drafter``. ``parameters`` are the model's."""

    name = "hybrid"
    tree_nodes = 0
    reads_tokens = True

    def __init__(self, model: Drafter, lookup: LookupDrafter) -> None:
        self._model = model
        self._lookup = lookup
        self._calibration = Calibration(usual_chance)
        """One for all texts of a tenant: an answer is too short to learn it from alone."""

    def apart(self) -> HybridDrafter:
        """The same model and lookup, which have learned nothing yet: what they learn here is not known there."""
        return HybridDrafter(self._model, self._lookup)

    @property
    def parameters(self) -> int:
        return self._model.parameters

    def open(self, positions: int) -> HybridSession:
        """Follow a text of at most ``positions`` tokens."""
        return HybridSession(self._model.open(positions), self._lookup.open(positions), self._calibration)


class _Opinion(NamedTuple):
    """A guess, and what it comes down to: the likeliest token and its weight."""

    guess: Guess
    token: int
    weight: float


class HybridSession:
    """See ``drafting.drafter.DraftSession``.

    Attributes:
        given: guesses given so far, by source.
    """

    def __init__(self, model: DraftSession, lookup: DraftSession, calibration: Calibration) -> None:
        self.given: Counter[str] = Counter()
        self._model = model
        self._lookup = lookup
        self._calibration = calibration
        self._forget_nodes()

    def _forget_nodes(self) -> None:
        self._opinions: dict[int, list[_Opinion]] = {}  # at each node that was asked about; TRUNK is one
        self._tree: Tree | None = None
        self._known = 0
        self._waiting: list[torch.Tensor] = []  # rows of nodes that the model has not run: always the last ones

    @property
    def position(self) -> int:
        return self._lookup.position

    @property
    def nbytes(self) -> int:
        return self._model.nbytes + self._lookup.nbytes + sum(rows.nbytes for rows in self._waiting)

    def observe(self, tokens: Sequence[int], shallow: torch.Tensor, before: torch.Tensor | None) -> None:
        """Raises what the model raises for rows that are not those of the tokens, or for too many."""
        self._model.observe(tokens, shallow, before)
        self._lookup.observe(tokens, shallow, before)
        if tokens:
            self._learn(tokens)
            self._forget_nodes()

    def guess(self) -> Guess | None:
        said = self._opinions[TRUNK] = _opinions(self._lookup.guess())
        if not self._sure(said):
            said += _opinions(self._model.guess())
        return self._best(said)

    def extend(self, tree: Tree, shallow: torch.Tensor) -> list[Guess | None]:
        """Raises what the model raises when it runs the nodes; then they are all lost until something is observed."""
        new = new_nodes(tree, shallow, self.position, self._known)
        said = [_opinions(guess) for guess in self._lookup.extend(tree, shallow)]
        self._tree, self._known = tree, new.stop
        self._opinions.update(zip(new, said, strict=True))
        self._waiting.append(shallow)
        if not all(map(self._sure, said)):
            for opinions, guess in zip(said, self._run_waiting(tree)[-len(said) :], strict=True):
                opinions += _opinions(guess)
        return [self._best(opinions) for opinions in said]

    def truncate(self, position: int) -> None:
        """Raises ValueError where so many tokens were not observed."""
        self._model.truncate(position)
        self._lookup.truncate(position)
        self._forget_nodes()

    def fork(self, position: int) -> HybridSession:
        """Raises ValueError where so many tokens were not observed."""
        return HybridSession(self._model.fork(position), self._lookup.fork(position), self._calibration)

    def close(self) -> None:
        self._model.close()
        self._lookup.close()
        self._forget_nodes()

    def _run_waiting(self, tree: Tree) -> list[Guess | None]:
        rows, self._waiting = self._waiting, []
        return self._model.extend(tree, rows[0] if len(rows) == 1 else torch.cat(rows))

    def _promise(self, opinion: _Opinion) -> float:
        return self._calibration.chance(opinion.guess.source, False, opinion.weight)

    def _sure(self, said: list[_Opinion]) -> bool:
        return bool(said) and self._promise(said[0]) >= SURE

    def _best(self, said: list[_Opinion]) -> Guess | None:
        if not said:
            return None
        best = max(said, key=self._promise).guess
        self.given[best.source] += 1
        return best

    def _learn(self, tokens: Sequence[int]) -> None:
        """What was said along the path that the text has taken was right or wrong."""
        node: int | None = TRUNK
        for token in tokens:
            if node is None:
                break
            for opinion in self._opinions.get(node, ()):
                self._calibration.seen(opinion.guess.source, False, opinion.weight, opinion.token == token)
            node = self._tree.child(node, token) if self._tree is not None else None


def _opinions(guess: Guess | None) -> list[_Opinion]:
    """None or one."""
    if guess is None:
        return []
    if guess.logits is None:
        token, weight = guess.ranked[0]
    else:
        best = guess.logits.max(0)
        token, weight = on_host(best.indices, (best.values - guess.logits.logsumexp(0)).exp())
        if not math.isfinite(weight):  # As good as silent: what is not a number promises nothing.
            return []
    return [_Opinion(guess, token, weight)]
