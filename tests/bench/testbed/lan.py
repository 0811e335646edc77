"""A local network of hosts: one bridge, and for each host one interface with one address, shaped both ways at its port.

Everyone reaches everyone; what two hosts send to a third shares its port, as on a switch. Each way of a port is shaped
where it leaves: from the host at the host's interface, to the host at the bridge's. Both are full duplex. Unlike links,
the bridge hands broadcasts and multicasts to all, so that members can find one another.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.testbed.declared import Lan
from bench.testbed.iproute import run
from bench.testbed.shaped_link import counted
from bench.testbed.shaping import HEADER_BYTES, MOST_PACKET, packet_bytes, reshape, route, shape


class Port:
    """A host's place in a local network.

    Args:
        host, switch: namespaces of the host and of the bridge.
        names: of the host's interface and of the bridge's.
        packet: IP bytes of a full packet in this network.

    Attributes:
        address: the host's.
    """

    def __init__(self, host: str, switch: str, names: tuple[str, str], address: str, packet: int) -> None:
        self.address = address
        self._ways = ((host, names[0]), (switch, names[1]))
        self._packet = packet

    def set(self, out_mb_s: float, in_mb_s: float) -> None:
        """Other bandwidths from now on, in MB/s (10^6 bytes; 0 is unlimited); nothing queued is lost.

        Packets keep their size, so a port that is made much slower lets a message through early by one that is large
        for it. Raises ValueError, NetworkError.
        """
        for (namespace, device), mb_s in zip(self._ways, (out_mb_s, in_mb_s), strict=True):
            run(["tc", "-n", namespace, *reshape(device, mb_s, self._packet, self._packet)])

    def plug(self, there: bool) -> None:
        """Pull the host's cable out of the switch, or put it back; nobody is told. Raises NetworkError."""
        switch, device = self._ways[1]
        run(["ip", "-n", switch, "link", "set", device, "up" if there else "down"])

    def bytes(self) -> tuple[int, int]:
        """What the host has sent and been sent so far: content of packets, as often as it was sent, without headers.

        Raises NetworkError where the network is gone.
        """
        found = [counted(*way) for way in self._ways]
        out, into = (sent - packets * HEADER_BYTES for sent, packets, *_ in found)
        return out, into

    def dropped(self) -> int:
        """Packets that found the queue of their way full so far. Raises NetworkError where the network is gone."""
        return sum(dropped for _, _, dropped, _ in (counted(*way) for way in self._ways))


class LanPlan:
    """What has to be told to the tools for one network. Nothing is run here.

    Args:
        number: of the network among all.
        spaces: the namespace of each host.
        switch: that of the bridge.

    Attributes:
        hosts: names.
    """

    def __init__(self, number: int, lan: Lan, spaces: Mapping[str, str], switch: str) -> None:
        self._number, self._lan, self._spaces, self._switch = number, lan, spaces, switch
        # The size of packets is the sender's choice: the slowest port needs it small.
        self._packet = lan.packet or min(packet_bytes(lan.out_mb_s), packet_bytes(lan.in_mb_s))
        self._most = max(MOST_PACKET, self._packet)
        self.hosts = lan.hosts

    def ports(self) -> dict[str, Port]:
        """By host."""
        return {
            host: Port(self._spaces[host], self._switch, self._names(at), self._address(at), self._packet)
            for at, host in enumerate(self.hosts, 1)
        }

    def bridge(self) -> list[str]:
        """Lines for ``ip`` in the bridge's namespace."""
        bridge = f"lan{self._number}"
        lines = [
            f"link add name {bridge} type bridge stp_state 0 mcast_snooping 0",
            f"link set {bridge} addrgenmode none up",
        ]
        for at, host in enumerate(self.hosts, 1):
            device, port = self._names(at)
            lines += [
                f"link add {port} mtu {self._most} type veth "
                f"peer name {device} address {self._mac(at)} mtu {self._most} netns {self._spaces[host]}",
                f"link set {port} master {bridge} addrgenmode none gso_max_segs 1 up",
                f"link set {port} type bridge_slave learning off flood off mcast_flood on bcast_flood on",
            ]
        return lines

    def stations(self) -> list[str]:
        """Lines for ``bridge`` in its namespace."""
        return [f"fdb add {self._mac(at)} dev {self._names(at)[1]} master static" for at, _ in enumerate(self.hosts, 1)]

    def inner(self, host: str) -> list[str]:
        """Lines for ``ip`` in a host's namespace."""
        own = self.hosts.index(host) + 1
        device = self._names(own)[0]
        return [
            f"link set {device} addrgenmode none gso_max_segs 1 up",
            f"address add {self._address(own)}/24 dev {device} brd + noprefixroute",
            f"route add {route(f'{self._address(0)}/24', device, self._packet)}",
            f"route add 224.0.0.0/4 dev {device}",
            *(
                f"neigh add {self._address(at)} lladdr {self._mac(at)} dev {device}"
                for at, _ in enumerate(self.hosts, 1)
                if at != own
            ),
        ]

    def shaping(self) -> dict[str, list[str]]:
        """Lines for ``tc``, by namespace."""
        lines: dict[str, list[str]] = {self._switch: []}
        for at, host in enumerate(self.hosts, 1):
            device, port = self._names(at)
            lines[self._spaces[host]] = shape(device, self._lan.out_mb_s, self._packet)
            lines[self._switch] += shape(port, self._lan.in_mb_s, self._packet)
        return lines

    def _names(self, at: int) -> tuple[str, str]:
        return f"n{self._number}", f"q{self._number}-{at}"

    def _address(self, at: int) -> str:
        """Of a host, counted from 1; 0 is the network itself."""
        return f"10.232.{self._number}.{at}"

    def _mac(self, at: int) -> str:
        return f"02:e8:00:00:{self._number:02x}:{at:02x}"
