"""Drafting on while a verdict travels (HAT section 3.5), for the compute thread only.

The paper prepares for one outcome: that the last drafted token alone is corrected, to one of its runners-up. ``all``
prepares for every number of accepted tokens, as far as an outcome is likely. All that is prepared goes through
the layers together, one batch a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from device_agent.draft_making import DraftMaker
from device_agent.draft_tree import DraftTree
from device_agent.drafting_way import Prepare
from device_agent.local import NODE_ROOM
from drafting.preparing import outcomes
from drafting.proposing import Candidate
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
        sent: the draft's nodes.
    """

    def __init__(
        self, tree: DraftTree, maker: DraftMaker, generated: Sequence[int], sent: Sequence[int], kind: Prepare
    ) -> None:
        assert kind != "none"
        self._tree = tree
        self._maker = maker
        self._generated = generated
        self._sent = sent
        self._kind = kind
        self._leaves: list[tuple[int, float]] | None = None
        self._there: list[tuple[int, float]] = []
        """Ends of lines that were there before, to be gone on with."""

    @property
    def begun(self) -> bool:
        """Whether there is anything that may turn out to be needed."""
        return bool(self._leaves)

    def step(self) -> bool:
        """One token more for everything that is prepared; False when there is nothing left that is likely enough."""
        new = self._roots() if self._leaves is None else self._next()
        new = new[: NODE_ROOM - len(self._tree.nodes)]
        there, self._there = self._there, []
        if not new:
            self._leaves = there or self._leaves or []
            return bool(there)
        added = self._tree.add([each[0] for each in new], [each[1] for each in new], [each[2] for each in new])
        self._leaves = [*there, *((node, each[3]) for node, each in zip(added, new, strict=True))]
        return True

    def _roots(self) -> list[tuple[int, Candidate, float, float]]:
        """The tokens that may be chosen in place of a drafted one, or after the last, as ``_next`` gives them."""
        nodes = [TRUNK, *self._sent]
        first = max(0, len(self._sent) - 1) if self._kind == "last" else 0
        found: list[list[Candidate]] = []
        for accepted, node in enumerate(nodes):
            candidates: list[Candidate] = []
            if accepted >= first:
                guess, drafted = self._tree.guess(node), self._tree.tokens(node)
                candidates = self._maker.candidates(guess, self._generated, drafted, RUNNERS_UP)
                if accepted < len(self._sent):
                    wrong = self._tree.nodes[self._sent[accepted]].token
                    candidates = [each for each in candidates if each.token != wrong]
            found.append(candidates)
        alternatives = [[(each.token, each.weight) for each in candidates] for candidates in found]
        chances = [self._tree.nodes[node].chance for node in self._sent]
        roots = []
        for outcome in outcomes(chances, alternatives, MOST, self._kind):
            there = self._tree.line_of(nodes[outcome.accepted], outcome.token)
            if there:  # Prepared before, and not sent.
                self._there.append((there[-1], outcome.probability))
            elif outcome.probability >= LEAST_CHANCE:
                [candidate] = [each for each in found[outcome.accepted] if each.token == outcome.token]
                roots.append((nodes[outcome.accepted], candidate, outcome.probability, outcome.probability))
        return roots

    def _next(self) -> list[tuple[int, Candidate, float, float]]:
        """New nodes: parent, candidate, chance, and how likely the verdict is that needs them."""
        new = []
        for node, likelihood in self._leaves or ():
            found = self._maker.candidates(self._tree.guess(node), self._generated, self._tree.tokens(node), 1)
            if found and likelihood * (chance := self._maker.chance(found[0])) >= LEAST_CHANCE:
                new.append((node, found[0], chance, likelihood * chance))
        return new
