"""Making a draft: a chain that ends by the rule of ``drafting.length``, or for Medusa a tree of a fixed size.

For the compute thread only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from time import perf_counter

from device_agent.draft_tree import DraftTree
from device_agent.drafting_way import DraftingWay
from drafting.drafter import Guess
from drafting.proposing import Candidate, Proposer
from split_model.tree import TRUNK

SIBLINGS = 4
"""Candidates that may follow one node of a tree."""


class DraftMaker:
    """Makes the drafts of one answer.

    Args:
        end_ids: tokens that are not drafted: nothing comes after them, and they are chosen all the same.
    """

    def __init__(
        self, tree: DraftTree, proposer: Proposer, way: DraftingWay, sampled: bool, end_ids: Collection[int]
    ) -> None:
        self._tree = tree
        self._proposer = proposer
        self._way = way
        self._sampled = sampled
        self._ends = end_ids

    def chance(self, candidate: Candidate) -> float:
        """Of acceptance once all before it are accepted, as far as anybody knows."""
        if not self._way.length.calibrated:
            return candidate.weight
        return self._way.calibration.chance(candidate.source, self._sampled, candidate.weight)

    def candidates(
        self, guess: Guess | None, generated: Sequence[int], drafted: Sequence[int], count: int
    ) -> list[Candidate]:
        """What may follow, best first, without end tokens; but a token that was drawn stays, or the text's distribution
        would depend on what is not drafted."""
        if guess is None:
            return []
        found = self._proposer.candidates(guess, generated, drafted, count)
        return [each for each in found if each.chances is not None or each.token not in self._ends]

    def chain(self, generated: Sequence[int], line: Sequence[int], room: int, made: Callable[[int], None]) -> list[int]:
        """The nodes of a draft, each following the one before it: first those of ``line``, which are there, then new.

        Args:
            room: most of them.
            made: called with each node once its row is there.
        """
        tree, length = self._tree, self._way.length
        draft: list[int] = []
        chances: list[float] = []
        for node in line[:room]:
            if not length.takes([*chances, tree.nodes[node].chance]):
                return draft
            draft.append(node)
            chances.append(tree.nodes[node].chance)
            made(node)
        known, began = len(draft), None
        while len(draft) < room and (not chances or length.goes_on(chances)):
            node = draft[-1] if draft else TRUNK
            guess = tree.guess(node)
            if began is None:  # The first guess may have had to read all that was observed: that is no step.
                began = perf_counter()
            found = self.candidates(guess, generated, tree.tokens(node), 1)
            if not found or not length.takes([*chances, chance := self.chance(found[0])]):
                break
            draft += tree.add([node], found, [chance])
            chances.append(chance)
            made(draft[-1])
        if began is not None and len(draft) > known:
            self._way.costs.drafted(perf_counter() - began, len(draft) - known)
        return draft

    def branches(self, generated: Sequence[int], levels: Sequence[Guess], room: int) -> list[int]:
        """The likeliest tree of at most the drafter's number of nodes; ``levels[d]`` is about every node of depth d."""
        drafted: list[int] = []
        choices: list[list[Candidate]] = []
        for guess in levels[:room]:
            found = self.candidates(guess, generated, drafted, SIBLINGS)
            if not found:
                break
            choices.append(found)
            drafted.append(found[0].token)
        parents: list[int] = []
        chosen: list[Candidate] = []
        # Best first: a node's chance is never above its parent's, so parents come before their children.
        waiting = [(-each.weight, at, TRUNK, 0, each) for at, each in enumerate(choices[0] if choices else [])]
        heapq.heapify(waiting)
        count = len(waiting)
        while waiting and len(chosen) < self._way.drafter.tree_nodes:
            negative, _, parent, depth, candidate = heapq.heappop(waiting)
            parents.append(parent)
            chosen.append(candidate)
            for each in choices[depth + 1] if depth + 1 < len(choices) else []:
                heapq.heappush(waiting, (negative * each.weight, count, len(chosen) - 1, depth + 1, each))
                count += 1
        return self._tree.add(parents, chosen, [each.weight for each in chosen]) if chosen else []
