"""What products take on one core of this machine, as the profile that plans are made from. Quotas make it slower."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import msgspec
import torch
from bench.edge.shapes import Shape
from bench.edge.weights import RandomCheckpoint
from msgspec.structs import replace

from device_agent.planning.profile import VERSION, DeviceProfile, LinkProfile, Profile
from device_agent.planning.table import Table
from device_agent.profiling.compute import measured_seconds
from device_agent.profiling.links import LinksMeasured

RTT_S = 1e-3
"""Of a small message, where the processes at both ends have a quota."""

FREE_MB_S = 2000.0
DISK_BYTES = 1 << 50
TINY_S = 1e-9

Tables = dict[str, Table]


def tables(shape: Shape, dtype: str, file: Path) -> Tables:
    """Seconds of all parts of a layer, as the product measures them; read where a file has them, so that one run has
    one profile. Embedding and head are the terminal's, and take nothing here."""
    if file.is_file():
        return msgspec.json.decode(file.read_bytes(), type=Tables)
    found = measured_seconds(RandomCheckpoint(shape.spec(shape.swept)), getattr(torch, dtype), quick=True)
    found |= {part: Table(((1,),), (TINY_S,)) for part in ("embedding", "head")}
    file.write_bytes(msgspec.json.encode(found))
    return found


def profile(
    of: Tables,
    slower: Sequence[float],
    budgets: Sequence[int],
    mb_s: float,
    measured: Sequence[LinksMeasured] = (),
) -> Profile:
    """Of a group: each device takes so many times as long, and the terminal nothing; all ports are alike.

    mb_s: 10^6 bytes a second; 0: free. measured: by devices, of the links between them; the terminal's are as set.
    """
    scaled = [(f"device-{number}", factor) for number, factor in enumerate(slower, 1)]
    devices = [
        DeviceProfile(name, budget, DISK_BYTES, {part: _times(table, factor) for part, table in of.items()})
        for (name, factor), budget in zip([*scaled, ("terminal", 1.0)], [*budgets, DISK_BYTES], strict=True)
    ]
    known = Profile(VERSION, "random", "float32", tuple(devices), _links(devices, mb_s))
    if not measured:
        return known
    between = {(link.source, link.target): link for each in measured for link in each.links}
    links = tuple(between.get((link.source, link.target), link) for link in known.links)
    exchanges, small = measured[0].collectives, measured[0].one_shot_bytes
    beside = {each.links[0].source: each.kept_beside for each in measured}
    kept = tuple(replace(device, kept_beside=beside.get(device.name, 1.0)) for device in devices)
    return replace(known, devices=kept, links=links, collectives=exchanges, one_shot_bytes=small)


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
