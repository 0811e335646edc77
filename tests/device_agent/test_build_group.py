"""A device's group before it begins: what it is planned for, what is said of it, and what cannot be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from checkpoints import DEMO
from hypothesis import given
from hypothesis import strategies as st

from device_agent.build import build
from device_agent.build_group import PortalGroup, build_group, usual_work
from device_agent.config import DeviceConfig
from service.sizes import bytes_of
from split_model.checkpoint import Checkpoint
from split_model.slices import middle_slice

KEY = "a key of these tests"


@given(st.integers(1, 10_000))
def test_what_it_is_planned_for_fits_the_model(positions: int) -> None:
    """However few positions it has: a prompt and an answer, or one text whose rows are all wanted. There is memory for
    as many keys and values as members must have room for, so that none refuses what was planned."""
    writing, reading = usual_work(positions, reads=False), usual_work(positions, reads=True)
    assert writing.rows + writing.new <= positions and writing.wanted == 1
    assert writing.positions == (positions if writing.new else 0)
    assert reading.rows == reading.wanted <= positions and reading.new == 0
    assert positions < 384 or (writing.rows, writing.new, reading.rows) == (256, 128, 256)


async def group(**settings: Any) -> PortalGroup:
    """The group of the demo model's layers from 1 on."""
    config = DeviceConfig(str(DEMO), mode="tensor", group_key=KEY, group="kitchen", split=1, **settings)
    checkpoint = Checkpoint.open(DEMO)
    return build_group(config, "portal", checkpoint, middle_slice(checkpoint.spec, 1, 0))


@pytest.mark.parametrize(
    ("memory", "draft", "split", "default"),
    [("", (), 2, "hybrid"), ("40MB", (), 2, "hybrid"), ("8MB", (), 0, "lookup"), ("40MB", ("lookup",), 0, "lookup")],
)
async def test_who_drafts_beside_a_group_that_reads_its_weights(
    memory: str, draft: tuple[str, ...], split: int, default: str
) -> None:
    """The drafter that was trained for the model, where it and the layers that it drafts with take at most half of the
    portal's memory, which is the less for its part; else the text itself, or what was named."""
    settings = {"draft": draft, "memory": memory, "max_model_len": 64, "group_listen": "127.0.0.1:0"}
    device = build(DeviceConfig(str(DEMO), mode="lime", group_key=KEY, **settings))  # type: ignore[arg-type]
    assert isinstance(device.remote, PortalGroup)
    assert device.writer.ways.drafters.default == default and len(device.parts.front.blocks) == split
    host = device.remote.host
    assert host.first_layer == split
    beside = device.parts.front.loaded_bytes + 4 * device.writer.ways.drafters.parameters
    assert (host.budget == 0) == (not memory) and (not memory or host.budget <= bytes_of("", memory) - beside)
    device.stop()


async def test_what_is_said_of_it() -> None:
    """Before it listens it has no address, and takes no request before it has formed; then there is one, of the
    portal alone where nobody else is wanted."""
    portal = await group(devices=1, shares="even", group_listen="127.0.0.1:0")
    assert not portal.connected and (portal.report().address, portal.report().formed) == ("", False)
    running = asyncio.create_task(portal.run())
    try:
        while not portal.connected:
            await asyncio.wait_for(portal.news(), 60)
        report = portal.report()
        assert (report.name, report.mode, report.formed) == ("kitchen", "tensor", True)
        assert report.address == f"127.0.0.1:{portal.host.listens.result()}"
        assert [(each.name, each.state, each.layers) for each in report.members] == [("portal", "working", "1-11")]
        news = asyncio.create_task(portal.news())
        await asyncio.sleep(0)
        portal.says = lambda: "something else"
        portal.host.renew()
        await asyncio.wait_for(news, 60)
        assert portal.report().why == "something else"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert not portal.connected, "nothing will follow"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"device": "cuda", "mode": "lime"}, "lime computes on CPUs"),
        ({"device": "cuda:99"}, "--device cpu|the last one here"),
        ({"tail": 1}, "leave --tail out"),
    ],
)
async def test_what_no_group_does(settings: dict[str, Any], why: str) -> None:
    """Said before anything is loaded for it."""
    with pytest.raises(ValueError, match=why):
        build(DeviceConfig(str(DEMO), **{"mode": "galaxy", "group_key": KEY, **settings}))
