"""The process: it starts, serves, and drains before it stops."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]


def test_sigterm_drains_and_ends_cleanly() -> None:
    """Health answers, then exit code 0 and a log that says so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "gateway", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            deadline = time.monotonic() + 20
            while True:
                try:
                    assert httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
                    break
                except httpx.ConnectError:
                    assert time.monotonic() < deadline and process.poll() is None
                    time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=10)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "finished=True" in errors
    assert "Traceback" not in errors
