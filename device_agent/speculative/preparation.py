"""What is drafted while a verdict travels: nodes for likely verdicts (HAT section 3.5).

The paper has one, that the last drafted token alone is corrected, to one of its runners-up; ``all`` prepares for every
number of accepted tokens, as far as an outcome is likely, in one batch a step. For the compute thread only.
"""

from __future__ import annotations

from collections.abc import Sequence

from device_agent.chain.local import NODE_ROOM
from device_agent.speculative.ahead import Ahead
from device_agent.speculative.draft_maker import DraftMaker
from drafting.outcomes import outcomes
from drafting.proposing import Candidate
from service.draft_settings import Prepare
from split_model.tree import TRUNK

MOST = 8
"""Outcomes that are prepared for."""

RUNNERS_UP = 4
"""Candidates that are looked at after each number of accepted tokens."""

LEAST_CHANCE = 0.04
"""What is less likely to be needed is not gone on with."""


class Preparation:
    """What is drafted behind one draft in flight.

    Args:
        sent: the draft's nodes."""

    def __init__(self, ahead: Ahead, maker: DraftMaker, sent: Sequence[int], kind: Prepare) -> None:
        assert kind != "none"
        self._ahead = ahead
        self._maker = maker
        self._sent = sent
        self._kind = kind
        self.leaves: list[tuple[int, float]] | None = None
        """Ends of what is prepared, each with how likely it is that it is needed; None before the first step."""
        self._there: list[tuple[int, float]] = []
        """Ends of lines that were there before, to be gone on with."""

    def step(self) -> bool:
        """One token more for everything that is prepared; False when there is nothing left that is likely enough."""
        new = self._roots() if self.leaves is None else self._next()
        new = new[: NODE_ROOM - len(self._ahead.nodes)]
        there, self._there = self._there, []
        if not new:
            self.leaves = there or self.leaves or []
            return bool(there)
        parents, candidates, chances, likelihoods = zip(*new, strict=True)
        self.leaves = [*there, *zip(self._ahead.add(parents, candidates, chances), likelihoods, strict=True)]
        return True

    def _roots(self) -> list[tuple[int, Candidate, float, float]]:
        """The tokens that may be chosen in place of a drafted one, or after the last, as ``_next`` gives them."""
        ahead, nodes = self._ahead, [TRUNK, *self._sent]
        first = max(0, len(self._sent) - 1) if self._kind == "last" else 0
        found: list[list[Candidate]] = []
        for accepted, node in enumerate(nodes):
            candidates = (
                self._maker.candidates(ahead.guess(node), ahead.tree.text_of(node), RUNNERS_UP)
                if accepted >= first
                else []
            )
            if accepted < len(self._sent):
                wrong = ahead.tree.tokens[self._sent[accepted]]
                candidates = [each for each in candidates if each.token != wrong]
            found.append(candidates)
        alternatives = [[(each.token, each.weight) for each in candidates] for candidates in found]
        chances = [ahead.nodes[node].chance for node in self._sent]
        roots = []
        for outcome in outcomes(chances, alternatives, MOST, self._kind):
            there = ahead.tree.line_of(nodes[outcome.accepted], outcome.token)
            if there:  # Prepared before, and not sent.
                self._there.append((there[-1], outcome.probability))
            elif outcome.probability >= LEAST_CHANCE:
                [candidate] = [each for each in found[outcome.accepted] if each.token == outcome.token]
                roots.append((nodes[outcome.accepted], candidate, outcome.probability, outcome.probability))
        return roots

    def _next(self) -> list[tuple[int, Candidate, float, float]]:
        """New nodes: parent, candidate, chance, and how likely the verdict is that needs them."""
        new = []
        for node, likelihood in self.leaves or ():
            found = self._maker.candidates(self._ahead.guess(node), self._ahead.tree.text_of(node), 1)
            if found and likelihood * (chance := self._maker.chance(found[0])) >= LEAST_CHANCE:
                new.append((node, found[0], chance, likelihood * chance))
        return new
