"""The links between the nodes of a group: its members, and the portal where it is none. Pure."""

from __future__ import annotations

from device_agent.planning.profile import Collective, Profile


class Lan:
    """What was measured, by the nodes' numbers.

    Attributes:
        members: nodes 0 to `members` - 1 compute.
        portal: the number of the portal; `members` where it computes nothing.
        devices: of each node, as measured.
        bytes_s, delay_s: bandwidth, and seconds until a message has come once it has left, from node to node.
        small: bytes of all members' parts together up to which they go from each to all at once.
        ring: each member and the one that it sends to.
    """

    def __init__(self, profile: Profile, members: tuple[str, ...], portal: str) -> None:
        """Raises ValueError where the profile lacks a device."""
        names = [*members, *([] if portal in members else [portal])]
        known = {device.name: device for device in profile.devices}
        for name in names:
            if name not in known:
                raise ValueError(f"nothing was measured of {name}")
        links = {(link.source, link.target): link for link in profile.links}
        at = [[links.get((source, target)) for target in names] for source in names]
        self.members = len(members)
        self.portal = names.index(portal)
        self.devices = [known[name] for name in names]
        self.bytes_s = [[link.bytes_s if link else float("inf") for link in row] for row in at]
        self.delay_s = [[link.rtt_s / 2 if link else 0.0 for link in row] for row in at]
        self.small = profile.one_shot_bytes
        self.ring = [(member, (member + 1) % self.members) for member in range(self.members)]
        self._measured = {c.kind: c for c in profile.collectives if c.devices == self.members}
        self._factors: dict[tuple[str, float], float] = {}

    def factor(self, kind: str, total_bytes: float) -> float:
        """How many times as long as the links alone say an exchange of so many bytes was measured to take; 1 where it
        was not measured among so many devices."""
        measured = self._measured.get(kind)
        if measured is None or total_bytes <= 0:
            return 1.0
        key = kind, total_bytes
        if key not in self._factors:
            self._factors[key] = self._factor(measured, total_bytes)
        return self._factors[key]

    def _factor(self, measured: Collective, total_bytes: float) -> float:
        part = total_bytes / self.members
        rounds = (self.members - 1) * (2 if measured.kind == "all_reduce" else 1)
        slowest = max(part / self.bytes_s[i][j] + self.delay_s[i][j] for i, j in self.ring)
        return measured.seconds(total_bytes) / (rounds * slowest) if rounds * slowest > 0 else 1.0
