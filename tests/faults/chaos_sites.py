"""The processes that the chaos breaks, and what each kind of event does to them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from faults.chaos_plan import SPLIT_SITE, Event
from faults.clocks import Clock, library
from faults.household import MEMBERS, Household
from faults.slow_log import SlowLog, Unread, UnreadAlone
from faults.split import SETTINGS, Split
from freezing_proxy import FreezingProxy
from installation import Installation
from processes import Process, free_port


class Site(Protocol):
    """Processes that may be broken."""

    @property
    def base(self) -> str:
        """The API's base URL."""

    def kill(self, *names: str) -> None:
        """kill -9."""

    def stop(self, name: str) -> None:
        """SIGSTOP."""

    def send(self, name: str, number: int) -> None:
        """A signal."""

    def revive(self) -> None:
        """Start what is dead."""

    def mend(self) -> float:
        """Until all is whole again."""


@dataclass
class Unheard(Installation):
    """An installation whose processes all log to one place, and talk much."""

    log: Path = Path("/dev/null")
    clocks: dict[str, Clock] = field(default_factory=dict)

    def _start(self, module: str, log: str, arguments: list[str], port: int, environment: dict[str, str]) -> Process:
        clock = self.clocks.get(module)
        words = [*arguments, "--log-level", "debug"]
        more = {**environment, **(clock.environment if clock else {})}
        kind = Unread if clock is None else UnreadAlone
        return kind(module, *words, log=self.log, port=port, environment=more).start()


@dataclass
class Broken:
    """A site with a log and clocks, and what it takes to break it.

    Attributes:
        pids: of all processes that run now, by name; for whoever watches their memory.
        running: answers that are worked on. left: sessions that clouds run.
    """

    site: Site
    log: SlowLog
    clocks: dict[str, Clock]
    pids: Callable[[], dict[str, int]]
    running: Callable[[], int]
    left: Callable[[], int]
    links: FreezingProxy | None = None

    def do(self, event: Event) -> Callable[[], None] | None:
        """Break what an event says; returns what mends it, as far as that is not all that ``Site.mend`` does, or None
        where nothing can be broken so: no clock jumps where faketime is not installed."""
        verb, _, what = event.kind.partition(" ")
        names = {"both": ("cloud", "standby"), "members": MEMBERS}.get(what, (what,))
        if event.kind == "slow log":
            self.log.stands_still(event.lasts_s)
        elif event.kind == "clock":
            if not self.clocks:
                return None
            self._set_clocks(event.clock_s)
            return lambda: self._set_clocks(0)
        elif event.kind in ("cut", "partition"):
            assert self.links is not None
            if event.kind == "cut":
                self.links.cut()
            else:
                self.links.swallows = True
                self.links.freeze_after(1)
                return self.links.thaw
        elif verb == "kill":
            self.site.kill(*names)
        elif verb == "leave":
            self.site.send(what, signal.SIGTERM)
        elif verb == "stop":
            self.site.stop(what)
            return lambda: self.site.send(what, signal.SIGCONT)
        return lambda: None

    def _set_clocks(self, offset_s: int) -> None:
        for clock in self.clocks.values():
            clock.set(offset_s)


@contextmanager
def broken_site(kind: str, folder: Path) -> Iterator[Broken]:
    """The processes of a site, whole; the gateway has a clock that may jump, where faketime is installed."""
    folder.mkdir(parents=True)
    faked = library()
    with ExitStack() as stack:
        log = stack.enter_context(SlowLog(folder))
        clocks = {} if faked is None else {"gateway": Clock(faked, folder / "clock")}
        if kind != SPLIT_SITE:
            house = Household(kind, folder, log=log.path, clocks=clocks)
            stack.callback(house.end)
            house.mend()
            yield Broken(house, log, clocks, house.pids, house.running, lambda: 0)
            return
        port = free_port()
        way = stack.enter_context(FreezingProxy(port))
        more: dict[str, Any] = {"cloud_port": port, "cloud_url": f"ws://127.0.0.1:{way.port}", "with_standby": True}
        more |= SETTINGS
        here = stack.enter_context(Unheard(folder, forked=True, log=log.path, clocks=clocks, **more))
        split = Split(here, way)
        yield Broken(split, log, clocks, split.pids, split.running, split.open_sessions, way)
