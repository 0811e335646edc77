"""The flags of every mode: what devices and clouds make of them."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from cloud_server.config import CloudConfig
from device_agent.config import DeviceConfig
from service.modes import MODES, UNCUT_ROWS, WHOLE_ROWS, cloud_flags, device_flags
from service.serve import ServeConfig
from service.settings import settings_command

WITH_CLOUD = [name for name, mode in MODES.items() if mode.has_cloud]


def parsed(config: type[Any], words: list[str]) -> Any:
    """The settings of a command line."""
    seen: list[Any] = []
    result = CliRunner().invoke(settings_command(config, seen.append, name="command"), ["--model", "m", *words])
    assert seen, result.output
    return seen[0]


def cloud(mode: str, **settings: Any) -> CloudConfig:
    """The cloud server of a mode."""
    config: CloudConfig = parsed(CloudConfig, cloud_flags(mode, **settings))
    return config


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_alone_says_all(mode: str) -> None:
    """Of a device, and of ``trilby serve``; one with a small model wants to know which."""
    settings: dict[str, Any] = {"draft": ("org/small",)} if mode == "u-small" else {}
    assert parsed(DeviceConfig, device_flags(mode, **settings)) == DeviceConfig("m", mode=mode, **settings)
    assert parsed(ServeConfig, device_flags(mode, **settings)) == ServeConfig("m", mode=mode, **settings)


def test_other_settings_as_flags() -> None:
    """Words, numbers, lists and switches, on and off."""
    flags = device_flags("hat", draft=["a", "b/c"], whole_prompts=True, hat_paper=False, draft_threshold=0.5)
    assert flags == ["--mode", "hat", "--draft", "a", "--draft", "b/c", "--whole-prompts", "--no-hat-paper",
                     "--draft-threshold", "0.5"]  # fmt: skip


@pytest.mark.parametrize("mode", WITH_CLOUD)
def test_cloud_and_device_have_the_same_layers(mode: str) -> None:
    """Where nobody says how the model is split, both sides take it the same way."""
    draft = ("org/small",) if mode == "u-small" else ()
    device, server = DeviceConfig("m", mode=mode, draft=draft), cloud(mode)
    assert (device.split, device.tail) == (server.split, server.tail)


def test_the_clouds_of_trilby_itself_are_as_they_are() -> None:
    """No flags for the default mode, chunks or not drafted for; what is not cut by the device is not cut there."""
    assert cloud_flags("hat") == []
    assert cloud("hat", whole_prompts=True) == cloud("ushape") == cloud("u-medusa") == cloud("u-small")
    assert cloud("hat", step_rows=256) == CloudConfig("m", step_rows=256)


def test_a_cloud_that_cuts_nothing() -> None:
    """A whole prompt fits one forward, several such fit one step, and no decoder keeps them out of it."""
    config = cloud("ushape")
    assert config.max_rows == WHOLE_ROWS <= config.window_rows // 2
    assert (config.step_rows, config.step_slack) == (UNCUT_ROWS, 0)


def test_a_cloud_that_cuts_by_rows_alone() -> None:
    """The paper's two sizes of chunks; forwards are as long as those that are not cut."""
    for given, rows in ((0, 128), (256, 256)):
        config = cloud("u-sarathi", step_rows=given)
        assert (config.step_rows, config.step_slack, config.max_rows) == (rows, 0, WHOLE_ROWS)


def test_a_cloud_with_all_layers_cuts_as_trilbys_does() -> None:
    """Prompts come whole, and how they run is its usual choice."""
    config, usual = cloud("cloud"), CloudConfig("m")
    assert (config.split, config.tail, config.max_rows) == (0, 0, WHOLE_ROWS)
    assert (config.step_rows, config.step_slack) == (usual.step_rows, usual.step_slack)


def test_modes_that_are_not_there() -> None:
    """Said with those that are; the local one has no cloud to start."""
    for ask in (cloud_flags, device_flags):
        with pytest.raises(ValueError, match="hat, ushape, u-sarathi"):
            ask("sarathi")
    with pytest.raises(ValueError, match="has no cloud"):
        cloud_flags("local")
    with pytest.raises(ValueError, match="leave --step-rows out"):
        ServeConfig(mode="local", step_rows=128)


@pytest.mark.parametrize(("slack", "fits"), [(0.0, True), (0.5, False), (0.999, False), (1.0, True), (20.0, True)])
def test_a_slack_is_a_factor_or_none(slack: float, fits: bool) -> None:
    """Below one no step would fit."""
    if fits:
        assert CloudConfig("m", step_slack=slack).step_slack == slack
    else:
        with pytest.raises(ValueError, match="step-slack"):
            CloudConfig("m", step_slack=slack)
