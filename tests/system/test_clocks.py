"""A machine whose clock is wrong by an hour: what goes by it says so, and nothing else notices.

The clock of one process is shifted by the library of Debian's package faketime; without it these tests are skipped.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest
from certificates import flags, valid_for
from checkpoints import DEMO
from installation import Installation, wait_until
from oracle import oracle_answer
from processes import Process, free_port, with_paths

from service.certs import Authority

pytestmark = pytest.mark.system

QUESTION: Final = "What is 2 + 3?"
ASK: Final = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 8}
CUT: Final = ("--model", str(DEMO), "--split", "2", "--threads", "1")
HALF_AN_HOUR: Final = 30.0


def shifted(hours: str) -> dict[str, str]:
    """What a process is started with that is to see another time of day; how time passes stays as it is."""
    found = sorted(Path("/usr").glob("lib*/**/faketime/libfaketimeMT.so.1"))
    if not found:
        pytest.skip("needs faketime (Debian: apt-get install faketime)")
    return {"LD_PRELOAD": str(found[0]), "FAKETIME": f"{hours}h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(("hours", "why"), [("+1", "the certificate shown has expired"), ("-1", "not valid yet")])
def test_certificates_go_by_the_clock_of_who_checks_them(hours: str, why: str, tmp_path: Path) -> None:
    """A gateway an hour off takes a device's good certificate for one that is not: its log says why and names clocks.
    It lives and is not ready, and the device is told where to look."""
    environment = shifted(hours)
    authority = Authority(tmp_path)
    for name in ("gateway", "device"):
        valid_for(authority, name, HALF_AN_HOUR)
    gateway_port, cloud_port = free_port(), free_port()
    gateway = Process(
        "gateway", "--port", str(gateway_port), *flags(tmp_path, "gateway"), log=tmp_path / "gateway.log",
        port=gateway_port, scheme="https", environment=environment,
    )  # fmt: skip
    links = ("--gateway", f"wss://127.0.0.1:{gateway_port}", "--cloud", f"ws://127.0.0.1:{cloud_port}")
    cloud = Process("cloud_server", *CUT, "--port", str(cloud_port), log=tmp_path / "cloud.log", port=cloud_port)
    device = Process("device_agent", *CUT, *links, *flags(tmp_path, "device"), log=tmp_path / "device.log")
    with gateway, cloud, device:
        wait_until(lambda: why in gateway.output and "clock" in gateway.output)
        wait_until(lambda: "log says" in device.output)
        base = f"https://127.0.0.1:{gateway_port}"
        status = [httpx.get(base + path, trust_env=False, verify=False).status_code for path in ("/health", "/ready")]
        assert status == [200, 503]


def test_keys_end_by_the_clock_of_the_gateway(tmp_path: Path) -> None:
    """One that is an hour ahead refuses a key that is good for half an hour, and says what time it takes it to be."""
    environment, keys = shifted("+1"), tmp_path / "keys"
    command = [
        sys.executable,
        "-m",
        "service.command",
        "keys",
        "--key-store",
        str(keys),
        "add",
        "anna",
        "--days",
        "0.02",
    ]
    key = subprocess.run(command, capture_output=True, text=True, check=True, env=with_paths()).stdout.strip()
    port = free_port()
    for more, expected in (({}, 503), (environment, 401)):
        log = tmp_path / f"{expected}.log"
        words = ("--port", str(port), "--key-store", str(keys))
        with Process("gateway", *words, log=log, port=port, environment=more):
            answer = httpx.post(
                f"http://127.0.0.1:{port}/v1/chat/completions", json=ASK, timeout=60, trust_env=False,
                headers={"Authorization": f"Bearer {key}"},
            )  # fmt: skip
            assert answer.status_code == expected
            if expected == 401:
                assert "has expired at " in answer.json()["error"]["message"]
                assert "at the gateway" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_nothing_else_goes_by_clocks(tmp_path: Path) -> None:
    """Gateway an hour ahead, cloud an hour behind, device right: answers are as ever, and nothing ends early."""
    with Installation(
        tmp_path, with_device=True, cloud_environment=shifted("-1"), gateway_environment=shifted("+1")
    ) as installation:
        for _ in range(2):
            answer = httpx.post(f"{installation.base}/chat/completions", json=ASK, timeout=60, trust_env=False)
            assert answer.json()["choices"][0]["message"]["content"] == oracle_answer(DEMO, QUESTION, 8)[0]
        assert installation.cloud_metric("num_replays_total") == 0 == installation.cloud_metric("num_evictions_total")
