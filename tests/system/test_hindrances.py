"""What is in the way of an installation: who waits for it says so in its log, and health says it is not ready."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest
from certificates import flags, not_yet_valid
from checkpoints import DEMO
from forked import ForkedProcess
from installation import wait_until
from oracle import oracle_answer
from processes import Process, free_port

from service.certs import Authority

pytestmark = pytest.mark.system

QUESTION: Final = "What is 2 + 3?"
CUT: Final = ("--model", str(DEMO), "--split", "2", "--threads", "1")
ASK: Final = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 8}
FULL: Final = """
mount -t tmpfs -o size=64k shm /dev/shm
dd if=/dev/zero of=/dev/shm/full 2> /dev/null || true
mount -t tmpfs -o ro cache "$HOME_THERE"
mount --bind -o ro "$0" "$0"
exec "$@"
"""
"""Nothing more fits into shared memory; the home and the model cannot be written to."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates, of two CAs."""
    folder = tmp_path_factory.mktemp("lab")
    authority = Authority(folder)
    authority.issue(["here"], "server")
    authority.issue(["expired"], "member", days=-1)
    not_yet_valid(authority, "future")
    Authority(folder / "other").issue(["here"], "server")
    return folder


def asked(port: int) -> httpx.Response:
    """One short request."""
    return httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=ASK, timeout=60, trust_env=False)


@pytest.mark.parametrize(
    ("secret", "shows", "why"),
    [
        ("another", "", "--cloud-token"),
        pytest.param("right", "expired", "expired", marks=pytest.mark.slow),
        pytest.param("right", "future", "not valid yet", marks=pytest.mark.slow),
        pytest.param("right", "other/here", "--tls-ca", marks=pytest.mark.slow),
    ],
    ids=["wrong secret", "expired", "not valid yet", "another CA"],
)
def test_a_cloud_that_cannot_be_trusted(secret: str, shows: str, why: str, lab: Path, tmp_path: Path) -> None:
    """The device says why, in words that say what to do, and goes on trying; the gateway lives, is not ready, and sends
    clients away for a while."""
    gateway_port, cloud_port = free_port(), free_port()
    tls = shows and flags((lab / shows).parent, Path(shows).name)[:4]
    scheme, checks = ("wss", ("--tls-ca", str(lab / "ca.crt"))) if tls else ("ws", ())
    links = ("--gateway", f"ws://127.0.0.1:{gateway_port}", "--cloud", f"{scheme}://127.0.0.1:{cloud_port}", *checks)
    cloud = ForkedProcess(
        "cloud_server", *CUT, "--port", str(cloud_port), *tls, log=tmp_path / "cloud", port=cloud_port,
        environment={"TRILBY_CLOUD_TOKEN": secret}, scheme="https" if tls else "http",
    )  # fmt: skip
    gateway = ForkedProcess("gateway", "--port", str(gateway_port), log=tmp_path / "gateway", port=gateway_port)
    device = ForkedProcess(
        "device_agent", *CUT, *links, log=tmp_path / "device", environment={"TRILBY_CLOUD_TOKEN": "right"}
    )
    with cloud, gateway, device:
        wait_until(lambda: why in device.output)
        assert device.process is not None and device.process.poll() is None
        base = f"http://127.0.0.1:{gateway_port}"
        assert httpx.get(f"{base}/health", trust_env=False).status_code == 200
        assert httpx.get(f"{base}/ready", trust_env=False).status_code == 503
        refused = asked(gateway_port)
        assert refused.status_code == 503 and "Retry-After" in refused.headers


@pytest.mark.slow
def test_nothing_can_be_written(tmp_path: Path) -> None:
    """A read-only home and model, and no room in /dev/shm, cost no answer."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("needs root, for mounts of its own")
    model = tmp_path / "model"
    shutil.copytree(DEMO, model)
    (tmp_path / "home").mkdir()
    gateway_port, cloud_port = free_port(), free_port()
    cut = ("--model", str(model), *CUT[2:])
    links = ("--gateway", f"ws://127.0.0.1:{gateway_port}", "--cloud", f"ws://127.0.0.1:{cloud_port}")
    home = {"HOME_THERE": str(tmp_path / "home"), "HOME": str(tmp_path / "home")}
    with ExitStack() as stack:
        for module, words, port in (
            ("gateway", ("--port", str(gateway_port)), gateway_port),
            ("cloud_server", (*cut, "--port", str(cloud_port)), cloud_port),
            ("device_agent", (*cut, *links), 0),
        ):
            process = Process(module, *words, log=tmp_path / module, port=port, environment=home)
            process._arguments = ["unshare", "--mount", "sh", "-ec", FULL, str(model), *process._arguments]
            stack.enter_context(process)
        wait_until(lambda: httpx.get(f"http://127.0.0.1:{gateway_port}/ready", trust_env=False).status_code == 200)
        said = asked(gateway_port).json()["choices"][0]["message"]["content"]
        assert said == oracle_answer(DEMO, QUESTION, 8)[0]
        logs = "".join((tmp_path / name).read_text() for name in ("gateway", "cloud_server", "device_agent"))
        assert "Traceback" not in logs
