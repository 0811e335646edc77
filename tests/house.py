"""A group on hosts of the testbed's local network: gateway and portal on one, a member on each other; clients ask from
the first.

    with a_house(tmp_path, "galaxy", ["study", "kitchen"]) as house:
        wait_until(lambda: house.working() == 2)
        house.bed.port("kitchen").plug(False)
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from bench.testbed.bed import Testbed
from bench.testbed.inside import inside
from bench.testbed.processes import environment
from bench.testbed.scenario import load
from checkpoints import DEMO

API: Final = "http://127.0.0.1:8000"
PORT: Final = 8003
MODEL: Final = ("--model", str(DEMO), "--threads", "1", "--log-form", "json")
SECRETS: Final = {"TRILBY_GROUP_KEY": "a key of this house alone", "TRILBY_DEVICE_TOKEN": "a token of devices"}
SCENARIO: Final = """
[lans.home]
among = [{names}]
out_mb_s = 20.0
in_mb_s = 20.0
"""


class House:
    """The processes on all hosts.

    Attributes:
        bed: with the hosts and their ports.
        members: the processes of the members, by host.
    """

    def __init__(self, bed: Testbed, mode: str, hosts: Sequence[str], logs: Path) -> None:
        self.bed = bed
        self._logs = logs
        self._portal = hosts[0]
        self._where = f"{bed.port(hosts[0]).address}:{PORT}"
        self._secrets = {**SECRETS, "XDG_CACHE_HOME": str(logs)}
        self._begin(hosts[0], "gateway", "--port", "8000")
        group = ("--mode", mode, "--devices", str(len(hosts)), "--shares", "even", "--name", hosts[0])
        links = ("--group-listen", self._where, "--gateway", "ws://127.0.0.1:8000")
        self._begin(hosts[0], "device_agent", *MODEL, *group, *links)
        self.members = {host: self.join(host) for host in hosts[1:]}

    def join(self, host: str) -> subprocess.Popen[Any]:
        """Another host takes part."""
        return self._begin(host, "device_agent.group.member", *MODEL, "--join", self._where, "--name", host)

    def at_home(self, call: Callable[[], Any]) -> Any:
        """What a call returns on the portal's host."""
        return inside(self.bed.namespace(self._portal), call)

    def log(self, module: str, host: str) -> Path:
        """What a process says."""
        return self._logs / f"{host}-{module}.log"

    def working(self) -> int:
        """How many devices compute."""
        try:
            state = self.at_home(lambda: httpx.get(f"{API}/state", timeout=10, trust_env=False).json())
        except httpx.HTTPError:
            return 0
        members = [member for agent in state["agents"] if "group" in agent for member in agent["group"]["members"]]
        return sum(each["state"] == "working" for each in members)

    def _begin(self, host: str, module: str, *arguments: str) -> subprocess.Popen[Any]:
        with self.log(module, host).open("ab") as log:
            command = [sys.executable, "-m", module, *arguments]
            return self.bed.spawn(host, command, env=environment(self._secrets), stdout=log, stderr=log)


@contextmanager
def a_house(folder: Path, mode: str, hosts: Sequence[str]) -> Iterator[House]:
    """The first of the hosts has the text."""
    names = ", ".join(f'"{host}"' for host in hosts)
    scenario = folder / "scenario.toml"
    scenario.write_text("".join(f"[hosts.{host}]\n" for host in hosts) + SCENARIO.format(names=names))
    with Testbed(load(scenario), folder / "logs") as bed:
        yield House(bed, mode, hosts, folder / "logs")
