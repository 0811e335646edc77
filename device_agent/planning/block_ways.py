"""EdgeFormer's allocation of blocks for a task, each way beside the others: as published, by the least sum of Eq. 2,
and exactly, with what rows take between devices. Nothing is lent. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_agent.planning.block_allocation import (
    BlockDevice,
    NoRoom,
    by_block_seconds,
    by_efficiency,
    exactly,
    seconds,
)
from device_agent.planning.edgeshard import layers_room, request_hop_s
from device_agent.planning.lending_search import LendingSearch
from device_agent.planning.ratios import by_speed
from device_agent.planning.task import Task


@dataclass(frozen=True)
class BlockWay:
    """One way.

    Attributes:
        name: in words.
        runs: devices by name with how many blocks each has, in the order of the blocks.
        seconds: of all the work, hops included.
    """

    name: str
    runs: tuple[tuple[str, int], ...]
    seconds: float


def block_devices(task: Task, block_s: Sequence[float]) -> list[BlockDevice]:
    """The task's members, by seconds of all the work in one block at each."""
    rooms = [layers_room(task, name, first=True) for name in task.members]
    return [BlockDevice(*each) for each in zip(rooms, by_speed(task), block_s, strict=True)]


def block_hops(task: Task) -> list[list[float]]:
    """Seconds of all the work from each member to each, the portal behind them."""
    names, wanted = [*task.members, task.portal], task.work.wanted
    return [
        [*(request_hop_s(task, one, other) for other in task.members), request_hop_s(task, one, task.portal, wanted)]
        for one in names
    ]


def block_ways(task: Task) -> list[BlockWay]:
    """None where the devices have no room for all blocks together, or blocks are not alike."""
    if task.shape.cross_layers:
        return []
    search, layers = LendingSearch(task), task.shape.layers
    devices = block_devices(task, [search.whole_s(home) for home in range(len(task.members))])
    hops = block_hops(task)
    try:
        found = {
            "Eq. 2 as published, most f / s first": by_efficiency(layers, devices),
            "the least sum of Eq. 2": by_block_seconds(layers, devices),
            "all ways, hops counted": exactly(layers, devices, hops),
        }
    except NoRoom:
        return []
    return [
        BlockWay(name, tuple((task.members[at], count) for at, count in runs), seconds(runs, devices, hops))
        for name, runs in found.items()
    ]
