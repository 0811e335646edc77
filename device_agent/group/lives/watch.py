"""The portal's eye on the pace of its members: who is slow is planned without, who is fast again comes back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

import structlog

from device_agent.group.asking.life import GroupLife
from device_agent.group.formation.company import Company
from device_agent.group.formation.roll import Roll
from device_agent.group.lives.lateness import LEAST_S, TRIAL_EVERY_S, Lateness, Spent, Trials
from device_agent.group.steps.pace import Pace

Expects = Callable[[int, int], tuple[float, ...]]
"""Rows and the positions before them, to the seconds that each member of the plan computes, by place; () if nobody
knows."""

Reads = Callable[[], tuple[float, ...]]
"""Seconds that each member of the plan reads its disk in a step, by place; () where nobody does."""

AGAIN_AFTER_S: Final = 120.0
"""A disk that was measured again is not for so long: who shares one is slowed by the others as soon as all read."""

MAX_TOLD: Final = 64
"""Reports of one member that are kept until the others have told of the same steps."""

MAX_JUDGED: Final = 4096
"""Steps that are kept until a member has had enough to do in them; some have next to nothing."""

log = structlog.get_logger()


class Watch:
    """Belongs on the event loop.

    Args:
        portal: its name.
        expects, reads: of the plan there is.
    """

    def __init__(self, roll: Roll, company: Company, portal: str, expects: Expects, reads: Reads = lambda: ()) -> None:
        self._roll, self._company, self._portal, self._expects, self._reads = roll, company, portal, expects, reads
        self._disks = Lateness(portal)
        self._read: dict[str, tuple[int, float]] = {}
        """Steps and seconds of reading of each member that have been judged."""
        self._again_at: dict[str, float] = {}
        self._trials = Trials()
        self._lateness = Lateness(portal)
        self._names: tuple[str, ...] = ()
        self._pace = Pace()
        self._asked: list[tuple[float, ...]] = []
        """Of the steps from ``_first`` on, what is expected of each member."""
        self._first = 0
        self._heard: dict[str, tuple[int, float]] = {}
        """Steps and seconds of each member that have been judged."""
        self._told: dict[str, deque[tuple[int, float]]] = {}
        """And those that it has told since."""
        self._tried_at = 0.0

    def begin(self, names: tuple[str, ...], pace: Pace) -> None:
        """Another life begins, of these members by place; ``pace`` is the portal's own."""
        self._lateness, self._names, self._pace = Lateness(self._portal), names, pace
        self._asked, self._first, self._heard = [], 0, dict.fromkeys(names, (0, 0.0))
        self._disks, self._read = Lateness(self._portal), dict.fromkeys(names, (0, 0.0))
        self._told = {name: deque(maxlen=MAX_TOLD) for name in names}
        self._company.done.clear()

    async def look(self, life: GroupLife, epoch: int) -> None:
        """What was computed since the last look, and what was tried."""
        self._take_trials()
        steps = [life.steps.popleft() for _ in range(len(life.steps))]
        self._asked += await asyncio.to_thread(lambda: [self._expects(*each) for each in steps])
        self._listen(epoch)
        reports = {}
        for place, name in enumerate(self._names):
            spent = self._spent(name, place)
            if spent is not None:
                reports[name] = spent
        said = min((steps for steps, _ in self._heard.values()), default=0)
        del self._asked[: said - self._first]
        self._first = max(self._first, said)
        slow = self._lateness.period(reports)
        if slow is not None:
            why = f"it takes {reports[slow].ratio:.1f} times what is expected of it"
            ratios = {name: round(spent.ratio, 2) for name, spent in reports.items()}
            log.warning("a member is slow", name=slow, why=why, ratios=ratios)
            self._roll.is_slow(slow, why)
            self._trials.slow(slow)
        self._look_at_disks(epoch)
        self._try()

    def _look_at_disks(self, epoch: int) -> None:
        """Whose disk is much slower than it was measured, beside the others', is measured again: it is planned without
        until that is done, and then with what was found."""
        reports = {}
        for name, expected in zip(self._names, self._reads(), strict=False):
            done, (before, took) = self._company.done.get(name), self._read[name]
            if name == self._portal:
                steps, seconds, relief = self._pace.done[0], self._pace.loads.reading_s, self._pace.relief
            elif done is not None and done.epoch == epoch:
                steps, seconds, relief = done.steps, done.reading_s, done.relief
            else:
                continue
            if relief:  # It reads more than the plan says of the beginning.
                self._read[name] = steps, seconds
            elif (should := (steps - before) * expected) >= LEAST_S:
                reports[name] = Spent(max(0.0, seconds - took), should)
                self._read[name] = steps, seconds
        slow = self._disks.period(reports)
        if slow is None or monotonic() - self._again_at.get(slow, -AGAIN_AFTER_S) < AGAIN_AFTER_S:
            return
        self._again_at[slow] = monotonic()
        ratios = {name: round(spent.ratio, 2) for name, spent in reports.items()}
        log.warning("a member's disk is slow", name=slow, ratios=ratios)
        self._company.measure_again(slow)

    def _listen(self, epoch: int) -> None:
        """What each member has told of its steps since the last look."""
        for name, told in self._told.items():
            done = self._company.done.get(name)
            if name == self._portal:
                said = self._pace.done
            elif done is not None and done.epoch == epoch:
                said = done.steps, done.seconds
            else:
                continue
            if not told or told[-1] != said:
                told.append(said)

    def _spent(self, name: str, place: int) -> Spent | None:
        """What a member's own computing took, and what was expected; None where that was too little to say.

        Judged are steps that all have computed: where one member's come behind another's, a machine that is slower for
        all of them from some moment on shows in some members' steps first.
        """
        everybody = min(told[-1][0] if told else self._heard[each][0] for each, told in self._told.items())
        there = [told for told in self._told[name] if told[0] <= everybody]
        if not there:
            return None
        steps, seconds = there[-1]
        before, took = self._heard[name]
        asked = self._asked[before - self._first : max(0, steps - self._first)]
        expected = sum(each[place] for each in asked if len(each) > place)
        if steps > self._first + len(self._asked) or (expected < LEAST_S and steps - before < MAX_JUDGED):
            return None
        self._heard[name] = steps, seconds
        while self._told[name] and self._told[name][0][0] <= steps:
            self._told[name].popleft()
        return Spent(max(0.0, seconds - took), expected) if expected >= LEAST_S else None

    def _take_trials(self) -> None:
        for name, tried in list(self._company.trials.items()):
            del self._company.trials[name]
            self._tried(name, tried)

    def _tried(self, name: str, tried: float) -> None:
        if self._trials.tried(name, tried) and self._roll.was_slow(name):
            log.info("a member is fast again", name=name)
            self._roll.is_fast(name)

    def _try(self) -> None:
        """Have those who are slow try how fast they are."""
        if monotonic() - self._tried_at < TRIAL_EVERY_S:
            return
        self._tried_at = monotonic()
        self._company.have_tried([name for name in self._company.here if self._roll.was_slow(name)])
