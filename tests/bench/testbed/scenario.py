"""What a testbed is made of, read from one TOML file: hosts, the links between them, and the processes on them.

    about = "Two devices share a cloud"
    [hosts.cloud]
    cores = 1.0                              # CPU quota; 0 or nothing: no quota
    [hosts.device]
    count = 2                                # device-1 and device-2, both of the kind "device"
    modes = [0.2, 0.4]                       # quotas it changes between; it begins with the first
    memory_mb = 800
    [links.wan]
    between = ["device", "cloud"]            # a link for each pair; up is from the first to the second
    up_mb_s = 1.0                            # 10^6 bytes a second; 0 or nothing: unlimited
    down_mb_s = "{down}"                     # given when it is loaded
    delay_ms = 10                            # one way
    [processes.server]
    on = "cloud"
    command = "http.server 8000 --bind {bind}"    # a module for python -m, or the absolute path of a program
    ready = "http://127.0.0.1:8000/"              # asked from its own host
    [processes.client]
    on = "device"                            # one on each: client-1 and client-2
    command = "/usr/bin/curl http://{endpoint:cloud:8000}/"

Placeholders that are filled when a process is started: ``{address:HOST}``, ``{endpoint:HOST:PORT}`` (what to dial, with
the link's delay on the way), ``{self}``, ``{number}``, ``{bind}``, and the variables given then.
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from bench.testbed.declared import Host, Link, Part
from bench.testbed.fields import BadScenario, Table

__all__ = ["BadScenario", "Host", "Link", "Part", "Scenario", "load"]

MOST_HOSTS = 200
MOST_CORES = 1024.0
LEAST_CORES = 0.001
MOST_MB = 10_000_000
MOST_MS = 60_000.0


@dataclass(frozen=True)
class Scenario:
    """All of it; every name in it is known and every value in its range."""

    name: str
    about: str
    hosts: tuple[Host, ...]
    links: tuple[Link, ...]
    processes: tuple[Part, ...]

    @property
    def cores_total(self) -> float:
        """The sum of all quotas, each at its largest."""
        return sum(each.most_cores for each in self.hosts)

    def host(self, name: str) -> Host:
        """The host of this name; raises KeyError."""
        return {each.name: each for each in self.hosts}[name]

    def hosts_of(self, name: str) -> tuple[Host, ...]:
        """The host of this name, or all of this kind; raises KeyError."""
        found = tuple(each for each in self.hosts if name in (each.name, each.kind))
        if not found:
            raise KeyError(f"no host or kind of host is called {name}")
        return found

    def parts_of(self, name: str) -> tuple[Part, ...]:
        """The process of this name, or all of this kind; raises KeyError."""
        found = tuple(each for each in self.processes if name in (each.name, each.kind))
        if not found:
            raise KeyError(f"no process or kind of process is called {name}")
        return found

    def link(self, one: str, other: str) -> Link:
        """The link between two hosts, in whichever order; raises KeyError."""
        for each in self.links:
            if {each.a, each.b} == {one, other}:
                return each
        raise KeyError(f"no link joins {one} and {other}")


def load(path: Path, variables: Mapping[str, str] = {}) -> Scenario:
    """The scenario of a file, with ``variables`` in its placeholders. Raises BadScenario, OSError."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        values = toml.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are.
        raise BadScenario(f"{path}: is not TOML: {error}") from None
    top = Table(str(path), values, variables)
    about = top.text("about", "")
    hosts = tuple(host for name, table in top.tables("hosts").items() for host in _hosts(name, table))
    if not 1 <= len(hosts) <= MOST_HOSTS or len({each.name for each in hosts}) < len(hosts):
        raise top.bad("[hosts]", f"there have to be 1 to {MOST_HOSTS} hosts, each with its own name")
    by_name: dict[str, list[Host]] = {}
    for host in hosts:
        for name in {host.name, host.kind}:
            by_name.setdefault(name, []).append(host)
    links = tuple(link for name, table in top.tables("links").items() for link in _links(name, table, by_name, path))
    if len({frozenset((each.a, each.b)) for each in links}) < len(links):
        raise top.bad("[links]", "two hosts are joined by one link")
    parts = tuple(part for name, table in top.tables("processes").items() for part in _parts(name, table, by_name))
    if len({each.name for each in parts}) < len(parts):
        raise top.bad("[processes]", "each process has its own name")
    top.done()
    return Scenario(path.stem, about, hosts, links, parts)


def _hosts(name: str, table: Table) -> list[Host]:
    modes = table.numbers("modes", LEAST_CORES, MOST_CORES)
    cores = table.number("cores", modes[0] if modes else 0.0, 0.0, MOST_CORES)
    if 0 < cores < LEAST_CORES:
        raise table.bad("cores", f"is 0 for no quota, or at least {LEAST_CORES:g}")
    memory = table.whole("memory_mb", 0, 0, MOST_MB)
    disk = table.number("disk_mb_s", 0.0, 0.0, MOST_MB)
    count = table.whole("count", 0, 0, MOST_HOSTS)
    table.done()
    names = [f"{name}-{number}" for number in range(1, count + 1)] or [name]
    return [Host(each, name, number, cores, modes, memory, disk) for number, each in enumerate(names, 1)]


def _links(name: str, table: Table, by_name: Mapping[str, list[Host]], path: Path) -> list[Link]:
    one, other = table.pair("between")
    for each in (one, other):
        if each not in by_name:
            raise table.bad("between", f"there is no host {each}; there are {', '.join(sorted(by_name))}")
    up, down = (table.number(key, 0.0, 0.0, MOST_MB) for key in ("up_mb_s", "down_mb_s"))
    delay, jitter = (table.number(key, 0.0, 0.0, MOST_MS) for key in ("delay_ms", "jitter_ms"))
    relay = table.flag("relay")
    trace = table.text("trace", "")
    scale = table.number("trace_scale", 1.0, 1e-6, 1e6)
    begin_s = table.number("trace_from_s", 0.0, 0.0, 1e9)
    vary = [table.numbers(key, 0.001, 1000.0) for key in ("vary", "vary_down")]
    vary_s = table.number("vary_s", 0.0, 0.0, 86400.0)
    table.done()
    if any(each and (len(each) != 2 or each[0] > each[1] or not vary[0] or not vary_s or trace) for each in vary):
        raise table.bad("vary", "has to be [least, most] factors, with vary_s above 0 and without trace")
    pairs = combinations(by_name[one], 2) if one == other else product(by_name[one], by_name[other])
    ends = [(a.name, b.name) for a, b in pairs]
    if not ends or any(a == b for a, b in ends):
        raise table.bad("between", "a link joins two hosts")
    where = str((path.parent / trace).resolve()) if trace else ""
    played = (where, (scale, scale), begin_s)
    up_vary, down_vary = ((each[0], each[1]) if each else None for each in (vary[0], vary[1] or vary[0]))
    drawn = (up_vary, down_vary) if up_vary and down_vary else None
    return [Link(name, a, b, up, down, delay, jitter, relay, *played, drawn, vary_s) for a, b in ends]


def _parts(name: str, table: Table, by_name: Mapping[str, list[Host]]) -> list[Part]:
    on = table.text("on")
    if on not in by_name:
        raise table.bad("on", f"there is no host {on}; there are {', '.join(sorted(by_name))}")
    command = table.text("command", keep=True)
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise table.bad("command", f"cannot be split into words: {error}") from None
    if not words:
        raise table.bad("command", "begins with a module or with the absolute path of a program")
    ready, ready_text = table.text("ready", "", keep=True), table.text("ready_text", "", keep=True)
    if ready and not ready.startswith("http://"):
        raise table.bad("ready", "has to begin with http://")
    if ready_text and not ready:
        raise table.bad("ready_text", "is looked for in the answer of ready, which is not there")
    try:
        re.compile(ready_text)
    except re.error as error:
        raise table.bad("ready_text", f"is no regular expression: {error}") from None
    environment = table.texts("environment")
    table.done()
    hosts = by_name[on]
    alone = len(hosts) == 1 and hosts[0].name == hosts[0].kind
    names = [name if alone or on == host.name else f"{name}-{host.number}" for host in hosts]
    return [
        Part(each, name, host.name, command, ready, ready_text, environment)
        for each, host in zip(names, hosts, strict=True)
    ]
