"""`trilby doctor` as a stuck user runs it, beside what `trilby serve` has started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import DEMO
from processes import ROOT, with_paths
from serving import Serving

pytestmark = pytest.mark.system

SECRET = "a-secret-that-nobody-sees"


def doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Its exit status, and what it prints."""
    command = [sys.executable, "-m", "service.command", "doctor", *arguments]
    environment = with_paths(**variables)
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=150)


def test_a_served_model_and_what_is_wrong_with_it(tmp_path: Path) -> None:
    """Where all is well it says so, and ends well; a wrong token, a cloud that is not there and a model that is none
    are each a line with what to do, and the others are told all the same. No secret is shown."""
    with Serving(tmp_path / "log", "--device-token-file", str(_file(tmp_path)), forked=True) as serving:
        gateway = f"ws://127.0.0.1:{serving.port}"
        well = doctor("--gateway", gateway, "--model", str(DEMO), "--split", "2", TRILBY_DEVICE_TOKEN=SECRET)
        ill = doctor(
            *("--gateway", gateway, "--cloud", "ws://127.0.0.1:1", "--model", str(tmp_path), "--json"),
            TRILBY_DEVICE_TOKEN="another-secret-token",
        )
    assert well.returncode == 0, well.stdout + well.stderr
    for line in (
        f"ok    {gateway} dialled: ",
        f"ok    {gateway} devices: device with trilby-demo",
        f"ok    {gateway} token: devices' token is accepted",
        f"ok    {gateway} round trip: ",
        "ok    model: trilby-demo",
        "ok    room: all layers on ",
    ):
        assert line in well.stdout, well.stdout
    assert "PyTorch: " in well.stdout and ", 0 failed, in " in well.stdout
    assert ill.returncode == 1, ill.stdout + ill.stderr
    findings = json.loads(ill.stdout)["findings"]
    failed = {(each["check"], each["about"]) for each in findings if each["status"] == "fail"}
    assert failed >= {("token", gateway), ("dialled", "ws://127.0.0.1:1"), ("model", "")}
    assert all(each["todo"] for each in findings if each["status"] != "ok")
    assert {"memory", "disk", "health", "devices", "clock's pace"} <= {each["check"] for each in findings}
    assert len([each for each in findings if each["about"] == "ws://127.0.0.1:1"]) == 1, "it was tried once"
    said = well.stdout + well.stderr + ill.stdout + ill.stderr
    assert SECRET not in said and "another-secret-token" not in said and "Traceback" not in said


def _file(folder: Path) -> Path:
    path = folder / "token"
    path.write_text(SECRET)
    return path
