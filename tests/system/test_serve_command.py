"""The command a newcomer runs: it serves, says what to try, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from checkpoints import DEMO
from click.testing import CliRunner
from forked import ForkedProcess
from processes import ROOT
from serving import READY_WITHIN_S, Serving

from cloud_server.__main__ import main as cloud
from device_agent.__main__ import main as device
from gateway.__main__ import main as gateway
from service.chat import command as chat
from service.command import main
from service.serve import command as serve

pytestmark = pytest.mark.system


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    """The command ends by itself and says what is wrong."""
    serving = Serving(tmp_path / "log", "--model", str(tmp_path / "nothing"), forked=True)
    assert serving.process.wait(READY_WITHIN_S) != 0
    assert "nothing" in serving.log.read_text() and "Traceback" not in serving.log.read_text()


def test_who_listens_there_already_is_not_taken_for_its_gateway(tmp_path: Path) -> None:
    """Nor shown its keys, and nothing is begun: the port is named, and what to do."""
    asked = list[bytes]()

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(str(self.headers).encode())
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        words = ("--mode", "local", "--port", str(other.server_port), "--api-keys", "a-secret-key")
        serving = Serving(tmp_path / "log", *words, forked=True)
        assert serving.process.wait(READY_WITHIN_S) != 0
        other.shutdown()
    said = serving.log.read_text()
    assert "Cannot listen on" in said and "Choose another --port" in said and "Traceback" not in said and not asked


@pytest.mark.parametrize("command", [main, serve, chat, gateway, cloud, device], ids=lambda command: command.name)
def test_help(command: click.Command) -> None:
    """Every command explains itself with examples."""
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0, result.output
    assert "Examples:" in result.output and "  trilby" in result.output


@pytest.mark.parametrize(
    "name", ["gateway", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cloud", "device"))]
)
def test_help_of_a_process(name: str) -> None:
    """``trilby`` hands the question on to the process it starts."""
    command = [sys.executable, "-m", "service.command", name, "--help"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "Examples:" in result.stdout and f"  trilby {name}" in result.stdout


@pytest.mark.parametrize("arguments", [["gateway"], ["cloud_server", "--model", str(DEMO)]], ids=["gateway", "cloud"])
def test_beyond_loopback_a_token_is_required(arguments: list[str], tmp_path: Path) -> None:
    """Neither gateway nor cloud starts open to the network without its credential."""
    started = ForkedProcess(*arguments, "--host", "0.0.0.0", "--port", "0", log=tmp_path / "log").start()
    assert started.process is not None and started.process.wait(60) != 0
    assert "-token" in started.output
