"""Everybody who watches the page: one look several times a second, however many they are, and none while nobody does.

Agents are asked to say what they do for as long as somebody watches. Who reads too slowly misses changes and is then
told all of it anew.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import structlog

from gateway.delivery import Desk
from gateway.errors import RequestError, too_many
from gateway.page.changes import Audience, Owned, all_of, between, teller
from gateway.page.view import Seen, mark_view, request_key, seen
from wire.errors import ConnectionFailed
from wire.observed_messages import Observe

TICK_S: Final = 0.5
"""How often there is a look, and how often agents say something."""

MAX_WATCHERS: Final = 64
"""Pages that are open at once but for operators', whom clients cannot keep from watching."""

MAX_WATCHERS_OF_CLIENT: Final = 8
"""With one key, or from one address where none is asked, and of operators."""

MAX_UNREAD: Final = 4
"""Events that wait for one of them."""

log = structlog.get_logger()


class Watcher:
    """One page that is open. ``events`` gives what it is told, until this gateway stops."""

    def __init__(self, audience: Audience) -> None:
        self.audience = audience
        self._unread: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_UNREAD)
        self.behind = True
        """It is to be told all there is: it has been told nothing yet, or has missed something."""

    def tell(self, data: bytes) -> None:
        """Have it told, or know that it has missed it."""
        try:
            self._unread.put_nowait(data)
            self.behind = False
        except asyncio.QueueFull:
            self.behind = True

    def end(self) -> None:
        """Nothing more will come."""
        while self._unread.full():
            self._unread.get_nowait()
        self._unread.put_nowait(None)

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, the first of which tells all there is."""
        while (data := await self._unread.get()) is not None:
            yield data


class Watching:
    """All of them.

    Args:
        fleet: what there is to say of other gateways.
    """

    def __init__(self, desk: Desk, fleet: Callable[[], dict[str, Any] | None] = lambda: None) -> None:
        self._desk = desk
        self._fleet = fleet
        self._watchers: dict[Watcher, str] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._last: Seen | None = None
        self._incident = 0

    @contextmanager
    def watched(self, audience: Audience, party: str) -> Iterator[Watcher]:
        """A page is open for as long as the block lasts.

        Args:
            party: whose pages are counted together.

        Raises:
            RequestError: too many are open.
        """
        of_party = Counter(self._watchers.values())[party]
        of_clients = sum(not watcher.audience.operator for watcher in self._watchers)
        full = of_clients >= MAX_WATCHERS and not audience.operator
        if full or of_party >= MAX_WATCHERS_OF_CLIENT:
            raise too_many("too many pages are open and watch this gateway; close some of them")
        watcher = Watcher(audience)
        self._watchers[watcher] = party
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick_on())
        try:
            yield watcher
        finally:
            del self._watchers[watcher]

    def tick(self) -> None:
        """Look, and tell everybody what is new."""
        began = time.perf_counter()
        self._ask(round(TICK_S * 1e3))
        now, before = self._look(), self._last
        marks = self._marks(now.requests.keys() | ({} if before is None else before.requests).keys())
        self._last = now
        incidents = self._desk.metrics.incidents
        news = None if before is None else teller(between(before, now, marks, incidents.since(self._incident)))
        self._incident = incidents.number
        behind = news is None or any(watcher.behind for watcher in self._watchers)
        whole = teller(all_of(now, incidents.since(0))) if behind else None
        for watcher in self._watchers:
            tell = whole if watcher.behind else news
            assert tell is not None  # Who is not behind was told at the look before.
            watcher.tell(tell(watcher.audience))
        self._desk.metrics.page_s.inc(time.perf_counter() - began)

    async def _tick_on(self) -> None:
        try:
            while self._watchers and not self._desk.dispatcher.stopped:
                self.tick()
                await asyncio.sleep(TICK_S)
        except Exception:
            log.exception("bug in what the page is told")
        finally:
            self._last = None
            self._ask(0)
            for watcher in self._watchers:
                watcher.end()

    def _look(self) -> Seen:
        return seen(self._desk, time.time(), time.monotonic(), len(self._watchers), self._fleet())

    def _marks(self, shown: Collection[str]) -> list[Owned]:
        """Those of the requests that are shown, or were a moment ago."""
        passed = [(link.key, each) for link in self._desk.roster.links for each in link.observation.take()]
        keyed = [(request_key(key, each.mark.request), each) for key, each in passed]
        return [(each.tenant, mark_view(key, each)) for key, each in keyed if key in shown]

    def _ask(self, every_ms: int) -> None:
        """Have all agents say so often what they do, 0: no more; those that know how to."""
        for link in self._desk.roster.links:
            if not link.hello.observable or link.observation.every_ms == every_ms:
                continue
            with suppress(ConnectionFailed):  # It is about to leave.
                link.stream.post(Observe(every_ms))
            if every_ms:
                link.observation.every_ms = every_ms
            else:
                link.observation.forget()


def refused_elsewhere(site: str | None) -> RequestError | None:
    """Return why a page of another site is not told, by what a browser says of where a request comes from; None where
    it is of this one, or no browser says anything."""
    if site in (None, "same-origin", "none"):
        return None
    return RequestError(403, "pages of other sites may not watch this gateway", code="forbidden_origin")
