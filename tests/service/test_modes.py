"""The flags of every mode: what devices and clouds make of them."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from cloud_server.config import CloudConfig
from device_agent.config import DeviceConfig
from service.modes import MODES, UNCUT_ROWS, WHOLE_ROWS
from service.serve import ServeConfig
from service.setting_names import command_line
from service.settings import settings_command, words_of
from service.shared_settings import CloudSide

WITH_CLOUD = [name for name, mode in MODES.items() if mode.has_cloud]


def parsed(config: type[Any], words: list[str]) -> Any:
    """The settings of a command line."""
    seen: list[Any] = []
    result = CliRunner().invoke(settings_command(config, seen.append, name="command"), ["--model", "m", *words])
    assert seen, result.output
    return seen[0]


def cloud(mode: str, **settings: Any) -> CloudConfig:
    """The cloud server of a mode."""
    config: CloudConfig = parsed(CloudConfig, command_line(mode=mode, **settings))
    return config


def how_it_runs(config: CloudConfig) -> tuple[float, ...]:
    """What a mode says of a cloud server's steps."""
    return config.max_rows, config.window_rows, config.step_rows, config.step_slack


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_alone_says_all(mode: str) -> None:
    """Of a device, and of ``trilby serve``; one with a small model wants to know which, and a group has a key."""
    settings: dict[str, Any] = {"draft": ("org/small",)} if mode == "u-small" else {}
    key: dict[str, Any] = {"group_key": "k" * 16} if MODES[mode].group else {}
    words = command_line(mode=mode, **settings)
    assert parsed(DeviceConfig, words + command_line(**key)) == DeviceConfig("m", mode=mode, **settings, **key)
    assert parsed(ServeConfig, words) == ServeConfig("m", mode=mode, **settings)


@pytest.mark.parametrize("mode", [name for name, mode in MODES.items() if mode.group])
def test_a_group_has_all_layers_unless_told_otherwise(mode: str) -> None:
    """Prompts come to it whole; its portal drafts, with what it has: its text, or also its first layers."""
    config = ServeConfig(mode=mode)
    assert (config.devices, config.split, config.whole_prompts) == (2, 0, True)
    assert config.wanted_drafters == ("lookup",) and ServeConfig(mode=mode, split=2).wanted_drafters == ()
    assert ServeConfig(mode=mode, draft=("none",)).wanted_drafters == ("none",)
    for key in ("", "short"):
        with pytest.raises(ValueError, match="TRILBY_GROUP_KEY"):
            DeviceConfig("m", mode=mode, group_key=key)


@pytest.mark.parametrize("where", ["0.0.0.0:1", "nowhere", "10.0.0.1:", "10.0.0.1:70000", ":8003"])
def test_a_group_listens_where_others_reach_it(where: str) -> None:
    """An address of this machine and a port, and no wildcard."""
    with pytest.raises(ValueError, match="--group-listen"):
        DeviceConfig("m", mode="galaxy", group_key="k" * 16, group_listen=where)
    assert DeviceConfig("m", mode="galaxy", group_key="k" * 16, group_listen="[fe80::1]:0").devices == 2


def test_devices_are_a_groups() -> None:
    """Elsewhere they would do nothing."""
    with pytest.raises(ValueError, match=r"--devices is for groups .*voltage, galaxy.*, and --mode hat has none"):
        ServeConfig(devices=3)
    with pytest.raises(ValueError, match="--fewest-devices is for groups whose shares are measured"):
        ServeConfig(fewest_devices=True)
    with pytest.raises(ValueError, match="--fewest-devices is for groups whose shares are measured"):
        ServeConfig(mode="galaxy", fewest_devices=True, shares="even")
    with pytest.raises(ValueError, match="--memory"):
        ServeConfig(mode="galaxy", device="cuda")
    assert ServeConfig(mode="galaxy", device="cuda", memory="2GiB").device == "cuda"


def test_other_settings_as_flags() -> None:
    """Words, numbers, lists and switches, on and off; None says nothing."""
    words = command_line(draft=["a", "b/c"], whole_prompts=True, hat_paper=False, draft_threshold=0.5, step_rows=None)
    assert words == ["--draft", "a", "--draft", "b/c", "--whole-prompts", "--no-hat-paper", "--draft-threshold", "0.5"]


@pytest.mark.parametrize("mode", WITH_CLOUD)
def test_cloud_and_device_have_the_same_layers(mode: str) -> None:
    """Where nobody says how the model is split, both sides take it the same way."""
    draft = ("org/small",) if mode == "u-small" else ()
    device, server = DeviceConfig("m", mode=mode, draft=draft), cloud(mode)
    assert (device.split, device.tail) == (server.split, server.tail)


def test_the_clouds_of_trilby_itself_are_as_they_are() -> None:
    """The default mode is the default, chunks or not drafted for; what is not cut by the device is not cut there."""
    assert cloud("hat") == CloudConfig("m")
    assert how_it_runs(CloudConfig("m")) == (512, 2048, 512, 1.25)
    uncut = [cloud("hat", whole_prompts=True), *(cloud(mode) for mode in ("ushape", "u-medusa", "u-small"))]
    assert len({how_it_runs(config) for config in uncut}) == 1
    assert cloud("hat", step_rows=256) == CloudConfig("m", step_rows=256)


@pytest.mark.parametrize("mode", WITH_CLOUD)
def test_what_is_given_is_not_filled_in(mode: str) -> None:
    """By flag or by variable, whatever the mode says; what is not given is as the mode has it."""
    given = cloud(mode, max_rows=100, step_slack=3.0)
    assert (given.max_rows, given.step_slack) == (100, 3.0)
    assert (given.window_rows, given.step_rows) == (cloud(mode).window_rows, cloud(mode).step_rows)
    seen: list[CloudConfig] = []
    command = settings_command(CloudConfig, seen.append, name="trilby cloud")
    CliRunner().invoke(command, ["--model", "m", "--mode", mode], env={"TRILBY_STEP_ROWS": "64", "TRILBY_SPLIT": "3"})
    assert (seen[0].step_rows, seen[0].split) == (64, 3)


@pytest.mark.parametrize("mode", WITH_CLOUD)
@pytest.mark.parametrize("settings", [{}, {"step_rows": 80, "whole_prompts": True, "served_model_name": ("a", "b c")}])
def test_serve_hands_its_cloud_on_what_it_was_given(mode: str, settings: dict[str, Any]) -> None:
    """Its cloud is the one that ``trilby cloud`` would start with the same words."""
    draft = ("org/small",) if mode == "u-small" else ()
    if mode in ("ushape", "u-sarathi", "u-medusa", "u-small", "cloud"):
        settings = {"whole_prompts": True} | settings  # As their devices have it.
    serve = ServeConfig("m", mode=mode, draft=draft, **settings)
    assert parsed(CloudConfig, words_of(serve, CloudSide)) == cloud(mode, **settings)


def test_a_cloud_that_cuts_nothing() -> None:
    """A whole prompt fits one forward, several such fit one step, and no decoder keeps them out of it."""
    config = cloud("ushape")
    assert config.max_rows == WHOLE_ROWS <= config.window_rows // 2
    assert (config.step_rows, config.step_slack) == (UNCUT_ROWS, 0)


def test_a_cloud_that_cuts_by_rows_alone() -> None:
    """The paper's two sizes of chunks; forwards are as long as those that are not cut."""
    for given, rows in ((None, 128), (256, 256)):
        config = cloud("u-sarathi", step_rows=given)
        assert (config.step_rows, config.step_slack, config.max_rows) == (rows, 0, WHOLE_ROWS)


def test_a_cloud_with_all_layers_cuts_as_trilbys_does() -> None:
    """Prompts come whole, and how they run is its usual choice."""
    config, usual = cloud("cloud"), CloudConfig("m")
    assert (config.split, config.tail, config.max_rows) == (0, 0, WHOLE_ROWS)
    assert (config.step_rows, config.step_slack) == (usual.step_rows, usual.step_slack)


def test_modes_that_are_not_there() -> None:
    """The local one has no cloud: what to start instead is said."""
    with pytest.raises(ValueError, match="has no cloud server: start `trilby device --mode local` alone"):
        CloudConfig("m", mode="local")
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
