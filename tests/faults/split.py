"""Device and cloud with everything that may break: a gateway, a device, two clouds, and a network before the first.

All are real processes with their real command lines. Whoever breaks something mends it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from faults.times import noticed_s
from freezing_proxy import FreezingProxy
from installation import Installation, wait_until
from processes import Process, free_port, stop_all_threads

PARTS: Final = ("gateway", "cloud", "standby", "device")
JSON: Final = ("--log-form", "json")
THREAD: Final = ("--threads", "1")
SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "gateway_settings": JSON,
    "cloud_settings": (*THREAD, *JSON),
    # Of fixed length: on one machine a device had better not draft at all, and would not.
    "device_settings": (*THREAD, *JSON, "--draft-length", "fixed", "--chunk", "32"),
}


class Split:
    """What can be done to it.

    Attributes:
        installation: the processes.
        way: the device's to the first cloud, which serves as long as it is there.
        broken_at: when something was broken last, by ``time.time`` and by ``time.monotonic``.
    """

    def __init__(self, installation: Installation, way: FreezingProxy) -> None:
        self.installation = installation
        self.way = way
        self.broken_at = (0.0, 0.0)

    @property
    def base(self) -> str:
        """The API's."""
        return self.installation.base

    def breaks(self) -> None:
        """Something is broken now."""
        self.broken_at = time.time(), time.monotonic()

    def process(self, name: str) -> Process:
        """``gateway``, ``device``, ``cloud`` or ``standby``."""
        return getattr(self.installation, name)  # type: ignore[no-any-return]

    def kill(self, *names: str) -> None:
        """kill -9, until they are gone."""
        self.breaks()
        for name in names:
            self.process(name).end(signal.SIGKILL)

    def serving(self) -> str:
        """Which cloud runs sessions; the first where none does."""
        ports = self.installation.serving() or [self.installation.cloud_port]
        return "cloud" if ports[0] == self.installation.cloud_port else "standby"

    def other(self, cloud: str) -> str:
        """The other cloud."""
        return "standby" if cloud == "cloud" else "cloud"

    def stop(self, name: str) -> None:
        """Have a process stand still; returns once it does."""
        process = self.process(name).process
        assert process is not None
        self.breaks()
        stop_all_threads(process.pid)

    def send(self, name: str, number: int) -> None:
        """Send a signal without waiting."""
        process = self.process(name).process
        assert process is not None
        process.send_signal(number)

    def silence(self) -> None:
        """From now on nothing of the way to the first cloud gets through, and nobody is told; who dials is taken, and
        goes nowhere."""
        self.breaks()
        self.way.swallows = True
        self.way.freeze_after(1)

    def hush(self) -> None:
        """From now on nothing gets through on the connection to the first cloud, and nobody is told; who dials does
        come through. As where a router has forgotten it."""
        self.breaks()
        self.way.freeze_after(1)

    def noticed(self, name: str, *events: str, about: str = "") -> float | None:
        """Seconds until a process said that it had noticed what was broken last; see ``noticed_s``."""
        return noticed_s(self.process(name).log, self.broken_at[0], *events, about=about)

    def open_sessions(self) -> int:
        """Those that run in all clouds."""
        return sum(len(self.installation.open_sessions(port)) for port in self.installation.cloud_ports)

    def running(self) -> int:
        """Answers that the gateway's agents work on; -1 where nobody says."""
        try:
            agents = self.installation.get("/state").json()["agents"]
        except httpx.HTTPError:
            return -1
        return sum(each["running"] for each in agents)

    def pids(self) -> dict[str, int]:
        """Of the processes that run now, by name."""
        running = {name: self.process(name).process for name in PARTS}
        return {name: each.pid for name, each in running.items() if each is not None and each.poll() is None}

    def revive(self) -> None:
        """Start what is dead, without waiting."""
        for name in PARTS:
            process = self.process(name).process
            if process is not None and process.poll() is not None:
                getattr(self.installation, f"start_{name}")()

    def mend(self) -> float:
        """Start what is dead, wake what stands still, and wait until the device is connected to both clouds; seconds
        that it took."""
        began = time.monotonic()
        self.way.thaw()
        for name in PARTS:
            self.send(name, signal.SIGCONT)
        self.revive()
        wait_until(self.installation.all_connected)
        return time.monotonic() - began


@contextmanager
def split_site(folder: Path, **more: Any) -> Iterator[Split]:
    """All of it, with further settings of an ``Installation``."""
    port = free_port()
    settings: dict[str, Any] = {"forked": True, **SETTINGS, **more}
    with FreezingProxy(port) as way:
        links: dict[str, Any] = {"cloud_port": port, "cloud_url": f"ws://127.0.0.1:{way.port}", "with_standby": True}
        with Installation(folder, **links, **settings) as installation:
            yield Split(installation, way)
