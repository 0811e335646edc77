"""What ``--help`` shows, and that a setting means the same wherever it is read."""

from __future__ import annotations

import re
from dataclasses import Field, fields
from typing import Any

import pytest
from click.testing import CliRunner

from cloud_server.__main__ import main as cloud
from cloud_server.config import CloudConfig
from cloud_server.stages.stage import StageConfig
from cloud_server.stages.stage import main as stage
from device_agent.__main__ import main as device
from device_agent.auditing.__main__ import main as audit
from device_agent.auditing.config import AuditConfig
from device_agent.config import DeviceConfig
from device_agent.plan import PlanConfig
from device_agent.plan import main as plan
from device_agent.profiling.__main__ import main as profile
from device_agent.profiling.config import ProfileConfig
from gateway.__main__ import main as gateway
from gateway.config import GatewayConfig
from service.bench.__main__ import main as bench
from service.bench.config import BenchConfig
from service.chat import ChatConfig
from service.chat import command as chat
from service.doctor.__main__ import main as doctor
from service.doctor.config import DoctorConfig
from service.serve import ServeConfig
from service.serve import command as serve
from service.setting_names import flag_of, variable_of

COMMANDS: dict[str, Any] = {
    "serve": serve,
    "device": device,
    "cloud": cloud,
    "stage": stage,
    "gateway": gateway,
    "chat": chat,
    "bench": bench,
    "profile": profile,
    "plan": plan,
    "doctor": doctor,
    "audit": audit,
}
MOST = {
    "serve": 14,
    "device": 20,
    "cloud": 18,
    "stage": 6,
    "gateway": 14,
    "chat": 7,
    "bench": 12,
    "profile": 7,
    "plan": 8,
    "doctor": 14,
    "audit": 14,
}
"""Beside those for help itself."""
HELP = {"--help", "--help-all"}
CONFIGS: dict[str, Any] = {
    "serve": ServeConfig, "device": DeviceConfig, "cloud": CloudConfig, "stage": StageConfig,
    "gateway": GatewayConfig, "chat": ChatConfig, "bench": BenchConfig, "profile": ProfileConfig, "plan": PlanConfig,
    "doctor": DoctorConfig,
    "audit": AuditConfig,
}  # fmt: skip


def shown(name: str, flag: str) -> list[str]:
    """The options in what a command says of itself."""
    result = CliRunner().invoke(COMMANDS[name], [flag])
    assert result.exit_code == 0, result.output
    return re.findall(r"^  (-\S+)", result.output, re.MULTILINE)


@pytest.mark.parametrize("name", MOST)
def test_help_shows_what_a_user_decides(name: str) -> None:
    """Few enough to be read; the rest is where it says, and no flag is left out there."""
    few, all_of_them = shown(name, "--help"), shown(name, "--help-all")
    assert len(set(few) - HELP) <= MOST[name], few
    assert HELP <= set(few) <= set(all_of_them)
    flags = {flag_of(each.name) for each in fields(CONFIGS[name]) if not each.metadata["argument"]}
    assert flags <= {flag.partition("/")[0] for flag in all_of_them}


def meaning(each: Field[Any]) -> tuple[Any, ...]:
    """What a setting is, but for its default, whether it is shown, and whether it has a flag."""
    told = {key: value for key, value in each.metadata.items() if key not in ("tunes", "minimum", "argument")}
    return each.name, str(each.type), tuple(told.items())


def test_no_variable_means_two_things() -> None:
    """Of all processes, which may share one environment; one that two of them read was declared once."""
    found: dict[str, set[tuple[Any, ...]]] = {}
    for config in CONFIGS.values():
        for each in fields(config):
            found.setdefault(variable_of(each), set()).add(meaning(each))
    assert [variable for variable, meanings in found.items() if len(meanings) > 1] == []


def test_no_setting_has_two_variables() -> None:
    """But for those that mean another thing in another process."""
    found: dict[str, set[str]] = {}
    for config in CONFIGS.values():
        for each in fields(config):
            found.setdefault(each.name, set()).add(variable_of(each))
    assert {name for name, variables in found.items() if len(variables) > 1} == {
        "host",
        "join",
        "json",
        "mode",
        "port",
        "model",
        "out",
        "seed",
        "split",
    }


@pytest.mark.parametrize("config", [ServeConfig, DeviceConfig, CloudConfig])
def test_names_for_clients(config: Any) -> None:
    """Several, each another one."""
    assert config("m", served_model_name=("a", "b/c")).name_in_cloud == "a"
    for names in (("",), ("a", "a")):
        with pytest.raises(ValueError, match="--served-model-name"):
            config("m", served_model_name=names)
