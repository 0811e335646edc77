"""What a testbed is made of, read from one TOML file: hosts, the links between them, and the processes on them.

    about = "Two devices share a cloud"
    [hosts.cloud]
    cores = 1.0                              # CPU quota; 0 or nothing: no quota
    [hosts.device]
    count = 2                                # device-1 and device-2, both of the kind "device"
    modes = [0.2, 0.4]                       # quotas it changes between; it begins with the first
    memory_mb = 800
    disk_mb = 2000                           # a disk of its own, ``{disk}``, which alone disk_mb_s holds back
    disk_mb_s = 50
    [links.wan]
    between = ["device", "cloud"]            # a link for each pair; up is from the first to the second
    up_mb_s = 1.0                            # 10^6 bytes a second; 0 or nothing: unlimited
    down_mb_s = "{down}"                     # given when it is loaded
    delay_ms = 10                            # one way
    [lans.home]
    among = ["device"]                       # all in one network, each with one port
    out_mb_s = 15.6                          # of each port, from its host
    in_mb_s = 15.6                           # and to it; the same where nothing is said
    [processes.server]
    on = "cloud"
    command = "http.server 8000 --bind {bind}"    # a module for python -m, or the absolute path of a program
    ready = "http://127.0.0.1:8000/"              # asked from its own host
    [processes.client]
    on = "device"                            # one on each: client-1 and client-2
    command = "/usr/bin/curl http://{endpoint:cloud:8000}/"

Placeholders that are filled when a process is started: ``{address:HOST}``, ``{endpoint:HOST:PORT}`` (what to dial, with
the link's delay on the way), ``{lan:HOST}`` (its address in its local network, the same for all, itself too),
``{disk}`` (the folder where its own disk is), ``{self}``, ``{number}``, ``{bind}``, and the variables given then.
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any, ClassVar

from bench.testbed.declared import Host, Lan, Link, Part
from bench.testbed.fields import BadScenario, read
from msgspec import Meta, Struct

__all__ = ["BadScenario", "Host", "Lan", "Link", "Part", "Scenario", "load"]

MOST_HOSTS = 200
MOST_CORES = 1024.0
LEAST_CORES = 0.001
MOST_MB = 10_000_000
MOST_MS = 60_000.0


NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

_MegaBytes = Annotated[float, Meta(ge=0, le=MOST_MB)]
MOST_LAN_PACKET = 65000

_Milliseconds = Annotated[float, Meta(ge=0, le=MOST_MS)]
_Factor = Annotated[float, Meta(ge=0.001, le=1000)]


class _File(Struct, forbid_unknown_fields=True):
    about: str = ""
    hosts: dict[str, Any] = {}
    links: dict[str, Any] = {}
    lans: dict[str, Any] = {}
    processes: dict[str, Any] = {}


class _Host(Struct, forbid_unknown_fields=True):
    cores: Annotated[float, Meta(ge=0, le=MOST_CORES)] | None = None
    modes: list[Annotated[float, Meta(ge=LEAST_CORES, le=MOST_CORES)]] = []
    memory_mb: Annotated[int, Meta(ge=0, le=MOST_MB)] = 0
    disk_mb_s: _MegaBytes = 0.0
    disk_mb: Annotated[int, Meta(ge=0, le=MOST_MB)] = 0
    count: Annotated[int, Meta(ge=0, le=MOST_HOSTS)] = 0


class _Link(Struct, forbid_unknown_fields=True):
    between: tuple[str, str]
    up_mb_s: _MegaBytes = 0.0
    down_mb_s: _MegaBytes = 0.0
    delay_ms: _Milliseconds = 0.0
    jitter_ms: _Milliseconds = 0.0
    relay: bool = False
    trace: str = ""
    trace_scale: Annotated[float, Meta(ge=1e-6, le=1e6)] = 1.0
    trace_from_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    vary: tuple[_Factor, _Factor] | None = None
    vary_down: tuple[_Factor, _Factor] | None = None
    vary_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0


class _Lan(Struct, forbid_unknown_fields=True):
    among: list[str]
    out_mb_s: _MegaBytes = 0.0
    in_mb_s: _MegaBytes | None = None
    packet: Annotated[int, Meta(ge=0, le=MOST_LAN_PACKET)] = 0


class _Part(Struct, forbid_unknown_fields=True):
    LATER: ClassVar = ("command", "ready", "ready_text", "environment")
    on: str
    command: Annotated[str, Meta(pattern=r"\S")]
    ready: Annotated[str, Meta(pattern="^(http://.*)?$")] = ""
    ready_text: str = ""
    environment: dict[str, str] = {}


@dataclass(frozen=True)
class Scenario:
    """All of it; every name in it is known and every value in its range."""

    name: str
    about: str
    hosts: tuple[Host, ...]
    links: tuple[Link, ...]
    processes: tuple[Part, ...]
    lans: tuple[Lan, ...] = ()

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

    def lan(self, host: str) -> Lan:
        """The local network of a host; raises KeyError."""
        for each in self.lans:
            if host in each.hosts:
                return each
        raise KeyError(f"{host} is in no local network")


def load(path: Path, variables: Mapping[str, str] = {}) -> Scenario:
    """The scenario of a file, with ``variables`` in its placeholders. Raises BadScenario, OSError."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        values = toml.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are.
        raise BadScenario(f"{path}: is not TOML: {error}") from None
    raw = {key: value for key, value in values.items() if isinstance(value, dict)}
    top = read(str(path), {key: {} if key in raw else value for key, value in values.items()}, _File, variables)

    def tables(key: str) -> list[tuple[str, str, object]]:
        """Name, place and values of each table in a table."""
        found = [(name, f"{path} [{key}.{name}]", value) for name, value in raw.get(key, {}).items()]
        for name, where, _ in found:
            if not NAME.fullmatch(name):
                raise BadScenario(f"{where}: a name is of a-z, 0-9 and single hyphens, and begins with a letter")
        return found

    hosts = tuple(
        host for name, at, each in tables("hosts") for host in _hosts(name, at, read(at, each, _Host, variables))
    )
    if not 1 <= len(hosts) <= MOST_HOSTS or len({each.name for each in hosts}) < len(hosts):
        raise BadScenario(f"{path}: [hosts]: there have to be 1 to {MOST_HOSTS} hosts, each with its own name")
    by_name: dict[str, list[Host]] = {}
    for host in hosts:
        for name in {host.name, host.kind}:
            by_name.setdefault(name, []).append(host)
    links = tuple(
        link
        for name, at, each in tables("links")
        for link in _links(name, at, read(at, each, _Link, variables), by_name, path)
    )
    if len({frozenset((each.a, each.b)) for each in links}) < len(links):
        raise BadScenario(f"{path}: [links]: two hosts are joined by one link")
    lans = tuple(_lan(name, at, read(at, each, _Lan, variables), by_name) for name, at, each in tables("lans"))
    _check_lans(path, lans, links)
    parts = tuple(
        part
        for name, at, each in tables("processes")
        for part in _parts(name, at, read(at, each, _Part, variables), by_name)
    )
    if len({each.name for each in parts}) < len(parts):
        raise BadScenario(f"{path}: [processes]: each process has its own name")
    return Scenario(path.stem, top.about, hosts, links, parts, lans)


def _hosts(name: str, where: str, found: _Host) -> list[Host]:
    cores = found.cores if found.cores is not None else found.modes[0] if found.modes else 0.0
    if 0 < cores < LEAST_CORES:
        raise BadScenario(f"{where}: cores: is 0 for no quota, or at least {LEAST_CORES:g}")
    names = [f"{name}-{number}" for number in range(1, found.count + 1)] or [name]
    rest = (cores, tuple(found.modes), found.memory_mb, found.disk_mb_s, found.disk_mb)
    return [Host(each, name, number, *rest) for number, each in enumerate(names, 1)]


def _links(name: str, where: str, found: _Link, by_name: Mapping[str, list[Host]], path: Path) -> list[Link]:
    one, other = found.between
    for end in (one, other):
        if end not in by_name:
            raise BadScenario(f"{where}: between: there is no host {end}; there are {', '.join(sorted(by_name))}")
    vary, vary_down = found.vary, found.vary_down or found.vary
    if any(each and (each[0] > each[1] or not vary or not found.vary_s or found.trace) for each in (vary, vary_down)):
        raise BadScenario(f"{where}: vary: has to be [least, most] factors, with vary_s above 0 and without trace")
    pairs = combinations(by_name[one], 2) if one == other else product(by_name[one], by_name[other])
    ends = [(a.name, b.name) for a, b in pairs]
    if not ends or any(a == b for a, b in ends):
        raise BadScenario(f"{where}: between: a link joins two hosts")
    trace = str((path.parent / found.trace).resolve()) if found.trace else ""
    speeds = (found.up_mb_s, found.down_mb_s, found.delay_ms, found.jitter_ms, found.relay)
    played = (trace, (found.trace_scale, found.trace_scale), found.trace_from_s)
    drawn = (vary, vary_down) if vary and vary_down else None
    return [Link(name, a, b, *speeds, *played, drawn, found.vary_s) for a, b in ends]


def _lan(name: str, where: str, found: _Lan, by_name: Mapping[str, list[Host]]) -> Lan:
    unknown = [each for each in found.among if each not in by_name]
    if unknown:
        raise BadScenario(f"{where}: among: there is no host {unknown[0]}; there are {', '.join(sorted(by_name))}")
    hosts = tuple(host.name for each in found.among for host in by_name[each])
    if len(hosts) < 2:
        raise BadScenario(f"{where}: among: a local network has two hosts or more")
    into = found.out_mb_s if found.in_mb_s is None else found.in_mb_s
    return Lan(name, hosts, found.out_mb_s, into, found.packet)


def _check_lans(path: Path, lans: Sequence[Lan], links: Sequence[Link]) -> None:
    ports = [host for lan in lans for host in lan.hosts]
    if len(set(ports)) < len(ports):
        raise BadScenario(f"{path}: [lans]: a host is in one local network, once")
    if any({each.a, each.b} <= set(lan.hosts) for lan in lans for each in links):
        raise BadScenario(f"{path}: [lans]: two hosts are joined by a link or by a local network, not by both")


def _parts(name: str, where: str, found: _Part, by_name: Mapping[str, list[Host]]) -> list[Part]:
    if found.on not in by_name:
        raise BadScenario(f"{where}: on: there is no host {found.on}; there are {', '.join(sorted(by_name))}")
    try:
        shlex.split(found.command)
    except ValueError as error:
        raise BadScenario(f"{where}: command: cannot be split into words: {error}") from None
    if found.ready_text and not found.ready:
        raise BadScenario(f"{where}: ready_text: is looked for in the answer of ready, which is not there")
    try:
        re.compile(found.ready_text)
    except re.error as error:
        raise BadScenario(f"{where}: ready_text: is no regular expression: {error}") from None
    hosts = by_name[found.on]
    alone = len(hosts) == 1 and hosts[0].name == hosts[0].kind
    names = [name if alone or found.on == host.name else f"{name}-{host.number}" for host in hosts]
    said = (found.command, found.ready, found.ready_text, found.environment)
    return [Part(each, name, host.name, *said) for each, host in zip(names, hosts, strict=True)]
