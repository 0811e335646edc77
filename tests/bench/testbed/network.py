"""Hosts of one machine that only see each other over shaped links: network namespaces, joined by veth through a bridge.

    with closing(Network.make("trilby-x", ["device", "cloud"], links, lans)) as network:
        network.namespace("device"), network.address("device", "cloud")
        network.link("device", "cloud").set(up_mb_s=1.0, down_mb_s=4.0)

Each link has its own veth pair at both ends and its own subnet 10.231.x.y/30, so shaping one touches no other. The
bridge is in a namespace of its own and told where everybody is: it learns nothing, floods nothing, and neighbours are
given, so a link carries what programs send and nothing else. Local networks have bridges of their own: ``lan.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from bench.testbed.declared import Lan
from bench.testbed.iproute import run
from bench.testbed.lan import LanPlan, Port
from bench.testbed.scenario import Link
from bench.testbed.shaped_link import ShapedLink, Way
from bench.testbed.shaping import MOST_PACKET, packet_bytes, route, shape

MOST_LINKS = 1 << 14
"""Subnets of four addresses in 10.231.0.0/16."""


class Network:
    """All hosts and links of one testbed; made by ``make``."""

    def __init__(self, prefix: str, hosts: Sequence[str], links: Sequence[Link], lans: Sequence[Lan] = ()) -> None:
        self._prefix = prefix
        self._switch = f"{prefix}-sw"
        self._spaces = {host: f"{prefix}-{number}" for number, host in enumerate(hosts, 1)}
        self._links: dict[tuple[str, str], ShapedLink] = {}
        self._addresses: dict[tuple[str, str], str] = {}
        for number, link in enumerate(links):
            pair = (link.a, link.b)
            for host in pair:
                self.namespace(host)
            if link.a == link.b or pair in self._addresses:
                raise ValueError(f"no second link between {link.a} and {link.b}, and none from a host to itself")
            up, down = (
                Way(self._spaces[host], f"l{number}", f"{_address(number, 0)}/30", mb_s)
                for host, mb_s in ((link.a, link.up_mb_s), (link.b, link.down_mb_s))
            )
            self._links[pair] = ShapedLink(up, down)
            self._addresses[link.b, link.a], self._addresses[pair] = _address(number, 1), _address(number, 2)
        self._ports: dict[str, Port] = {}
        self._lans = [LanPlan(number, lan, self._spaces, self._switch) for number, lan in enumerate(lans)]
        for lan, plan in zip(lans, self._lans, strict=True):
            for host in lan.hosts:
                self.namespace(host)
            ports = plan.ports()
            if ports.keys() & self._ports.keys():
                raise ValueError(f"a host has one port, not several: {', '.join(ports.keys() & self._ports.keys())}")
            self._ports.update(ports)
            for a, b in permutations(lan.hosts, 2):
                if (a, b) in self._addresses:
                    raise ValueError(f"{a} and {b} are joined by a link already")
                self._addresses[a, b] = ports[b].address

    @classmethod
    def make(cls, prefix: str, hosts: Sequence[str], links: Sequence[Link], lans: Sequence[Lan] = ()) -> Network:
        """Namespaces ``<prefix>-1`` … in the order of ``hosts``, ``<prefix>-sw`` for the bridges, and all links and
        networks, shaped.

        Raises:
            ValueError: a link or network names no host of these, joins two hosts a second time, or has no bandwidth
                that there can be; or a host has several ports.
            NetworkError: something could not be made, or is there already; nothing called so is left.
        """
        if len(links) > MOST_LINKS:
            raise ValueError(f"{len(links)} links; at most {MOST_LINKS} are possible")
        network = cls(prefix, hosts, links, lans)
        try:
            network._build(links)
        except BaseException:
            remove_network(prefix)
            raise
        return network

    def namespace(self, host: str) -> str:
        """The name of a host's namespace. Raises ValueError for a host that is not here."""
        if host not in self._spaces:
            raise ValueError(f"there is no host {host!r}, only {', '.join(self._spaces)}")
        return self._spaces[host]

    def address(self, from_host: str, to_host: str) -> str:
        """Where ``from_host`` reaches ``to_host``; itself at 127.0.0.1. Raises ValueError where no link joins them."""
        if from_host == to_host and from_host in self._spaces:
            return "127.0.0.1"
        if (from_host, to_host) not in self._addresses:
            raise ValueError(f"no link joins {from_host} and {to_host}")
        return self._addresses[from_host, to_host]

    def link(self, a: str, b: str) -> ShapedLink:
        """The link from ``a`` to ``b``, named as it was given. Raises ValueError where there is none."""
        if (a, b) not in self._links:
            raise ValueError(f"there is no link from {a} to {b}")
        return self._links[a, b]

    def port(self, host: str) -> Port:
        """A host's port. Raises ValueError where it is in no local network."""
        if host not in self._ports:
            raise ValueError(f"{host} is in no local network")
        return self._ports[host]

    def close(self) -> None:
        """Take it all away; twice does no harm."""
        remove_network(self._prefix)

    def _build(self, links: Sequence[Link]) -> None:
        switch = self._switch
        run(["ip", "-batch", "-"], [f"netns add {space}" for space in [*self._spaces.values(), switch]])
        inner: dict[str, list[str]] = {space: ["link set lo up"] for space in self._spaces.values()}
        shaping: dict[str, list[str]] = {space: [] for space in [*self._spaces.values(), switch]}
        ports = [
            "link add name bridge0 type bridge stp_state 0 mcast_snooping 0",
            "link set bridge0 addrgenmode none up",
        ]
        stations = []
        for number, link in enumerate(links):
            for end, (host, mb_s) in enumerate([(link.a, link.up_mb_s), (link.b, link.down_mb_s)], 1):
                space, device, port = self._spaces[host], f"l{number}", f"p{number}-{end}"
                ports += [
                    f"link add {port} mtu {MOST_PACKET} type veth "
                    f"peer name {device} address {_mac(number, end)} mtu {MOST_PACKET} netns {space}",
                    f"link set {port} master bridge0 addrgenmode none up",
                    f"link set {port} type bridge_slave learning off flood off mcast_flood off bcast_flood off",
                ]
                stations.append(f"fdb add {_mac(number, end)} dev {port} master static")
                inner[space] += [
                    f"link set {device} addrgenmode none gso_max_segs 1 up",
                    f"address add {_address(number, end)}/30 dev {device} noprefixroute",
                    f"route add {route(f'{_address(number, 0)}/30', device, packet_bytes(mb_s))}",
                    f"neigh add {_address(number, 3 - end)} lladdr {_mac(number, 3 - end)} dev {device}",
                ]
                shaping[space] += shape(device, mb_s, packet_bytes(mb_s))
        for lan in self._lans:
            ports += lan.bridge()
            stations += lan.stations()
            for host in lan.hosts:
                inner[self._spaces[host]] += lan.inner(host)
            for space, lines in lan.shaping().items():
                shaping[space] += lines
        run(["ip", "-n", switch, "-batch", "-"], ports)
        run(["bridge", "-n", switch, "-batch", "-"], stations)
        for space, lines in inner.items():
            run(["ip", "-n", space, "-batch", "-"], lines)
        for space, lines in shaping.items():
            run(["tc", "-n", space, "-batch", "-"], lines)


def remove_network(prefix: str) -> None:
    """Remove all namespaces ``<prefix>-…``, and so their links; none is fine. Who still runs in one loses its links.

    Raises:
        NetworkError: a namespace could not be removed.
    """
    names = [line.split()[0] for line in run(["ip", "netns", "list"]).splitlines() if line.strip()]
    mine = [name for name in names if name.startswith(prefix.rstrip("-") + "-")]
    run(["ip", "-batch", "-"], [f"netns del {name}" for name in mine])


def _address(link: int, end: int) -> str:
    """The address of an end, 1 or 2, of a link; 0 is the subnet itself."""
    low = 4 * link + end
    return f"10.231.{low >> 8}.{low & 255}"


def _mac(link: int, end: int) -> str:
    return f"02:e7:00:{link >> 8:02x}:{link & 255:02x}:{end:02x}"
