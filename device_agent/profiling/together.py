"""Devices that are measured together: all at the same time, then the links between them.

In a group all compute at once, so on one machine each has its part of what there is, and no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
from msgspec.structs import replace

from device_agent.planning.profile import DeviceProfile, Profile
from device_agent.profiling.assembled import assembled
from device_agent.profiling.links import LinksMeasured, measure_links
from peers.board import Board
from peers.fabric import Fabric
from peers.membership import Membership
from peers.rendezvous import listening

LOOPBACK: Final = "127.0.0.1"
BEGIN: Final = "begin"
"""What the first posts once all are there."""

DEVICE: Final = "device/"
"""What a member posts, with its rank: its profile."""

LINKS: Final = "links/"
"""The same of its links."""

MEASURED_WITHIN_S: Final = 900.0
"""A device that has not measured itself by then hangs."""

_POLL_S: Final = 0.05

Measure = Callable[[], DeviceProfile]


def take_part(board: Board, rank: int, size: int, address: str, epoch: int, measure: Measure, quick: bool) -> None:
    """One member's part; blocks. Raises PeerLost, OSError, and what `measure` raises."""
    board.get(BEGIN, MEASURED_WITHIN_S)
    board.post(f"{DEVICE}{rank}", msgspec.json.encode(measure()))
    names = [device.name for device in devices_of(board, size)]
    with Fabric.open(board, rank, size, address, epoch=epoch) as fabric:
        measured = measure_links(fabric, names, quick=quick)
    board.post(f"{LINKS}{rank}", msgspec.json.encode(measured))


def devices_of(board: Board, size: int) -> list[DeviceProfile]:
    """What all have posted of themselves, by rank. Raises PeerLost, and ValueError for what is no profile."""
    posts = [board.get(f"{DEVICE}{rank}", MEASURED_WITHIN_S) for rank in range(size)]
    return [msgspec.json.decode(post, type=DeviceProfile) for post in posts]


async def as_member(membership: Membership, measure: Measure, quick: bool) -> None:
    """The part of one that has joined; returns when the first has all. Raises as `take_part`."""
    with ThreadPoolExecutor(1) as thread:
        place = membership.board, membership.rank, membership.size, membership.address, membership.epoch
        await asyncio.get_running_loop().run_in_executor(thread, take_part, *place, measure, quick)
    await membership.ended


async def as_first(
    names: Sequence[str],
    key: str,
    start: Callable[[str], None],
    look: Callable[[], None],
    measure: Measure,
    quick: bool,
    digest: str,
    dtype: str,
) -> Profile:
    """The part of the one that all others join, and what came of it.

    Args:
        names: of all devices, this one's first.
        key: what all prove to know.
        start: called with where the others are waited for, as HOST:PORT.
        look: called now and then while they come; what it raises ends all.
        digest, dtype: of the model as it is measured.
    """
    others = dict(enumerate(names[1:], 1))
    async with listening(LOOPBACK, 0, key) as rendezvous:
        group = rendezvous.open(1, dict.fromkeys(others, b""), others)
        start(f"{LOOPBACK}:{rendezvous.port}")
        while group.missing:
            look()
            await asyncio.sleep(_POLL_S)
        group.board.post(BEGIN, b"")
        with ThreadPoolExecutor(1) as thread:
            own = asyncio.get_running_loop().run_in_executor(
                thread, take_part, group.board, 0, group.size, rendezvous.address, group.epoch, measure, quick
            )
            await own
            posts = await asyncio.to_thread(
                lambda: [group.board.get(f"{LINKS}{rank}", MEASURED_WITHIN_S) for rank in range(group.size)]
            )
        measured = [msgspec.json.decode(post, type=LinksMeasured) for post in posts]
        devices = [
            replace(device, byte_cost_s=found.byte_cost_s) if len(names) > 1 else device
            for device, found in zip(devices_of(group.board, group.size), measured, strict=True)
        ]
        links = [link for each in measured for link in each.links]
        return assembled(digest, dtype, devices, links, measured[0].collectives, measured[0].one_shot_bytes)
