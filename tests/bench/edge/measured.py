"""What was measured of devices and links, as the profile that plans are made from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from msgspec.structs import replace

from device_agent.planning.profile import VERSION, DeviceProfile, LinkProfile, Profile
from device_agent.planning.table import Table
from device_agent.profiling.links import LinksMeasured

RTT_S = 1e-3
"""Of a small message, where the processes at both ends have a quota."""

FREE_MB_S = 2000.0
DISK_BYTES = 1 << 50
TINY_S = 1e-9

Tables = dict[str, Table]


def profile(
    of: Sequence[Tables],
    slower: Sequence[float],
    budgets: Sequence[int],
    mb_s: float,
    measured: Sequence[LinksMeasured] = (),
) -> Profile:
    """Of a group: each device takes so many times as long as its tables say; all ports are alike. Embedding and head
    are the terminal's, and take nothing here.

    mb_s: 10^6 bytes a second; 0: free. measured: by devices, of the links between them; the terminal's are as set.
    """
    ends = {part: Table(((1,),), (TINY_S,)) for part in ("embedding", "head")}
    every = [(f"device-{number}", *each) for number, each in enumerate(zip(of, slower, budgets, strict=False), 1)]
    devices = [
        DeviceProfile(name, budget, DISK_BYTES, {part: _times(table, factor) for part, table in found.items()} | ends)
        for name, found, factor, budget in [*every, ("terminal", of[0], 1.0, DISK_BYTES)]
    ]
    known = Profile(VERSION, "random", "float32", tuple(devices), _links(devices, mb_s))
    if not measured:
        return known
    between = {(link.source, link.target): link for each in measured for link in each.links}
    links = tuple(between.get((link.source, link.target), link) for link in known.links)
    exchanges, small = measured[0].collectives, measured[0].one_shot_bytes
    costs_s = {each.links[0].source: each.byte_cost_s for each in measured}
    paying = tuple(replace(device, byte_cost_s=costs_s.get(device.name, 0.0)) for device in devices)
    return replace(known, devices=paying, links=links, collectives=exchanges, one_shot_bytes=small)


def with_ports(known: Profile, mb_s: float) -> Profile:
    """The same devices with other ports."""
    return replace(known, links=_links(known.devices, mb_s))


def _links(devices: Sequence[DeviceProfile], mb_s: float) -> tuple[LinkProfile, ...]:
    names = [device.name for device in devices]
    return tuple(
        LinkProfile(one, other, (mb_s or FREE_MB_S) * 1e6, RTT_S)
        for one, other in product(names, names)
        if one != other
    )


def _times(table: Table, factor: float) -> Table:
    return Table(table.axes, tuple(second * factor for second in table.seconds))
