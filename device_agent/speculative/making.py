"""Making a draft: a chain that ends by the rule of ``drafting.length``, or for Medusa a tree of a fixed size.

For the compute thread only.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from time import perf_counter

from device_agent.sharing.compute import Lane
from device_agent.speculative.ahead import Ahead
from device_agent.speculative.choosing import Chooser
from device_agent.speculative.way import DraftingWay
from drafting.drafter import Guess
from drafting.proposing import Candidate, Proposer
from split_model.tree import TRUNK

SIBLINGS = 4
"""Candidates that may follow one node of a tree."""

DRAFTING_S = 0.01
"""Seconds after which a draft ends while another tenant's work waits for the thread: a token more is worth a few
milliseconds of somebody's, but on a slow device a whole draft may take half a second."""


class DraftMaker:
    """Makes the drafts of one answer.

    Args:
        compute: the thread, for which others may wait.
    """

    def __init__(self, ahead: Ahead, chooser: Chooser, way: DraftingWay, compute: Lane) -> None:
        self._ahead = ahead
        self._chooser = chooser
        self._way = way
        self._compute = compute
        self._proposer = Proposer(chooser.params, chooser.prompt, chooser.seed, way.rule)

    def chance(self, candidate: Candidate) -> float:
        """Of acceptance once all before it are accepted, as far as anybody knows."""
        if not self._way.length.calibrated:
            return candidate.weight
        sampled = not self._chooser.params.is_greedy
        return self._way.calibration.chance(candidate.source, sampled, candidate.weight)

    def candidates(self, node: int, count: int) -> list[Candidate]:
        """At most ``count`` tokens that may follow ``node``, best first."""
        return self._candidates(self._ahead.guess(node), self._ahead.tokens(node), count)

    def chain(self, line: Sequence[int], room: int) -> Iterator[int]:
        """The nodes of a draft as they are made, each following the one before it: first those of ``line``, which are
        there, then new ones; at most ``room``."""
        ahead, length = self._ahead, self._way.length
        chances: list[float] = []
        node = TRUNK
        for node in line[:room]:
            chances.append(ahead.nodes[node].chance)
            if not length.takes(chances):
                return
            yield node
        known, began = len(chances), None
        while len(chances) < room and (not chances or length.goes_on(chances)):
            if began is not None and perf_counter() - began > DRAFTING_S and self._compute.others_wait:
                break
            guess = ahead.guess(node)
            if began is None:  # The first guess may have had to read all that was observed: that is no step.
                began = perf_counter()
            found = self._candidates(guess, ahead.tokens(node), 1)
            if not found or not length.takes([*chances, chance := self.chance(found[0])]):
                break
            [node] = ahead.add([node], found, [chance])
            chances.append(chance)
            yield node
        if began is not None and len(chances) > known:
            self._way.costs.drafted(perf_counter() - began, len(chances) - known)

    def branches(self, levels: Sequence[Guess], room: int) -> Sequence[int]:
        """The likeliest tree of at most the drafter's number of nodes; ``levels[d]`` is about every node of depth d."""
        drafted: list[int] = []
        choices: list[list[Candidate]] = []
        for guess in levels[:room]:
            found = self._candidates(guess, drafted, SIBLINGS)
            if not found:
                break
            choices.append(found)
            drafted.append(found[0].token)
        parents: list[int] = []
        chosen: list[Candidate] = []
        first = len(self._ahead.nodes)
        # Best first: a node's chance is never above its parent's, so parents come before their children.
        waiting = [(-each.weight, at, TRUNK, 0, each) for at, each in enumerate(choices[0] if choices else [])]
        heapq.heapify(waiting)
        count = len(waiting)
        while waiting and len(chosen) < self._way.tree_nodes:
            negative, _, parent, depth, candidate = heapq.heappop(waiting)
            parents.append(parent)
            chosen.append(candidate)
            for each in choices[depth + 1] if depth + 1 < len(choices) else []:
                heapq.heappush(waiting, (negative * each.weight, count, first + len(chosen) - 1, depth + 1, each))
                count += 1
        return self._ahead.add(parents, chosen, [each.weight for each in chosen]) if chosen else ()

    def _candidates(self, guess: Guess | None, drafted: Sequence[int], count: int) -> list[Candidate]:
        """What may follow, without end tokens: nothing comes after them, and they are chosen all the same. But a token
        that was drawn stays, or the text's distribution would depend on what is not drafted."""
        if guess is None:
            return []
        found = self._proposer.candidates(guess, self._chooser.generated, drafted, count)
        return [each for each in found if each.chances is not None or each.token not in self._chooser.end_ids]
