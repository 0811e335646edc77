"""What a seed of the chaos means: who asks what and when, and what breaks meanwhile. Pure.

The same seed is the same plan for ever; when exactly a process is in the middle of what depends on the machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from faults.row import GROUPS

SPLIT_SITE: Final = "split"
SITES: Final = tuple(site for group in GROUPS for site in (SPLIT_SITE, group))
"""Every second block of seeds is device and cloud, the others are groups of every mode by turns."""

BLOCK: Final = 20
"""Seeds in a row that use the same processes: to start them takes longer than a seed."""

CLIENTS: Final = (2, 6)
EVENTS: Final = (1, 3)
WINDOW_S: Final = 1.5
"""Within which all clients come and everything breaks."""

LENGTHS: Final = (12, 40, 96)
QUESTIONS: Final = 8

LONG_CHANCE: Final = 0.03
LONG_S: Final = 17.0
"""How long something stands still now and then: longer than anybody waits for a sign of life."""

SPLIT_KINDS: Final = (
    *("kill cloud", "kill standby", "kill both", "kill device", "kill gateway"),
    *("stop cloud", "stop standby", "stop device", "cut", "partition", "slow log", "clock"),
)
GROUP_KINDS: Final = (
    *("kill two", "kill three", "kill members", "kill portal", "kill gateway"),
    *("stop two", "stop portal", "leave three", "slow log", "clock"),
)
FATAL: Final = frozenset({"kill device", "kill gateway", "kill portal"})
"""Answers that are open then cannot go on: whoever has the text, or the client's connection, is gone."""
TEXT_STOPS: Final = frozenset({"stop device", "stop portal"})
"""The same where that lasts too long."""

CLOCK_S: Final = (-3600, 3600, 90 * 86400, -5)
"""Seconds by which a clock jumps."""


@dataclass(frozen=True)
class Ask:
    """One client: it comes after ``at_s``, asks question ``question``, as the second turn of a conversation or not,
    and hangs up after so many pieces of text; 0: never."""

    at_s: float
    question: int
    tokens: int
    second: bool
    drafted: bool
    leaves_after: int


@dataclass(frozen=True)
class Event:
    """Something that breaks after ``at_s`` and is mended ``lasts_s`` later. ``clock_s``: by how much a clock jumps."""

    at_s: float
    kind: str
    lasts_s: float
    clock_s: int = 0


@dataclass(frozen=True)
class Plan:
    """What a seed means."""

    seed: int
    site: str
    asks: tuple[Ask, ...]
    events: tuple[Event, ...]

    @property
    def fatal(self) -> bool:
        """Whether answers that have begun may end with an error."""
        return any(
            event.kind in FATAL or (event.kind in TEXT_STOPS and event.lasts_s >= LONG_S) for event in self.events
        )


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"chaos/{seed}")
    site = SITES[seed // BLOCK % len(SITES)]
    kinds = SPLIT_KINDS if site == SPLIT_SITE else GROUP_KINDS
    asks = tuple(_ask(rng) for _ in range(rng.randint(*CLIENTS)))
    events = tuple(_event(rng, rng.choice(kinds)) for _ in range(rng.randint(*EVENTS)))
    return Plan(seed, site, asks, tuple(sorted(events, key=lambda event: event.at_s)))


def _ask(rng: random.Random) -> Ask:
    tokens = rng.choice(LENGTHS)
    leaves = rng.randint(1, tokens) if rng.random() < 0.15 else 0
    second, drafted = rng.random() < 0.3, rng.random() < 0.5
    return Ask(rng.uniform(0, WINDOW_S), rng.randrange(QUESTIONS), tokens, second, drafted, leaves)


def _event(rng: random.Random, kind: str) -> Event:
    lasts_s = LONG_S if rng.random() < LONG_CHANCE else rng.uniform(0.05, 1.0)
    return Event(rng.uniform(0, WINDOW_S), kind, lasts_s, rng.choice(CLOCK_S) if kind == "clock" else 0)
