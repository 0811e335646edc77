"""``python -m bench.testbed`` as a person runs it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench.testbed import leftovers
from processes import ROOT

WITHIN_S = 60.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), "PYTHONUNBUFFERED": "1"}

pytestmark = pytest.mark.system


def run(*arguments: str, before: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
    """The command, with what is before it on its line."""
    line = [*before, sys.executable, "-m", "bench.testbed", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=WITHIN_S, env={**ENVIRONMENT, **more})


def test_refusal_without_tools() -> None:
    """Where tools lack, it says which packages have them."""
    refused = run("check", PATH="/nowhere")
    assert refused.returncode == 1
    assert "bridge, ip, tc, nsenter, setpriv, unshare not found" in refused.stderr
    assert "install the packages iproute2 util-linux" in refused.stderr


def test_refusal_without_privileges(possible: None) -> None:
    """Root in a plain container is not enough; every command says so and makes nothing."""
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    for arguments in (("check",), ("clean",), ("up", __file__)):
        refused = run(*arguments, before=(setpriv, "--bounding-set", "-all", "--inh-caps", "-all"))
        assert refused.returncode == 1
        assert "this takes root and CAP_NET_ADMIN and CAP_SYS_ADMIN" in refused.stderr
        assert "--privileged" in refused.stderr


def test_check_and_clean(possible: None) -> None:
    """Where it is possible, it says that."""
    assert "can be made here" in run("check").stdout
    assert run("clean").returncode == 0


def test_bad_scenario(possible: None, tmp_path: Path) -> None:
    """A scenario that cannot be, or lacks a variable, is one line that says where."""
    path = tmp_path / "bad.toml"
    path.write_text('[hosts.a]\ncores = "{cores}"')
    refused = run("up", str(path))
    assert refused.returncode == 1 and f"{path} [hosts.a]: cores: nothing was given for {{cores}}" in refused.stderr
    assert "is not NAME=VALUE" in run("up", str(path), "--set", "cores").stderr


@pytest.mark.parametrize(("number", "cores"), [(signal.SIGINT, 0.5), (signal.SIGTERM, 1000.0)])
def test_up(possible: None, tmp_path: Path, number: signal.Signals, cores: float) -> None:
    """It says how to reach the hosts, and when the machine is smaller than they are together, keeps everything up, and
    removes it when asked to end."""
    path = tmp_path / "two.toml"
    path.write_text(
        f'[hosts.a]\ncores = {cores}\n[hosts.b]\n[links.l]\nbetween = ["a", "b"]\n'
        '[processes.p]\non = "b"\ncommand = "/bin/sleep {long}"\n'
    )
    line = [sys.executable, "-m", "bench.testbed", "up", str(path), "--set", "long=1000", "--folder", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT) as command:
        try:
            assert command.stdout is not None and command.stderr is not None
            said: list[str] = []
            while not said or not said[-1].startswith("Up;"):
                said.append(command.stdout.readline())
                assert said[-1], said
            prefix = leftovers.prefix_of(command.pid)
            assert list(leftovers.NAMESPACES.glob(f"{prefix}-*"))
            assert said[0].startswith(f"a: {cores:g} cores; nsenter --net=/run/netns/{prefix}-")
            assert said[2].startswith("a reaches b at 10.")
            command.send_signal(number)
            assert command.wait(WITHIN_S) == 0
            assert ("1000.00 cores together" in command.stderr.read()) == (cores == 1000)
            assert not list(leftovers.NAMESPACES.glob(f"{prefix}-*"))
        finally:
            command.kill()
