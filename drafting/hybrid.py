"""Drafting with a model and with what the text itself says, whichever promises more for each token.

A promise is the weight of the likeliest token, corrected by how often such weights came true on this device; so the
two sources, whose weights are made in different ways, can be compared. Where what the text says is as good as sure, the
model is not asked at all: the nodes wait, and it runs them in one batch once it is asked again.

On a device that is not the CPU nobody looks at what the model says, which would be to wait for the device at each
token: it promises what it has promised so far, whatever its weight. And the text says nothing behind a token of the
model's, which the host does not know yet.
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
from split_model.device import joined_rows, on_host, put
from split_model.sampling import NOBODY
from split_model.tree import TRUNK, Tree

UNSEEN = 0.5
"""The weight of what nobody has looked at: what it is worth is learned, apart from all that was looked at."""

SURE = 0.95
"""Chance from which on a lookup's token is taken without asking the model. A model's step is cheap beside a row that is
sent in vain, so it is only saved where there is hardly anything to win."""


class HybridDrafter:
    """See ``drafting.drafter.Drafter``. ``parameters`` are the model's."""

    name = "hybrid"
    tree_nodes = 0

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

    def open(self, positions: int, earlier: Sequence[int] = ()) -> HybridSession:
        """Follow a text of at most ``positions`` tokens."""
        return HybridSession(
            self._model.open(positions, earlier), self._lookup.open(positions, earlier), self._calibration
        )


class _Opinion(NamedTuple):
    """A guess, and what it comes down to: the likeliest token and its weight. ``NOBODY`` where nobody has looked; then
    it is taken to be the one that was drafted."""

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
        # Rows of nodes that the model has not run, always the last ones, and their tokens where the layers are.
        self._waiting: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    @property
    def position(self) -> int:
        return self._lookup.position

    @property
    def nbytes(self) -> int:
        return self._model.nbytes + self._lookup.nbytes + sum(rows.nbytes for rows, _ in self._waiting)

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

    def extend(self, tree: Tree, shallow: torch.Tensor, tokens: torch.Tensor | None = None) -> list[Guess | None]:
        """Raises what the model raises when it runs the nodes; then they are all lost until something is observed."""
        new = new_nodes(tree, shallow, self.position, self._known)
        said = [_opinions(guess) for guess in self._lookup.extend(tree, shallow)]
        self._tree, self._known = tree, new.stop
        self._opinions.update(zip(new, said, strict=True))
        self._waiting.append((shallow, tokens))
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
        rows, tokens = zip(*self._waiting, strict=True)
        self._waiting, ids = [], None
        if any(each is not None for each in tokens):
            first, known = len(tree) - sum(map(len, rows)), []
            for each, here in zip(tokens, rows, strict=True):
                told = torch.tensor(tree.tokens[first : first + len(here)])
                known.append(put(told, here.device) if each is None else each)
                first += len(here)
            ids = torch.cat(known)
        return self._model.extend(tree, joined_rows(rows), ids)

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
                said = self._drafted(node) if opinion.token == NOBODY else opinion.token
                if said != NOBODY:
                    self._calibration.seen(opinion.guess.source, False, opinion.weight, said == token)
            node = self._tree.child(node, token) if self._tree is not None else None

    def _drafted(self, node: int) -> int:
        """The token that was drafted behind a node, as far as the host was told."""
        tree = self._tree  # None where there is one node at most, of which nobody has asked what follows.
        return NOBODY if tree is None or node not in tree.parents else tree.tokens[tree.parents.index(node)]


def _opinions(guess: Guess | None) -> list[_Opinion]:
    """None or one."""
    if guess is None:
        return []
    if guess.logits is None:
        token, weight = guess.ranked[0]
    elif not guess.logits.is_cpu:
        token, weight = NOBODY, UNSEEN
    else:
        best = guess.logits.max(0)
        token, weight = on_host(best.indices, (best.values - guess.logits.logsumexp(0)).exp())
        if not math.isfinite(weight):  # As good as silent: what is not a number promises nothing.
            return []
    return [_Opinion(guess, token, weight)]
