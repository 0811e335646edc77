"""Further connections to addresses whose cloud servers are full: behind one there may be another by now."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine, Iterator
from time import monotonic
from typing import Any, Final

from device_agent.cloud.keeping import keep
from device_agent.cloud.link import CloudLink
from tls.contexts import Tls
from wire.backoff import delay_s
from wire.session_messages import UNNAMED

FULL_S: Final = 5.0
"""So long after a session has found no room a cloud server counts as full."""

BACK_S: Final = 10.0
"""So long no other is begun where one has come out at the very cloud server that is full."""

UNUSED_S: Final = 30.0
"""How long a further connection stays without a session. Whoever finds no room asks again within seconds."""

LOOK_EVERY_S: Final = 1.0
"""How often is looked whether it has any."""


class FurtherLinks:
    """One to each address that was named, at most, for as long as sessions are there.

    Args:
        links: those to the addresses that were named; further ones are put behind them.
        begin: makes a link for the place of another, to the same address.
    """

    def __init__(self, links: list[CloudLink], begin: Callable[[int], CloudLink]) -> None:
        self._links, self._begin, self._named = links, begin, len(links)
        self._full_at: dict[int, float] = {}
        """When there was no room at a place, the last time."""
        self._wanted: set[int] = set()
        """Places that are to have one."""
        self._places: dict[int, int] = {}
        """The place of the further link of each that has had one."""
        self._kept: set[CloudLink] = set()
        """Those that are dialled."""
        self._not_before: dict[int, float] = {}
        """When another may be begun beside the link at a place."""

    def has(self, link: CloudLink) -> bool:
        """Whether it is one of them."""
        return link.place >= self._named

    def full(self, link: CloudLink) -> bool:
        """A session found no room at ``link``. Returns whether one is to be begun: all others are full, or away,
        and it is not this device that has as many sessions there as it may."""
        now = monotonic()
        self._full_at[link.place] = now
        own = link.welcome is not None and len(link.attached) >= link.welcome.max_sessions
        elsewhere = any(each.ready and now - self._full_at.get(each.place, -math.inf) > FULL_S for each in self._links)
        if self.has(link) or own or elsewhere or now < self._not_before.get(link.place, -math.inf):
            return False
        self._wanted.add(link.place)
        return True

    def leads_back(self, link: CloudLink) -> bool:
        """Whether it has come out at the very cloud server that it was begun beside: nothing is to be had there."""
        beside = self._beside(link)
        if beside is None or link.welcome is None or beside.welcome is None:
            return False
        return link.welcome.name == beside.welcome.name != UNNAMED

    def _beside(self, link: CloudLink) -> CloudLink | None:
        return next((self._links[at] for at, place in self._places.items() if place == link.place), None)

    def begun(self, tls: Tls | None) -> Iterator[Coroutine[Any, Any, None]]:
        """What is to be done for those that are to be begun."""
        for place in sorted(self._wanted):
            if place not in self._places:
                self._places[place] = len(self._links)
                self._links.append(self._begin(place))
            link = self._links[self._places[place]]
            if link not in self._kept:
                yield self.keep(link, tls, delay_s(0, random.random()))
        self._wanted.clear()

    async def keep(self, link: CloudLink, tls: Tls | None, after_s: float) -> None:
        """``keep`` it connected while it has sessions."""
        self._kept.add(link)
        keeping, unused_s = asyncio.create_task(keep(link, tls, after_s)), 0.0
        try:
            while unused_s < UNUSED_S and not keeping.done():
                await asyncio.wait([keeping], timeout=LOOK_EVERY_S)
                unused_s = 0.0 if link.attached else unused_s + LOOK_EVERY_S
                beside = self._beside(link)
                # Where the link beside it has come to this server later, its sessions stay until they are over.
                if beside is not None and link.ready and not link.attached and self.leads_back(link):
                    self._not_before[beside.place] = monotonic() + BACK_S
                    break
            if keeping.done():
                keeping.result()
        finally:
            self._kept.discard(link)
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
