"""What changes about links and hosts while a testbed runs, and when: no clock, no link, no host is touched here.

What is drawn depends on the seed, the link or host, and the number of the draw alone, not on when anybody asks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

from bench.testbed.scenario import Host, Link, Scenario
from bench.testbed.traces import Trace

MODE_EVERY = 5
"""Requests after which the modes of all hosts that have some are drawn anew, as in the HAT paper."""

LEAST_STEP_S = 0.5
"""A change takes two small programs some milliseconds; a trace of shorter steps is played in their mean."""

LEAST_MB_S = 0.01
"""What stands for the time without any in a trace: 0 would mean unlimited."""


@dataclass(frozen=True)
class LinkChange:
    """From ``at_s`` on, a link has these bandwidths, in MB/s (10^6 bytes; 0 is unlimited)."""

    at_s: float
    a: str
    b: str
    up_mb_s: float
    down_mb_s: float


@dataclass(frozen=True)
class ModeChange:
    """After so many requests, a host has this CPU quota."""

    after_requests: int
    host: str
    cores: float


Change = Union[LinkChange, ModeChange]


def played(trace: Trace, from_s: float) -> Trace:
    """A trace as a link plays it that begins ``from_s`` into it."""
    return trace.begun_at(from_s).coarser(LEAST_STEP_S)


class Schedule:
    """The changes of one run of a scenario.

    Args:
        traces: of the links that name one, by that name.
        seed: of all that is drawn.

    Raises:
        KeyError: a trace is missing.
    """

    def __init__(self, scenario: Scenario, traces: Mapping[str, Trace], seed: int) -> None:
        self._seed = seed
        self._hosts = [host for host in scenario.hosts if len(host.modes) > 1]
        self._traces = {
            (link.a, link.b): played(traces[link.trace], link.trace_from_s) for link in scenario.links if link.trace
        }
        self._links = [link for link in scenario.links if link.trace or link.vary]
        self._steps = {(link.a, link.b): -1 for link in self._links}
        self._round = 0

    def due(self, now_s: float) -> list[LinkChange]:
        """The changes since it was last asked, at most one of a link: those it had meanwhile are left out."""
        changes = []
        for link in self._links:
            step = self._step(link, now_s)
            if step > self._steps[link.a, link.b]:
                self._steps[link.a, link.b] = step
                changes.append(LinkChange(self._begin(link, step), link.a, link.b, *self._rates(link, step)))
        return changes

    def next_s(self) -> float:
        """When the next change is due; infinity where there is none."""
        return min(
            (self._begin(link, self._steps[link.a, link.b] + 1) for link in self._links),
            default=math.inf,
        )

    def requests_made(self, count: int) -> list[ModeChange]:
        """The changes that come with the ``count``-th request, counted from the beginning; ``count`` never falls."""
        number = count // MODE_EVERY
        if number <= self._round:
            return []
        self._round = number
        return [ModeChange(number * MODE_EVERY, host.name, self._mode(host, number)) for host in self._hosts]

    def _step(self, link: Link, at_s: float) -> int:
        if link.trace:
            return self._traces[link.a, link.b].step(at_s)
        step = int(at_s / link.vary_s)
        return step + 1 if self._begin(link, step + 1) <= at_s else step  # A quotient may be rounded to below it.

    def _begin(self, link: Link, step: int) -> float:
        return self._traces[link.a, link.b].begin(step) if link.trace else step * link.vary_s

    def _rates(self, link: Link, step: int) -> tuple[float, float]:
        """Up and down."""
        if not link.trace:
            assert link.vary is not None
            drawn = random.Random(f"{self._seed} {link.a} {link.b} {step}")
            up_bounds, down_bounds = link.vary
            return link.up_mb_s * drawn.uniform(*up_bounds), link.down_mb_s * drawn.uniform(*down_bounds)
        trace = self._traces[link.a, link.b]
        index = step % len(trace.begins)
        up_scale, down_scale = link.trace_scale
        down = max(LEAST_MB_S, trace.down[index] * down_scale)
        if trace.up is not None:
            return max(LEAST_MB_S, trace.up[index] * up_scale), down
        if link.up_mb_s and link.down_mb_s:
            return max(LEAST_MB_S, down * link.up_mb_s / link.down_mb_s), down
        return link.up_mb_s or down, down

    def _mode(self, host: Host, number: int) -> float:
        return random.Random(f"{self._seed} {host.name} {number}").choice(host.modes)
