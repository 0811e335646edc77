"""Changing a testbed while it runs, as its scenario says.

with Changes(bed, schedule_of(bed.scenario, seed=1)) as changes:
    ...
    changes.requests_made(5)
changes.made                     # what was changed, and when
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from types import TracebackType
from typing import Protocol

from bench.testbed.scenario import Scenario
from bench.testbed.schedule import Change, LinkChange, Schedule
from bench.testbed.traces import read_trace

WITHIN_S = 30.0


class ChangeableLink(Protocol):
    """What is changed about a link."""

    def set(self, up_mb_s: float | None = None, down_mb_s: float | None = None) -> None:
        """Other bandwidths."""


class ChangeableHost(Protocol):
    """What is changed about a host."""

    def set_cores(self, cores: float) -> None:
        """Another CPU quota."""


class Changeable(Protocol):
    """What is changed: a testbed."""

    @property
    def link(self) -> Callable[[str, str], ChangeableLink]:
        """The link between two hosts."""

    @property
    def host(self) -> Callable[[str], ChangeableHost]:
        """A host."""


@dataclass(frozen=True)
class Made:
    """A change that was made, ``at_s`` after the beginning."""

    at_s: float
    change: Change


def schedule_of(scenario: Scenario, seed: int) -> Schedule:
    """The schedule of a scenario, with the traces it names. Raises BadTrace, OSError."""
    names = {link.trace for link in scenario.links if link.trace}
    return Schedule(scenario, {name: read_trace(Path(name)) for name in names}, seed)


class Changes:
    """A thread that makes every change of a schedule when it is due; a context manager.

    Attributes:
        made: all changes so far, with their times.
    """

    def __init__(self, bed: Changeable, schedule: Schedule) -> None:
        self.made: list[Made] = []
        self._bed = bed
        self._schedule = schedule
        self._lock = Lock()
        self._stopped = Event()
        self._began = 0.0
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="changes", daemon=True)

    def __enter__(self) -> Changes:
        """Begin; what holds from the beginning is so when this returns. Raises what changing a link raises."""
        self._began = monotonic()
        self._make_due()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End. Raises what a change raised, or RuntimeError where one does not end, unless something else has."""
        self._stopped.set()
        self._thread.join(WITHIN_S)
        if error is not None:
            return
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise RuntimeError(f"waited {WITHIN_S:g} s in vain for a change to be made")

    def requests_made(self, count: int) -> None:
        """So many requests have been made since the beginning. Raises what changing a host raises."""
        with self._lock:
            self._make(self._schedule.requests_made(count))

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._wait_s()):
                self._make_due()
        except BaseException as error:
            self._error = error

    def _wait_s(self) -> float | None:
        wait_s = self._schedule.next_s() - (monotonic() - self._began)
        return None if wait_s == float("inf") else max(0.0, wait_s)

    def _make_due(self) -> None:
        with self._lock:
            self._make(self._schedule.due(monotonic() - self._began))

    def _make(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, LinkChange):
                self._bed.link(change.a, change.b).set(up_mb_s=change.up_mb_s, down_mb_s=change.down_mb_s)
            else:
                self._bed.host(change.host).set_cores(change.cores)
            self.made.append(Made(monotonic() - self._began, change))
