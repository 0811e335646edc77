"""The testbed: a scenario's hosts and links made real, its processes started on them, and all of it removed again.

    with Testbed(load(path), folder) as bed:
        bed.start("gateway", "cloud")
        bed.start("agent")                      # all agents at once
        client = bed.spawn("clients", [...])
        bed.link("device-1", "cloud").set(up_mb_s=0.5)
        bed.usage("cloud").throttled_s

Everything is made by the real tools under names that begin with the bed's prefix; ``leftovers.py`` removes them by it.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.testbed import leftovers
from bench.testbed.cgroups import Usage, disks
from bench.testbed.fields import BadScenario, fill
from bench.testbed.guard import Guard
from bench.testbed.hierarchy import this_hierarchy
from bench.testbed.lan import Port
from bench.testbed.network import Network
from bench.testbed.own_disk import OwnDisk, make_disk, remove_disks
from bench.testbed.places import BedHost, BedLink
from bench.testbed.possible import check_possible
from bench.testbed.processes import (
    END_WITHIN_S,
    Awaited,
    Placer,
    Program,
    await_ready,
    command_line,
    end_all,
    environment,
)
from bench.testbed.scenario import Part, Scenario

READY_WITHIN_S = 180.0


class Testbed:
    """A context manager; one at a time in a process. ``folder`` gets the logs, ``<part>.log`` each."""

    __test__ = False  # Its name is no test's.

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.folder = folder
        self._hosts: dict[str, BedHost] = {}
        self._links: dict[frozenset[str], BedLink] = {}
        self._disks: dict[str, OwnDisk] = {}
        self._parts: dict[str, Program] = {}
        self._spawned: list[Program] = []
        self._count = 0

    def __enter__(self) -> Testbed:
        """Make hosts and links. Raises NotPossible, and RuntimeError where this process has a bed already."""
        check_possible()
        leftovers.clean()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._hierarchy = this_hierarchy()
        with ExitStack() as stack:
            self.prefix = leftovers.claim()
            stack.callback(leftovers.release, self.prefix)
            stack.callback(leftovers.remove_bed, self.prefix)
            names = [each.name for each in self.scenario.hosts]
            self._network = Network.make(self.prefix, names, self.scenario.links, self.scenario.lans)
            stack.callback(self._network.close)
            stack.callback(remove_disks, self.prefix)
            self._make_places(stack)
            stack.callback(Guard(self._hierarchy.bases["cpu"] / self.prefix).close)
            self._placer = Placer()
            stack.callback(self._placer.close)
            stack.callback(self._end_programs)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def start(self, *names: str, variables: Mapping[str, str] = {}, within_s: float = READY_WITHIN_S) -> None:
        """Start parts by name or kind, all where none is named, together, and wait until all are ready.

        Until then their hosts have no CPU quota. ``variables`` fill placeholders of their commands.

        Raises:
            KeyError: no part has this name.
            ValueError: a part runs already.
            BadScenario: a placeholder stands for nothing.
            PartFailed: a part ended before it was ready, or was not ready within ``within_s``.
        """
        chosen = self._chosen(names)
        running = [each.name for each in chosen if each.name in self._parts and self._parts[each.name].runs]
        if running:
            raise ValueError(f"already running: {', '.join(running)}")
        end_all([self._parts.pop(each.name) for each in chosen if each.name in self._parts], 0.0)  # Those that failed.
        hosts = [self._hosts[name] for name in dict.fromkeys(each.on for each in chosen)]
        for host in hosts:
            host.lift_quota()
        try:
            await_ready([self._begin(part, variables) for part in chosen], within_s)
        finally:
            for host in hosts:
                host.set_cores(host.cores)

    def stop(self, *names: str, within_s: float = END_WITHIN_S) -> None:
        """End parts by name or kind, all where none is named, with everything they have started: asked at first, killed
        after ``within_s``. Those that do not run are left alone. Raises KeyError."""
        end_all([self._parts.pop(each.name) for each in self._chosen(names) if each.name in self._parts], within_s)

    def set_apart(self, name: str, cores: float, count: int) -> None:
        """Make a machine of its own of each of a part's processes, with a CPU quota of ``cores``; the part has its host
        for itself. What one of them starts later shares its quota.

        Raises:
            KeyError: no such part was started.
            RuntimeError: it does not have ``count`` processes.
        """
        program = self._parts[name]
        found = program.pids()
        if len(found) != count:
            raise RuntimeError(f"{name} has {len(found)} processes and not {count}")
        self._hosts[program.host].set_apart(program.leaf, cores)

    def part(self, name: str) -> Program:
        """A part that was started. Raises KeyError."""
        return self._parts[name]

    def spawn(self, host: str, argv: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Run any further program on a host, with more arguments of ``Popen``; it ends with the bed at the latest."""
        program = self._launch(argv[0], host, argv, popen, None)
        self._spawned.append(program)
        return program.popen

    def namespace(self, host: str) -> str:
        """The name of a host's network namespace."""
        return self._hosts[host].namespace

    def address(self, host: str, other: str) -> str:
        """The address under which one host reaches another. Raises KeyError where nothing joins them."""
        if host == other:
            return "127.0.0.1"
        if not self._neighbours(host, other):
            self.scenario.link(host, other)
        return self._network.address(host, other)

    def endpoint(self, host: str, other: str, port: int) -> str:
        """What a host dials for another's port, ``address:port``: where the link has a delay, it is a relay's."""
        address = self.address(host, other)
        if host == other or self._neighbours(host, other):
            return f"{address}:{port}"
        return self.link(host, other).endpoint(self._hosts[host].namespace, address, port)

    def link(self, one: str, other: str) -> BedLink:
        """The link between two hosts, in whichever order; *up* stays from the scenario's first to its second."""
        link = self.scenario.link(one, other)
        return self._links[frozenset((link.a, link.b))]

    def port(self, host: str) -> Port:
        """A host's port in its local network. Raises KeyError."""
        self.scenario.lan(host)
        return self._network.port(host)

    def disk(self, host: str) -> Path:
        """The folder where a host's own disk is. Raises KeyError where it has none."""
        return self._disks[host].path

    def host(self, name: str) -> BedHost:
        """One host."""
        return self._hosts[name]

    def usage(self, host: str) -> Usage:
        """What a host has used since the bed was made."""
        return self._hosts[host].usage()

    def bytes(self, one: str, other: str) -> tuple[int, int]:
        """Bytes that went up and down a link since the bed was made."""
        return self.link(one, other).bytes()

    def _neighbours(self, one: str, other: str) -> bool:
        return any({one, other} <= set(lan.hosts) for lan in self.scenario.lans)

    def _make_places(self, stack: ExitStack) -> None:
        everywhere = disks()
        for number, host in enumerate(self.scenario.hosts, 1):
            group = self._hierarchy.host(self.prefix, str(number))
            devices = everywhere
            if host.disk_mb:
                self._disks[host.name] = made = make_disk(self.prefix, str(number), host.disk_mb)
                devices = [made.device]
            if host.memory_mb:
                group.set_memory(host.memory_mb)
            if host.disk_mb_s:
                group.set_disk(host.disk_mb_s, devices)
            self._hosts[host.name] = BedHost(host, self._network.namespace(host.name), group)
        for seed, link in enumerate(self.scenario.links):
            joined = BedLink(link, self._network.link(link.a, link.b), seed)
            stack.callback(joined.close)
            self._links[frozenset((link.a, link.b))] = joined

    def _chosen(self, names: Iterable[str]) -> list[Part]:
        found = [part for name in names for part in self.scenario.parts_of(name)] or self.scenario.processes
        return list({each.name: each for each in found}.values())

    def _begin(self, part: Part, variables: Mapping[str, str]) -> Awaited:
        words = shlex.split(self._fill(part, part.command, variables))
        more = {name: self._fill(part, value, variables) for name, value in part.environment.items()}
        url, text = (self._fill(part, each, variables) for each in (part.ready, part.ready_text))
        log = self.folder / f"{part.name}.log"
        with log.open("ab") as output:
            popen = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "env": environment(more)}
            program = self._launch(part.name, part.on, command_line(words), popen, log)
        self._parts[part.name] = program
        return Awaited(program, self.namespace(part.on), url, text)

    def _launch(self, name: str, host: str, argv: Sequence[str], popen: Mapping[str, Any], log: Path | None) -> Program:
        self._count += 1
        leaf = self._hosts[host].group.leaf(f"program-{self._count}")
        process = self._placer.start(argv, self._hosts[host].namespace, leaf, popen)
        return Program(name, host, leaf, process, log)

    def _fill(self, part: Part, text: str, variables: Mapping[str, str]) -> str:
        def value(word: str, rest: str) -> str:
            try:
                if word == "address":
                    return self.address(part.on, rest)
                if word == "lan":
                    return self.port(rest).address
                if word == "disk":
                    return str(self.disk(part.on))
                if word == "endpoint":
                    host, port = rest.split(":")
                    return self.endpoint(part.on, host, int(port))
                known = {"self": part.on, "number": str(self.scenario.host(part.on).number), "bind": "0.0.0.0"}
                return {**known, **variables}[word]
            except (KeyError, ValueError):
                where = f"{self.scenario.name}: [processes.{part.kind}]"
                raise BadScenario(f"{where}: {{{word}{rest and ':' + rest}}} stands for nothing on {part.on}") from None

        return fill(text, value)

    def _end_programs(self) -> None:
        end_all([*self._parts.values(), *self._spawned], END_WITHIN_S)
