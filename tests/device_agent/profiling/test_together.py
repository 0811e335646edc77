"""Devices that are measured together: who comes, and who does not."""

from __future__ import annotations

import asyncio

import pytest
from group_plans import TINY
from group_plans import device as made_up
from msgspec.structs import replace

from device_agent.planning.profile import DeviceProfile, Profile
from device_agent.profiling.together import Measure, as_first, as_member
from peers.board import PeerLost
from peers.membership import join

KEY = "a secret of these tests"


def measured(name: str, flops_s: float) -> Measure:
    """What is measured at once."""
    return lambda: made_up(name, TINY, flops_s)


async def profile_of(members: dict[str, Measure], names: list[str]) -> Profile:
    """What the first makes of these members, which come by themselves; the first's own is called a."""
    tasks: list[asyncio.Task[None]] = []

    async def member(name: str, measure: Measure, where: str) -> None:
        async with join(where, KEY, name) as membership:
            await as_member(membership, measure, quick=True)

    def start(where: str) -> None:
        tasks.extend(asyncio.create_task(member(name, measure, where)) for name, measure in members.items())

    def look() -> None:
        for task in tasks:
            if task.done():
                task.result()

    try:
        return await as_first(names, KEY, start, look, measured("a", 1e9), True, "digest", "float32")
    finally:
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_all_are_in_the_groups_profile() -> None:
    """Each as it was measured, in the order of the names, but for what a byte that it exchanges costs it, which is
    measured among them; and a link from each to each other."""
    found = await profile_of({"c": measured("c", 3e9), "b": measured("b", 2e9)}, ["a", "b", "c"])
    alone = tuple(replace(device, byte_cost_s=0.0) for device in found.devices)
    assert alone == tuple(made_up(name, TINY, speed) for name, speed in (("a", 1e9), ("b", 2e9), ("c", 3e9)))
    assert all(0 <= device.byte_cost_s < 1e-3 for device in found.devices)
    assert len(found.links) == 6
    assert {each.devices for each in found.collectives} == {3}
    assert (found.digest, found.dtype) == ("digest", "float32")


async def test_one_that_cannot_be_measured_ends_it() -> None:
    """Nobody waits for what will never come."""

    def broken() -> DeviceProfile:
        raise ValueError("it is broken")

    with pytest.raises(PeerLost, match="member 1"):
        await profile_of({"b": broken}, ["a", "b"])


async def test_one_that_does_not_come_ends_it() -> None:
    """Whoever looks after the processes says so."""

    def look() -> None:
        raise SystemExit("b ended by itself")

    with pytest.raises(SystemExit, match="b ended"):
        await as_first(["a", "b"], KEY, lambda where: None, look, measured("a", 1e9), True, "digest", "float32")
