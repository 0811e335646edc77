"""How a draft grows, token by token: what the answer's form leaves no choice about, and what a drafter guesses, for as
long as the rule of ``drafting.length`` goes on. For the compute thread only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import takewhile
from time import perf_counter

from device_agent.chain.chain import ChainSession
from device_agent.speculative.ahead import Ahead
from device_agent.speculative.way import DraftingWay
from drafting.choosing import Chooser
from drafting.drafter import Guess
from drafting.proposing import Candidate, Proposer
from split_model.sampling import NOBODY
from split_model.tree import TRUNK

DRAFTING_S = 0.01
"""Seconds after which a draft ends while another tenant's work waits for the thread: a token more is worth a few
milliseconds of somebody's, but on a slow device a whole draft may take half a second."""

FORM = "form"
"""The source of candidates that no drafter was asked for: the form of the answer leaves nothing else to say."""


class DraftMaker:
    """Makes the drafts of one answer."""

    def __init__(self, session: ChainSession, ahead: Ahead, chooser: Chooser, way: DraftingWay) -> None:
        self._session = session
        self._ahead = ahead
        self._chooser = chooser
        self._way = way
        self._proposer = Proposer(chooser.params, chooser.prompt, chooser.seed, way.rule, chooser.masks)

    def chance(self, candidate: Candidate) -> float:
        """Of acceptance once all before it are accepted, as far as anybody knows."""
        if not self._way.length.calibrated:
            return candidate.weight
        return self._way.calibration.chance(candidate.source, not self._chooser.params.is_greedy, candidate.weight)

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
        made, began = 0, None
        while len(chances) < room and (not chances or length.goes_on(chances)):
            nodes = self._form(node, chances, room)
            yield from nodes
            if nodes:
                node = nodes[-1]
                continue
            if began is not None and perf_counter() - began > DRAFTING_S and self._session.compute.others_wait:
                break
            guess = ahead.guess(node)
            if began is None:  # The first guess may have had to read all that was observed: that is no step.
                began = perf_counter()
            found = self.candidates(guess, ahead.tree.text_of(node), 1)
            if not found or not length.takes([*chances, chance := self.chance(found[0])]):
                break
            [node] = ahead.add([node], found, [chance])
            chances.append(chance)
            made += 1
            yield node
        if began is not None and made:
            self._way.costs.drafted(perf_counter() - began, made)

    def _form(self, node: int, chances: list[float], room: int) -> Sequence[int]:
        """Nodes of what has to follow ``node`` by the answer's form, run in one batch; their chances join ``chances``,
        of which there are to be no more than ``room``."""
        ahead, new = self._ahead, list[Candidate]()
        for each in self.forced(ahead.tree.text_of(node))[: room - len(chances)]:
            if not self._way.length.takes([*chances, chance := self.chance(each)]):
                break
            chances.append(chance)
            new.append(each)
        if not new:
            return ()
        first = len(ahead.nodes)
        return ahead.add([node, *range(first, first + len(new) - 1)], new, chances[-len(new) :])

    def forced(self, drafted: Sequence[int]) -> list[Candidate]:
        """What has to follow the ``drafted`` tokens by the answer's form, one behind the other."""
        masks = self._chooser.masks
        tokens = () if masks is None else masks.forced([*self._chooser.generated, *drafted])
        return list(takewhile(self.fits, (Candidate(token, 1.0, None, FORM) for token in tokens)))

    def candidates(self, guess: Guess | None, drafted: Sequence[int], count: int) -> list[Candidate]:
        """At most ``count`` tokens that may follow the ``drafted`` ones, best first."""
        masks = self._chooser.masks
        if masks is not None and masks.ended([*self._chooser.generated, *drafted]):
            return []
        if forced := self.forced(drafted):
            return forced[:1]
        found = () if guess is None else self._proposer.candidates(guess, self._chooser.generated, drafted, count)
        return [each for each in found if self.fits(each)]

    def fits(self, candidate: Candidate) -> bool:
        """Whether it is a token to draft. Nothing comes after an end token, and it is chosen all the same; but one that
        was drawn stays, or the text's distribution would depend on what is not drafted."""
        if candidate.token == NOBODY or not math.isfinite(candidate.weight):
            return False
        return candidate.chances is not None or candidate.token not in self._chooser.end_ids
