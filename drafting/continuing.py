"""What may be drafted behind tokens of an answer: what its form leaves no choice about, or what a drafter guesses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile

from drafting.choosing import Chooser
from drafting.drafter import Guess
from drafting.masks import CannotTell
from drafting.proposing import Candidate, Proposer
from drafting.verification import Rule
from split_model.sampling import NOBODY

FORM = "form"
"""The source of candidates that no drafter was asked for: the form of the answer leaves nothing else to say."""


class Continuing:
    """Finds what may be drafted for one answer.

    Args:
        chooser: of the answer: what was chosen, its form, its end tokens.
        rule: how its drafts will be verified.
    """

    def __init__(self, chooser: Chooser, rule: Rule) -> None:
        self._chooser = chooser
        self._proposer = Proposer(chooser.params, chooser.prompt, chooser.seed, rule, chooser.masks)

    def forced(self, drafted: Sequence[int]) -> list[Candidate]:
        """What has to follow the ``drafted`` tokens by the answer's form, one behind the other."""
        masks = self._chooser.masks
        try:
            tokens = () if masks is None else masks.forced([*self._chooser.generated, *drafted])
        except CannotTell:  # Nobody can tell there. Who chooses a token there, if anybody ever does, is told so.
            return []
        return list(takewhile(self.fits, (Candidate(token, 1.0, None, FORM) for token in tokens)))

    def candidates(self, guess: Guess | None, drafted: Sequence[int], count: int) -> list[Candidate]:
        """At most ``count`` tokens that may follow the ``drafted`` ones, best first; none where the answer's form
        cannot tell: a draft is never worth an answer."""
        masks, found = self._chooser.masks, list[Candidate]()
        try:
            if masks is not None and masks.ended([*self._chooser.generated, *drafted]):
                return []
            if forced := self.forced(drafted):
                return forced[:1]
            if guess is not None:
                found = self._proposer.candidates(guess, self._chooser.generated, drafted, count)
        except CannotTell:
            return []
        return [each for each in found if self.fits(each)]

    def fits(self, candidate: Candidate) -> bool:
        """Whether it is a token to draft. Nothing comes after an end token, and it is chosen all the same; but one that
        was drawn stays, or the text's distribution would depend on what is not drafted."""
        if candidate.token == NOBODY or not math.isfinite(candidate.weight):
            return False
        return candidate.chances is not None or candidate.token not in self._chooser.end_ids
