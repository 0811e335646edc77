"""Every method's flags are the product's, and methods differ in what they are called after and in nothing else."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from bench.hat.cells import all_cells
from bench.hat.measure import processes_of
from bench.hat.methods import METHODS, SARATHI_ROWS
from bench.hat.setups import Setup
from click.testing import CliRunner

from cloud_server.config import CloudConfig
from device_agent.config import DeviceConfig
from service.draft_settings import HAT_PAPER
from service.settings import settings_command

SETUP = Setup("demo", Path("folder"), 2, 512, 0.4, "device_agent")


def parsed(config: type[Any], words: list[str]) -> Any:
    """The settings of a command line."""
    seen: list[Any] = []
    result = CliRunner().invoke(settings_command(config, seen.append, name="command"), ["--model", "m", *words])
    assert seen, result.output
    return seen[0]


def device(method: str) -> DeviceConfig:
    """What its device is."""
    config: DeviceConfig = parsed(DeviceConfig, SETUP.device_flags(METHODS[method]))
    return config


def cloud(method: str, dataset: str = "specbench") -> CloudConfig:
    """What its cloud server is."""
    config: CloudConfig = parsed(CloudConfig, METHODS[method].cloud(dataset))
    return config


def differs(one: Any, other: Any) -> set[str]:
    """Settings of the same process that are not the same."""
    return {each.name for each in fields(one) if getattr(one, each.name) != getattr(other, each.name)}


@pytest.mark.parametrize("name", METHODS)
def test_the_product_takes_the_flags(name: str) -> None:
    """Of both processes and for every data set; the device is in the method's mode."""
    assert device(name).mode == METHODS[name].mode
    for dataset, rows in SARATHI_ROWS.items():
        assert (cloud(name, dataset).step_rows == rows) == (METHODS[name].mode == "u-sarathi")


@pytest.mark.parametrize("name", METHODS)
def test_whole_prompts_are_served_whole(name: str) -> None:
    """A cloud takes in one frame what its devices send in one, and cuts it only where the method says so."""
    plain, found = CloudConfig("m"), cloud(name)
    if device(name).whole_prompts:
        assert found.max_rows > 4 * plain.max_rows
        assert (found.step_rows > found.max_rows) == (METHODS[name].mode not in ("u-sarathi", "cloud"))
    else:
        assert differs(found, plain) <= SAID


def test_the_small_model_is_the_setups() -> None:
    """A folder beside the model; every other method drafts with what it names."""
    assert device("u-small").draft == (str(Path("folder/drafters/small")),)
    assert device("u-medusa").draft == ("medusa",)
    assert METHODS["u-medusa"].drafter == "medusa" and METHODS["ushape"].drafter == "none"
    assert METHODS["hat"].drafter == "" and METHODS["sd"].drafter == "adapter"


SAID = {"mode", "whole_prompts"}
"""What a cloud is told; how it runs is the other settings."""

PAIRS = {
    ("ushape", "ushape-full"): {"download"},
    ("ushape", "u-sarathi"): {"mode"},
    ("ushape-full", "none"): set[str](),
    ("none", "pc"): {"mode", "whole_prompts"},
    ("none", "sd"): {"mode", "draft", "draft_length", "prepare", "stream_rows"},
    ("sd", "sd+pd"): {"prepare"},
    ("sd", "sd+pc"): {"whole_prompts"},
    ("sd+pd", "sd+pc+pd"): {"whole_prompts"},
    ("sd+pc", "sd+pc+pd"): {"prepare"},
    ("sd+pc+pd", "hat-paper"): {"download", "hat_paper"},
    ("hat-paper", "hat"): {"hat_paper", *HAT_PAPER} - {"draft_threshold"},  # Which says what is the default.
    ("hat-plain", "hat"): {"pack_rows"},
    ("ushape", "chunk-auto"): {"mode", "whole_prompts"},
    ("chunk-auto", "chunk-128"): {"chunk"},
    ("pc", "chunk-auto"): {"download"},
}
"""Settings of the device in which two methods differ."""


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_methods_differ_in_what_they_name(one: str, other: str) -> None:
    """On the device in these settings, and in the cloud where prompts are whole on one side and not on the other."""
    assert differs(device(one), device(other)) == PAIRS[one, other]
    same_cloud = "u-sarathi" not in (one, other) and device(one).whole_prompts == device(other).whole_prompts
    assert (differs(cloud(one), cloud(other)) <= SAID) == same_cloud


def test_cells_are_served_as_they_say() -> None:
    """Stages, a relay where there is a round trip, and text in the cloud for that method alone."""
    for cell in all_cells(settings=["demo"]):
        if cell.method in METHODS:
            found = processes_of(cell, SETUP)
            assert (found.stages, found.relayed) == (cell.stages, cell.experiment == "rtt")
            assert found.sends_text == (cell.method == "cloud")
            assert SETUP.scenario(found.sends_text).is_file()
            assert cell.rtt_ms == 0 or found.relayed
