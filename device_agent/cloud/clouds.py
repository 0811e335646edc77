"""The connections to all cloud servers of a model, in the order in which they were named."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import Any

from device_agent.cloud.further import FurtherLinks
from device_agent.cloud.keeping import keep
from device_agent.cloud.leaving import leave
from device_agent.cloud.link import CloudLink
from device_agent.redial import STEADY_AFTER_S
from device_agent.sharing.events import set_within
from tls.contexts import Tls
from wire.backoff import delay_s
from wire.session_messages import DeviceHello


class Clouds:
    """A connection is kept to each. Where one drains, its address is dialled again meanwhile: behind it may be another
    cloud server by then. So it may be where one is full: then there is a further connection to its address for as long
    as sessions are there.

    Args:
        urls, hello, may_pack, tls: see ``RemoteSubmodel``.

    Attributes:
        links: one to each, where sessions may be opened or will be; behind them the further ones.
        restored: how often a session had to begin again, here or there, or has moved.
    """

    def __init__(self, urls: Sequence[str], hello: DeviceHello, may_pack: bool, tls: Tls | None = None) -> None:
        self._urls, self._hello, self._may_pack, self._tls = list(urls), hello, may_pack, tls
        self._told = asyncio.Event()
        self._news = asyncio.Event()
        self.links = [self._link(place) for place in range(len(urls))]
        self._next: dict[int, CloudLink] = {}
        self._succeeded: dict[int, tuple[int, float]] = {}
        """Of each place where a cloud server has drained, how often one has at once, and when it was dialled next."""
        self._further = FurtherLinks(self.links, self._beside)
        self.restored = 0

    @property
    def ready(self) -> bool:
        """Whether sessions can be opened somewhere now."""
        return any(link.ready for link in self.links)

    @property
    def preferred(self) -> CloudLink:
        """Where a session would be opened now; when nobody is ready, who comes nearest to that."""
        return max(self.links, key=lambda link: (link.ready, link.stream is not None, link.welcome is not None))

    def instead_of(self, link: CloudLink, position: int) -> CloudLink | None:
        """Where a session that has come to ``position`` goes on when its cloud server drains: where that one says, else
        at the first that takes it. None where nobody does now. Only those that were named to this device count,
        whatever a cloud server says."""
        ready = [each for each in self.links if each is not link and each.takes(position)]
        return min(ready, key=lambda each: each.url != link.leads_to, default=None)

    def takes(self, link: CloudLink, position: int) -> bool:
        """Whether a session of so many positions may be attached there now."""
        return link.takes(position) and not self._further.leads_back(link)

    @property
    def shown(self) -> list[CloudLink]:
        """The links that people are told of: all but further ones that nobody needs now."""
        return [link for link in self.links if link.stream is not None or not self._further.has(link)]

    def full(self, link: CloudLink) -> None:
        """A session found no room at ``link``."""
        if self._further.full(link):
            self._told.set()

    async def news(self, within_s: float | None = None) -> None:
        """Wait until a connection comes, goes or begins to drain, or for ``within_s`` seconds."""
        await set_within(self._news, within_s)

    async def run(self) -> None:
        """Stay connected to all, for ever. What a link tells is news for all who wait."""
        tasks = {asyncio.create_task(keep(link, self._tls)) for link in self.links}
        told = asyncio.create_task(self._told.wait())
        try:
            while True:
                ended, _ = await asyncio.wait({told, *tasks}, return_when=asyncio.FIRST_COMPLETED)
                tasks -= ended
                for task in ended:
                    task.result()
                if told in ended:
                    self._told.clear()
                    told = asyncio.create_task(self._told.wait())
                    tasks |= {asyncio.create_task(work) for work in (*self._succeed(), *self._further.begun(self._tls))}
                    self._news.set()
                    self._news = asyncio.Event()
        finally:
            for task in (told, *tasks):
                task.cancel()
            await asyncio.gather(told, *tasks, return_exceptions=True)

    def _succeed(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Where one drains, begin another link to its address; what is to be done for that. The new one takes its place
        once it is there, or the old one is gone."""
        for place, link in enumerate(self.links):
            if not link.draining:
                continue
            if place not in self._next:
                self._next[place] = self._link(place)
                yield leave(link, partial(self._replaced, link))
                stays = self._further.keep if self._further.has(link) else keep
                yield stays(self._next[place], self._tls, self._delay_s(place))
            if self._next[place].ready or link.stream is None:
                self.links[place] = self._next.pop(place)
                if self.links[place].draining:  # By now, and nothing will come of it any more: it needs one in turn.
                    self._told.set()

    def _link(self, place: int) -> CloudLink:
        return CloudLink(self._urls[place], self._hello, self._told, self._may_pack, place)

    def _beside(self, place: int) -> CloudLink:
        """A further link to the address of one, behind all others."""
        self._urls.append(self._urls[place])
        return self._link(len(self.links))

    def _replaced(self, link: CloudLink) -> bool:
        return self.links[link.place] is not link

    def _delay_s(self, place: int) -> float:
        """Before an address is dialled where a cloud server drains: devices that were told together do not come
        together, and none comes ever again at once to who drains as soon as it is there."""
        now, (attempt, dialled) = monotonic(), self._succeeded.get(place, (-1, -math.inf))
        attempt = attempt + 1 if now - dialled < STEADY_AFTER_S else 0
        after_s = delay_s(attempt, random.random())
        self._succeeded[place] = attempt, now + after_s
        return after_s
