"""A device that warms up is ready sooner and has learned nothing by it."""

from __future__ import annotations

import asyncio

import pytest

from device_agent import warm_up as module
from device_agent.build import build
from device_agent.config import DeviceConfig
from device_agent.warm_up import warm_up
from service.serve import DEMO
from split_model.warming import WARM_UP_S


@pytest.mark.parametrize("mode", ["hat", "local", "u-medusa", "cloud"])
async def test_it_leaves_no_trace(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers, head and every drafter run, without a cloud; what drafting learned is forgotten and nothing is kept."""
    warned: list[str] = []
    monkeypatch.setattr(module.log, "warning", lambda event, **fields: warned.append(f"{event} {fields}"))
    config = DeviceConfig(model=str(DEMO), mode=mode, split=0 if mode == "cloud" else 2)
    device = build(config)
    try:
        await asyncio.wait_for(warm_up(device.writer, config), WARM_UP_S + 20)
        assert warned == []
        assert not device.writer.ways._ways
        hybrid = device.writer.ways.drafters._by_name.get("hybrid")
        assert hybrid is None or not hybrid._calibration._kinds  # type: ignore[attr-defined]
        assert not device.writer.conversations._parked
    finally:
        device.stop()


async def test_what_fails_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose layers cannot run now serves all the same, and says so in its log."""
    warned: list[str] = []
    monkeypatch.setattr(module.log, "warning", lambda event, **fields: warned.append(event))
    device = build(DeviceConfig(model=str(DEMO), draft=("none",)))
    monkeypatch.setattr(type(device.parts.head), "forward", lambda *given: 1 / 0)
    await warm_up(device.writer, device.config)
    assert warned == ["warming up failed"]
    device.stop()
