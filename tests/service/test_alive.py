"""Whether a part is alive, as the health check of its container asks: real servers, and files that are touched."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import structlog
from processes import ROOT, Process, free_port

from cloud_server.config import CloudConfig
from device_agent.config import DeviceConfig
from gateway.config import GatewayConfig
from service import alive_file
from service.alive import FILE_VARIABLE, OLD_S, PORTS, why_not
from service.alive_file import AliveSettings, alive_in
from service.certs import Authority
from service.setting_names import variable_of

SOON_S = 30.0


@contextmanager
def gateway(folder: Path, *words: str, scheme: str = "http", **variables: str) -> Iterator[dict[str, str]]:
    """A real one, on a port of its own; gives the variables that it was started with."""
    own = {"TRILBY_GATEWAY_PORT": str(free_port()), **variables}
    port = int(own["TRILBY_GATEWAY_PORT"])
    with Process("gateway", *words, log=folder / "log", port=port, scheme=scheme, environment=own):
        yield own


def test_a_gateway_is_asked_where_its_variables_say(tmp_path: Path) -> None:
    """By the program that the container runs, which a proxy that is set there does not mislead."""
    with gateway(tmp_path, TRILBY_GATEWAY_HOST="127.0.0.1") as own:
        environment = {**os.environ, **own, "http_proxy": "http://127.0.0.1:9", "PYTHONPATH": str(ROOT)}
        words = [sys.executable, "-m", "service.alive", "gateway"]
        asked = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
        assert asked.returncode == 0, asked.stderr
    gone = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert gone.returncode == 1 and "does not answer" in gone.stderr


def test_a_gateway_that_speaks_tls(tmp_path: Path) -> None:
    """With any certificate of its own: who asks tells nothing."""
    Authority(tmp_path).issue(["gateway"], "server")
    own = {kind: str(tmp_path / f"gateway.{kind}") for kind in ("crt", "key")}
    with gateway(tmp_path, scheme="https", TRILBY_TLS_CERT=own["crt"], TRILBY_TLS_KEY=own["key"]) as variables:
        assert why_not("gateway", variables) == ""
        assert "does not answer" in why_not("gateway", {**variables, "TRILBY_TLS_CERT": ""})


async def test_a_file_is_touched_while_the_event_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Again and again, and no longer than that."""
    monkeypatch.setattr(alive_file, "BEAT_EVERY_S", 0.01)
    path = tmp_path / "alive"
    variables = {FILE_VARIABLE: str(path)}
    assert "No such file" in why_not("device", variables)
    async with alive_in(str(path)):
        for _ in range(2):
            deadline = time.monotonic() + SOON_S
            while why_not("device", variables):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            os.utime(path, (0, 0))  # Of long ago.
    os.utime(path, (0, time.time() - 2 * OLD_S))
    await asyncio.sleep(0.1)
    assert "stands still" in why_not("device", variables)


async def test_a_file_that_cannot_be_written_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said once, however often it is tried; and none is asked for where none is named."""
    monkeypatch.setattr(alive_file, "BEAT_EVERY_S", 0.01)
    with structlog.testing.capture_logs() as lines:
        async with alive_in(str(tmp_path / "no" / "folder")):
            await asyncio.sleep(0.1)
        async with alive_in(""):
            await asyncio.sleep(0.01)
    assert [each["event"] for each in lines] == ["--alive-path cannot be touched"]
    assert FILE_VARIABLE in why_not("device", {})


def test_variables_are_those_of_the_settings() -> None:
    """What is loaded here alone, without the settings, must not fall behind them."""
    (setting,) = fields(AliveSettings)
    assert variable_of(setting) == FILE_VARIABLE and setting.name in {each.name for each in fields(DeviceConfig)}
    parts: tuple[tuple[str, Any], ...] = (("gateway", GatewayConfig), ("cloud", CloudConfig))
    assert {part for part, _ in parts} == PORTS.keys()
    for part, config in parts:
        named = {each.name: each for each in fields(config)}
        assert variable_of(named["host"]) == f"TRILBY_{part.upper()}_HOST"
        assert variable_of(named["port"]) == f"TRILBY_{part.upper()}_PORT" and named["port"].default == PORTS[part]
        assert variable_of(named["tls_cert"]) == "TRILBY_TLS_CERT"
