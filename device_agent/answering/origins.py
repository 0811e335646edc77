"""Where each token of one choice came from, and what its rounds took, for clients that ask."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from device_agent.answering.times import cut
from device_agent.chain.chain import ChainSession
from drafting.choosing import Chosen
from split_model.hints import TimeSpent, TurnSpent
from wire.origins import Origin, Spent


class Origins:
    """Counts the rounds of a choice by its tokens: the first that nobody had drafted ends one.

    Args:
        clock: seconds; the first round counts from now.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._at = clock()
        self._round = 0
        self._begins = True
        self._before = TimeSpent()

    def of(self, chosen: Chosen, session: ChainSession) -> Origin:
        """Return where the next token came from."""
        begins, round = self._begins, self._round
        self._begins = not chosen.source
        self._round += self._begins
        if not begins:
            return Origin(round, chosen.source)
        now = self._clock()
        took_us, self._at = max(0, int((now - self._at) * 1e6)), now
        return Origin(round, chosen.source, took_us, self._spent(round, session.spent))

    def _spent(self, round: int, spent: TurnSpent | None) -> Spent | None:
        if spent is None:
            return None
        if not round:
            return cut(spent.prompt)
        before, self._before = self._before, spent.decode
        return cut(spent.decode - before)
