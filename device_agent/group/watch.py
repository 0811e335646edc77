"""The portal's eye on the pace of its members: who is slow is planned without, who is fast again comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import structlog

from device_agent.group.company import Company
from device_agent.group.lateness import LEAST_S, TRIAL_EVERY_S, Lateness, Trials
from device_agent.group.life import GroupLife
from device_agent.group.pace import Pace, speed
from device_agent.group.roll import Roll

Expects = Callable[[int, int], tuple[float, ...]]
"""Rows and the positions before them, to the seconds that each member of the plan computes, by place; () if nobody
knows."""

log = structlog.get_logger()


class Watch:
    """Belongs on the event loop.

    Args:
        portal: its name.
        expects: of the plan there is.
    """

    def __init__(self, roll: Roll, company: Company, portal: str, expects: Expects) -> None:
        self._roll, self._company, self._portal, self._expects = roll, company, portal, expects
        self._trials = Trials()
        self._lateness = Lateness()
        self._names: tuple[str, ...] = ()
        self._pace = Pace()
        self._asked: list[tuple[float, ...]] = []
        """Of the steps from ``_first`` on, what is expected of each member."""
        self._first = 0
        self._heard: dict[str, tuple[int, float]] = {}
        self._tried_at = 0.0

    def begin(self, names: tuple[str, ...], pace: Pace) -> None:
        """Another life begins, of these members by place; ``pace`` is the portal's own."""
        self._lateness, self._names, self._pace = Lateness(), names, pace
        self._asked, self._first, self._heard = [], 0, dict.fromkeys(names, (0, 0.0))
        self._company.done.clear()

    async def look(self, life: GroupLife, epoch: int) -> None:
        """What was computed since the last look, and what was tried."""
        self._take_trials()
        steps = [life.steps.popleft() for _ in range(len(life.steps))]
        self._asked += await asyncio.to_thread(lambda: [self._expects(*each) for each in steps])
        ratios = {}
        for place, name in enumerate(self._names):
            ratio = self._ratio(name, place, epoch)
            if ratio is not None:
                ratios[name] = ratio
        said = min((steps for steps, _ in self._heard.values()), default=0)
        del self._asked[: said - self._first]
        self._first = max(self._first, said)
        slow = self._lateness.period(ratios)
        if slow is not None:
            why = f"it takes {ratios[slow]:.1f} times what is expected of it"
            log.warning(
                "a member is slow", name=slow, why=why, ratios={name: round(r, 2) for name, r in ratios.items()}
            )
            self._roll.is_slow(slow, why)
            self._trials.slow(slow)
        await self._try()

    def _ratio(self, name: str, place: int, epoch: int) -> float | None:
        """What a member's own computing took over what was expected; None where that was too little to say."""
        if name == self._portal:
            steps, seconds = self._pace.done
        else:
            done = self._company.done.get(name)
            if done is None or done.epoch != epoch:
                return None
            steps, seconds = done.steps, done.seconds
        before, took = self._heard[name]
        asked = self._asked[before - self._first : max(0, steps - self._first)]
        expected = sum(each[place] for each in asked if len(each) > place)
        if steps > self._first + len(self._asked) or expected < LEAST_S:
            return None
        self._heard[name] = steps, seconds
        return max(0.0, seconds - took) / expected

    def _take_trials(self) -> None:
        for name, tried in list(self._company.trials.items()):
            del self._company.trials[name]
            self._tried(name, tried)

    def _tried(self, name: str, tried: float) -> None:
        if self._trials.tried(name, tried) and self._roll.was_slow(name):
            log.info("a member is fast again", name=name)
            self._roll.is_fast(name)

    async def _try(self) -> None:
        """Have those who are slow try how fast they are."""
        if monotonic() - self._tried_at < TRIAL_EVERY_S:
            return
        self._tried_at = monotonic()
        self._company.have_tried([name for name in self._company.here if self._roll.was_slow(name)])
        if self._roll.was_slow(self._portal):
            self._tried(self._portal, await asyncio.to_thread(speed))
