"""What has gone wrong lately and what was done about it, for people who watch: the newest, all with names and codes of
our own. Counters count everything; this forgets."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

MAX_INCIDENTS: Final = 100
"""Of what everybody sees, and as many of what one tenant or operators see: requests wash no device away."""

TOGETHER_S: Final = 60.0
"""What happens again within so long is the same incident, once more: whoever floods washes no other away."""

MAX_WHO: Final = 64
"""Characters of a name."""

EVERYBODY: Final = "*"
"""As ``whose``: it is about agents or this gateway, which everybody sees who sees the fleet."""

OPERATORS: Final = "-"
"""As ``whose``: it is nobody's request that is known."""


class Incident(msgspec.Struct, frozen=True):
    """Something that went wrong, ``times`` times until ``at``, in milliseconds since 1970. ``number`` grows with each
    time; ``id`` stays. ``kind``: a code, or a word of ours; ``who``: a device, group or model; ``done``: what was done.
    """

    id: int
    number: int
    at: int
    kind: str
    who: str
    done: str
    times: int
    whose: str


class Incidents:
    """The newest of them.

    Attributes:
        number: of the last one, 0 where there was none.
    """

    def __init__(self) -> None:
        self.number = 0
        self._newest: OrderedDict[int, Incident] = OrderedDict()
        """By id; the one that happened last is at the end."""
        self._last: dict[tuple[str, str, str, str], int] = {}
        """The id of the last one, by all that makes two the same."""

    def note(self, now: float, kind: str, who: str, done: str, whose: str = EVERYBODY, *, times: int = 1) -> None:
        """It has happened ``now``, in seconds since 1970; ``whose``: the tenant that is told, or who else."""
        self.number += 1
        key = kind, who[:MAX_WHO], done, whose
        at, before = int(now * 1e3), self._newest.get(self._last.get(key, 0))
        id = self.number
        if before is not None and at - before.at <= TOGETHER_S * 1e3:
            id, times = before.id, before.times + times
            del self._newest[id]
        self._newest[id] = Incident(id, self.number, at, *key[:3], times, whose)
        self._last[key] = id
        self._bound(whose == EVERYBODY)

    def _bound(self, everybodys: bool) -> None:
        alike = [each for each in self._newest.values() if (each.whose == EVERYBODY) == everybodys]
        if len(alike) > MAX_INCIDENTS:
            oldest = self._newest.pop(alike[0].id)
            key = oldest.kind, oldest.who, oldest.done, oldest.whose
            if self._last[key] == oldest.id:
                del self._last[key]

    def since(self, number: int) -> list[Incident]:
        """Return what has happened after that number, the oldest first."""
        found: list[Incident] = []
        for incident in reversed(self._newest.values()):
            if incident.number <= number:
                break
            found.append(incident)
        return found[::-1]
