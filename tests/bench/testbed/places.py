"""A host and a link of a running testbed, and what may change about them while it runs."""

from __future__ import annotations

from contextlib import ExitStack

from bench.testbed.cgroups import PERIOD_US, HostGroup, Usage
from bench.testbed.leaf import Leaf
from bench.testbed.relay import Relay
from bench.testbed.scenario import Host, Link
from bench.testbed.shaped_link import ShapedLink


class BedHost:
    """One host.

    Attributes:
        name, namespace: as the scenario and the kernel call it.
        group: its cgroups.
        cores: the CPU quota it has now, all that is set apart on it together; 0 is none.
    """

    def __init__(self, host: Host, namespace: str, group: HostGroup) -> None:
        self.name = host.name
        self.namespace = namespace
        self.group = group
        self.set_cores(host.cores)

    def set_cores(self, cores: float, period_us: int = PERIOD_US) -> None:
        """Its CPU quota from now on; 0 is none. Raises ValueError where it is negative."""
        if cores < 0:
            raise ValueError(f"{self.name}: a CPU quota is not negative: {cores}")
        self.group.set_cores(cores, period_us)
        self.cores = cores

    def lift_quota(self) -> None:
        """No quota, until the next ``set_cores``."""
        self.group.set_cores(0.0)

    def set_apart(self, leaf: Leaf, cores: float) -> None:
        """Make a machine of its own of every process of a program, with this quota; the host has none any more."""
        self.lift_quota()
        self.group.set_apart(leaf, cores)
        self.cores = cores * len(leaf.pids())

    def usage(self) -> Usage:
        """What it has used since the bed was made."""
        return self.group.usage()


class BedLink:
    """One link; *up* is from the scenario's first host to its second.

    Attributes:
        link: as the scenario has it.
        up_mb_s, down_mb_s, delay_ms, jitter_ms: as they are now.
    """

    def __init__(self, link: Link, shaped: ShapedLink, seed: int) -> None:
        self.link = link
        self.up_mb_s, self.down_mb_s = link.up_mb_s, link.down_mb_s
        self.delay_ms, self.jitter_ms = link.delay_ms, link.jitter_ms
        self._shaped = shaped
        self._seed = seed
        self._relays: dict[tuple[str, str, int], Relay] = {}

    def set(
        self,
        up_mb_s: float | None = None,
        down_mb_s: float | None = None,
        delay_ms: float | None = None,
        jitter_ms: float | None = None,
    ) -> None:
        """Change what is given; all is as in the scenario's file.

        Raises:
            ValueError: a delay for a link without relays, whose connections do not pass through any.
        """
        if (delay_ms or jitter_ms) and not self.link.relayed:
            raise ValueError(f"the link {self.link.kind} is to have a delay: its table has to say relay = true")
        if up_mb_s is not None or down_mb_s is not None:
            self.up_mb_s = self.up_mb_s if up_mb_s is None else up_mb_s
            self.down_mb_s = self.down_mb_s if down_mb_s is None else down_mb_s
            self._shaped.set(self.up_mb_s, self.down_mb_s)
        if delay_ms is not None or jitter_ms is not None:
            self.delay_ms = self.delay_ms if delay_ms is None else delay_ms
            self.jitter_ms = self.jitter_ms if jitter_ms is None else jitter_ms
            for relay in self._relays.values():
                relay.set(self.delay_ms / 1e3, self.jitter_ms / 1e3)

    @property
    def runs(self) -> bool:
        """Whether all its relays do."""
        return all(relay.runs for relay in self._relays.values())

    def bytes(self) -> tuple[int, int]:
        """Bytes that went up and down since the bed was made."""
        return self._shaped.bytes()

    def endpoint(self, namespace: str, address: str, port: int) -> str:
        """What is dialled in a namespace for a port over this link; the same relay for the same port."""
        if not self.link.relayed:
            return f"{address}:{port}"
        key = namespace, address, port
        if key not in self._relays:
            seed = self._seed * 1000 + len(self._relays)
            relay = Relay(namespace, address, port, self.delay_ms / 1e3, self.jitter_ms / 1e3, seed)
            relay.start()
            self._relays[key] = relay
        return f"127.0.0.1:{self._relays[key].port}"

    def close(self) -> None:
        """End its relays. Raises RuntimeError where one had ended by itself; the others have ended nevertheless."""
        with ExitStack() as stack:
            for relay in self._relays.values():
                stack.callback(relay.stop)
            self._relays.clear()
