"""What a scenario declares: hosts, links and networks between them, and the parts that run on them; all checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """One emulated machine.

    Attributes:
        kind: name of its table, shared by all of a ``count``; ``number`` counts them from 1.
        cores: CPU quota it begins with; 0 is none.
        modes: quotas it may change between; () means that it keeps ``cores``.
        memory_mb, disk_mb_s: in 10^6 bytes; 0 is unlimited.
        disk_mb: of a disk of its own, which ``disk_mb_s`` then holds back alone; 0 for none.
    """

    name: str
    kind: str
    number: int
    cores: float
    modes: tuple[float, ...]
    memory_mb: int
    disk_mb_s: float
    disk_mb: int = 0

    @property
    def most_cores(self) -> float:
        """The largest quota it ever has."""
        return max(self.cores, *self.modes, 0.0)


@dataclass(frozen=True)
class Link:
    """The way between two hosts; *up* is from ``a`` to ``b``.

    Attributes:
        kind: name of its table.
        up_mb_s, down_mb_s: 10^6 bytes a second; 0 is unlimited.
        delay_ms, jitter_ms: one way.
        relay: whether it has a relay though it may begin without delay.
        trace: absolute path of a CSV of bandwidths over time, '' for none, played from ``trace_from_s`` on.
        trace_scale: what those of up and of down are multiplied by.
        vary: every ``vary_s`` seconds the bandwidth is drawn anew between these factors of its own, of up and of down;
            None: never.
    """

    kind: str
    a: str
    b: str
    up_mb_s: float
    down_mb_s: float
    delay_ms: float
    jitter_ms: float
    relay: bool
    trace: str
    trace_scale: tuple[float, float]
    trace_from_s: float
    vary: tuple[tuple[float, float], tuple[float, float]] | None
    vary_s: float

    @property
    def relayed(self) -> bool:
        """Whether what is dialled over it goes through a relay."""
        return self.relay or self.delay_ms > 0 or self.jitter_ms > 0


@dataclass(frozen=True)
class Lan:
    """A local network, in which each host has one port.

    Attributes:
        hosts: names.
        out_mb_s, in_mb_s: of each port, from and to its host, in 10^6 bytes a second; 0 is unlimited.
        packet: IP bytes of a full packet; 0: by the bandwidth.
    """

    name: str
    hosts: tuple[str, ...]
    out_mb_s: float
    in_mb_s: float
    packet: int = 0


@dataclass(frozen=True)
class Part:
    """One process on one host.

    Attributes:
        kind: name of its table, shared by the parts on all hosts of a ``count``.
        on: name of the host.
        command: module and arguments, or an absolute path and arguments, not filled yet.
        ready: URL that answers 200 once it is ready; '' for none. ``ready_text`` is a regular expression that is
            found in the answer then.
        environment: further variables.
    """

    name: str
    kind: str
    on: str
    command: str
    ready: str
    ready_text: str
    environment: Mapping[str, str]
