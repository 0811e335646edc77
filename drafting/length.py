"""How long a draft gets, and whether there is one at all. Pure.

``Fixed`` is HAT's rule (Eq. 5). ``CostAware`` maximises tokens a second over all rounds, which are a renewal process: a
row that is kept with chance c brings c tokens and takes the time of a row, so it is worth it while c is at least the
tokens that this time brings elsewhere, at the rate R of the rounds as they are. Chances are of a candidate's acceptance
once all tokens before it are accepted, so that a whole draft is accepted with the product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MEMORY = 0.98
"""Weight of the past in what rounds with a draft bring; 50 rounds count."""

HOPE = 4.0
"""Rounds that the prior is worth: without any experience, drafting is tried."""

MARGIN = 0.01
"""Share of a plain round that drafting has to lose before it is given up, or to win before it is taken up."""

PROBE_ROUNDS = (16, 64)
"""Plain rounds between two probes while drafting does not pay: at first, and once that is confirmed. More where probes
would take over ``PROBE_COST`` otherwise."""

PROBE_COST = 0.008
"""Share of the time that probes may take."""

PLAIN_ROUNDS = (8, 250)
"""Rounds with a draft between two without one, which say what a plain round takes: at least, and at most. Where a
draft hardly saves anything, it costs hardly anything to know better."""

PLAIN_COST = 0.004
"""Share of the time that such rounds may take."""

PLAIN_MEMORY = 16
"""Plain rounds that count."""

GIVEN_UP = 2.0
"""Rounds that experience with drafting is worth once it is given up."""

FIRST_CHANCE = 0.7
"""The usual chance of a draft's first token, before any."""

BANDS = 5
"""Bands of chances that have a mean of what follows."""

SPIKE = 3.0
"""A round that takes more times what it should is taken for this many: something else was in its way."""

PLAIN_SPIKE = 1.5
"""The same of a plain round, of which there are few."""


class DraftLength(Protocol):
    """Decides for all the answers of one agent with one drafter; they may take turns in any order."""

    @property
    def calibrated(self) -> bool:
        """Whether it wants chances of acceptance; else the candidates' weights as they are."""
        ...

    def begins(self) -> bool:
        """Whether to draft in the round that begins now. Ask once a round."""
        ...

    def takes(self, chances: Sequence[float]) -> bool:
        """Whether the candidate with the last of ``chances`` is worth a row; the others are in the draft already."""
        ...

    def goes_on(self, chances: Sequence[float]) -> bool:
        """Whether to compute one more guess, after a draft of tokens with these chances."""
        ...

    def foreseen(self) -> int:
        """Tokens to draft, 1 or more, where none is looked at before all are made; ``takes`` and ``goes_on`` cut."""
        ...

    def seen(self, proposed: int, accepted: int, seconds: float, drafted: bool = True) -> None:
        """A round has taken ``seconds``, and ``accepted`` of the ``proposed`` tokens stay.

        Args:
            drafted: False where ``begins`` said no: only such a round tells what one without a drafter takes.
        """
        ...


@dataclass(frozen=True)
class Fixed:
    """HAT Eq. 5: on until a token's weight is under the threshold, which is still sent.

    Attributes:
        threshold: the paper's eta.
        cap: the most tokens.
    """

    threshold: float = 0.6
    cap: int = 8

    @property
    def calibrated(self) -> bool:
        return False

    def begins(self) -> bool:
        return True

    def takes(self, chances: Sequence[float]) -> bool:
        return len(chances) <= self.cap

    def goes_on(self, chances: Sequence[float]) -> bool:
        return len(chances) < self.cap and (not chances or chances[-1] >= self.threshold)

    def foreseen(self) -> int:
        return self.cap

    def seen(self, proposed: int, accepted: int, seconds: float, drafted: bool = True) -> None:
        pass


class Costs(Protocol):
    """Seconds: of a verification of one row, of each further row, and of a step of drafting."""

    @property
    def round_s(self) -> float: ...

    @property
    def row_s(self) -> float: ...

    @property
    def draft_s(self) -> float: ...


class CostAware:
    """Drafts while it pays, and not at all where it does not.

    Args:
        costs: as they are now; they may go on learning.
        cap: the most tokens of a draft.
    """

    def __init__(self, costs: Costs, cap: int = 24) -> None:
        self._costs = costs
        self._cap = cap
        self._next = _NextChance()
        self._first = FIRST_CHANCE
        self._drafts = True
        # Fading sums over rounds with a draft: rounds, tokens they brought, seconds over those of a plain round.
        self._rounds, self._tokens, self._extra_s = HOPE, 2.0 * HOPE, 0.0
        self._beside = 1.0  # seconds of a plain round over those of its verification
        self._plain_seen = 0
        self._since = 0  # rounds since the last probe, of either kind
        self._interval = PROBE_ROUNDS[0]

    @property
    def calibrated(self) -> bool:
        return True

    @property
    def plain_s(self) -> float:
        """Expected seconds of a round without a draft."""
        return self._beside * self._costs.round_s

    @property
    def rate(self) -> float:
        """Expected tokens a second: the paper calls its inverse TBT."""
        drafting = self._tokens / (self._rounds * self.plain_s + self._extra_s)
        return max(drafting, 1 / self.plain_s)

    @property
    def gain_s(self) -> float:
        """Seconds that a round with a draft saves: a token saves a plain round, the draft takes more than one."""
        return ((self._tokens - self._rounds) * self.plain_s - self._extra_s) / self._rounds

    def begins(self) -> bool:
        self._since += 1
        if self._since <= self._interval:
            return self._drafts
        self._since = 0
        return not self._drafts

    def takes(self, chances: Sequence[float]) -> bool:
        if len(chances) > 1:
            self._next.seen(*chances[-2:])
        elif chances:
            self._first += (chances[0] - self._first) * (1 - MEMORY)
        return len(chances) <= self._cap and math.prod(chances) >= self.rate * self._costs.row_s

    def goes_on(self, chances: Sequence[float]) -> bool:
        if not chances or len(chances) >= self._cap:
            # The first guess is what ``begins`` has decided on, by what whole rounds bring.
            return len(chances) < self._cap
        expected = math.prod(chances) * self._next.after(chances[-1])
        return expected >= self.rate * (self._costs.draft_s + self._costs.row_s)

    def foreseen(self) -> int:
        """As far as ``goes_on`` would say if every chance were what usually comes."""
        least = self.rate * (self._costs.draft_s + self._costs.row_s)
        chance = reached = self._first
        tokens = 1
        while tokens < self._cap:
            chance = self._next.mean(chance)
            reached *= chance
            if reached < least:
                break
            tokens += 1
        return tokens

    def seen(self, proposed: int, accepted: int, seconds: float, drafted: bool = True) -> None:
        if not drafted:
            self._plain_took(seconds)
        else:
            self._draft_took(accepted + 1, seconds, proposed)
        if self._drafts and self.gain_s < -MARGIN * self.plain_s:
            self._give_up()
        elif not self._drafts and self.gain_s > MARGIN * self.plain_s:
            self._drafts, self._since, self._interval = True, 0, PROBE_ROUNDS[0]

    def _draft_took(self, tokens: int, seconds: float, proposed: int) -> None:
        plain_s, costs = self.plain_s, self._costs
        modelled_s = plain_s + costs.draft_s + proposed * (costs.draft_s + costs.row_s)
        seconds = min(seconds, SPIKE * max(modelled_s, plain_s + self._extra_s / self._rounds))
        self._rounds = MEMORY * self._rounds + 1
        self._tokens = MEMORY * self._tokens + tokens
        self._extra_s = MEMORY * self._extra_s + seconds - plain_s
        if self._drafts:
            return
        lost_s = seconds - tokens * plain_s
        if lost_s < 0:
            # Perhaps it pays by now: the next probe comes at once.
            self._interval = 0
        else:
            self._interval = min(max(2 * self._interval, PROBE_ROUNDS[0]), PROBE_ROUNDS[1])
            self._interval = max(self._interval, math.ceil(lost_s / (PROBE_COST * plain_s)))

    def _plain_took(self, seconds: float) -> None:
        before_s = self.plain_s
        beside = min(seconds / self._costs.round_s, PLAIN_SPIKE * self._beside)
        self._plain_seen = min(self._plain_seen + 1, PLAIN_MEMORY)
        self._beside += (beside - self._beside) / (self._plain_seen + 0.5)
        # What rounds with a draft took stays as measured.
        self._extra_s += self._rounds * (before_s - self.plain_s)
        if self._drafts:
            between = math.ceil(abs(self.gain_s) / (PLAIN_COST * self.plain_s))
            self._interval = min(max(between, PLAIN_ROUNDS[0]), PLAIN_ROUNDS[1], PLAIN_ROUNDS[0] << self._plain_seen)

    def _give_up(self) -> None:
        self._drafts, self._since, self._interval = False, 0, PROBE_ROUNDS[0]
        # What was learned weighs less from now on, or it would take many probes to find that things have changed.
        share = GIVEN_UP / self._rounds
        self._rounds, self._tokens, self._extra_s = GIVEN_UP, share * self._tokens, share * self._extra_s


class _NextChance:
    """The mean chance of the candidate that follows, by the chance of the one before: certain stretches go on."""

    def __init__(self) -> None:
        self._means = [(band + 0.5) / BANDS for band in range(BANDS)]

    def mean(self, chance: float) -> float:
        """What usually comes after ``chance``."""
        return self._means[_band(chance)]

    def after(self, chance: float) -> float:
        """What to expect after ``chance``. Asking draws a mean a little to the chance itself: one so low that nobody
        goes on there any more, and sees how it is by now, must not stay so for ever."""
        band = _band(chance)
        self._means[band] += (chance - self._means[band]) * (1 - MEMORY) / 4
        return self._means[band]

    def seen(self, chance: float, following: float) -> None:
        band = _band(chance)
        self._means[band] += (following - self._means[band]) * (1 - MEMORY)


def _band(chance: float) -> int:
    return min(int(chance * BANDS), BANDS - 1)
