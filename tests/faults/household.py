"""A group with everything that may break: a gateway, the portal and its members, each a process of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from checkpoints import DEMO
from faults.clocks import Clock
from faults.slow_log import Unread, UnreadAlone
from faults.split import JSON, THREAD
from faults.times import noticed_s
from forked import ForkedProcess
from installation import wait_until
from processes import Process, free_port, stop_all_threads

MODEL: Final = ("--model", str(DEMO), *THREAD, *JSON)
KEY: Final = "a key of these faults alone"
MEMBERS: Final = ("two", "three")
PARTS: Final = ("gateway", "portal", *MEMBERS)


class Household:
    """What can be done to it.

    Args:
        mode: how the members share the layers.
        folder: for the logs; what members measure of themselves is kept beside it.
        log: where all of them log to, instead; then they talk much.
        clocks: what the processes of a program see as the time of day.

    Attributes:
        broken_at: when something was broken last, by ``time.time`` and by ``time.monotonic``.
    """

    def __init__(
        self, mode: str, folder: Path, log: Path | None = None, clocks: Mapping[str, Clock] | None = None
    ) -> None:
        self.broken_at = (0.0, 0.0)
        self._mode, self._folder, self._log, self._clocks = mode, folder, log, clocks or {}
        self._started = 0
        self._port, self._join = free_port(), f"127.0.0.1:{free_port()}"
        self._running: dict[str, Process] = {}

    @property
    def base(self) -> str:
        """The API's."""
        return f"http://127.0.0.1:{self._port}/v1"

    def breaks(self) -> None:
        """Something is broken now."""
        self.broken_at = time.time(), time.monotonic()

    def kill(self, *names: str) -> None:
        """kill -9 of ``gateway``, ``portal`` or members, until they are gone."""
        self.breaks()
        for name in names:
            self._running[name].end(signal.SIGKILL)

    def stop(self, name: str) -> None:
        """Have a process stand still; returns once it does."""
        self.breaks()
        stop_all_threads(self._pid(name))

    def send(self, name: str, number: int) -> None:
        """Send a signal without waiting."""
        process = self._running[name].process
        assert process is not None
        process.send_signal(number)

    def noticed(self, name: str, *events: str) -> float | None:
        """Seconds until a process said that it had noticed what was broken last."""
        return noticed_s(self._running[name].log, self.broken_at[0], *events)

    def working(self) -> int:
        """How many devices compute now; 0 where nobody says."""
        agents = self._agents()
        members = [each for agent in agents if "group" in agent for each in agent["group"]["members"]]
        return sum(each["state"] == "working" for each in members)

    def running(self) -> int:
        """Answers that are worked on; -1 where nobody says."""
        agents = self._agents()
        return sum(each["running"] for each in agents) if agents else -1

    def revive(self) -> None:
        """Start what is dead, without waiting."""
        there = self.pids()
        for name in PARTS:
            if name not in there:
                self._start(name)

    def mend(self) -> float:
        """Start what is dead, wake what stands still, and wait until all compute again; seconds that it took."""
        began = time.monotonic()
        for name in self._running:
            self.send(name, signal.SIGCONT)
        self.revive()
        wait_until(lambda: self.working() == 1 + len(MEMBERS))
        return time.monotonic() - began

    def pids(self) -> dict[str, int]:
        """Of the processes that run now, by name."""
        running = {name: each.process for name, each in self._running.items()}
        return {name: each.pid for name, each in running.items() if each is not None and each.poll() is None}

    def end(self) -> None:
        """End all of them at once."""
        for each in self._running.values():
            if each.process is not None and each.process.poll() is None:
                each.process.kill()
        for each in self._running.values():
            if each.process is not None:
                each.process.wait(30)

    def logs(self) -> str:
        """All that all have said."""
        return "".join(each.output for each in self._running.values())

    def _pid(self, name: str) -> int:
        process = self._running[name].process
        assert process is not None
        return process.pid

    def _agents(self) -> list[dict[str, Any]]:
        try:
            reply = httpx.get(f"http://127.0.0.1:{self._port}/state", timeout=10, trust_env=False, verify=False)
            return list(reply.json()["agents"])
        except (httpx.HTTPError, ValueError):
            return []

    def _start(self, name: str) -> None:
        secrets = {"TRILBY_GROUP_KEY": KEY, "XDG_CACHE_HOME": str(self._folder.parent / "cache")}
        self._started += 1
        # Who has failed its group again and again has to wait before it comes back; somebody new has not.
        called = f"{name}-{self._started}" if self._log is not None else name
        module, words, port = "device_agent.group.member", [*MODEL, "--join", self._join, "--name", called], 0
        if name == "gateway":
            module, words, port = "gateway", ["--port", str(self._port), "--client-within-s", "5", *JSON], self._port
        elif name == "portal":
            group = ["--mode", self._mode, "--devices", str(1 + len(MEMBERS)), "--shares", "even"]
            links = ["--group-listen", self._join, "--gateway", f"ws://127.0.0.1:{self._port}", "--name", name]
            module, words = "device_agent", [*MODEL, *group, *links]
        if self._log is not None:
            words += ["--log-level", "debug"]
        if module in self._clocks:
            secrets |= self._clocks[module].environment
        kind: type[Process] = ForkedProcess if self._log is None else Unread
        if module in self._clocks:
            kind = UnreadAlone
        log = self._log or self._folder / f"{name}.log"
        self._running[name] = kind(module, *words, log=log, port=port, environment=secrets).start()


@contextmanager
def household(mode: str, folder: Path) -> Iterator[Household]:
    """All of it, formed."""
    with ExitStack() as stack:
        found = Household(mode, folder)
        stack.callback(found.end)
        found.mend()
        yield found
