"""Five hundred devices lose the same server and come back at once: spread out, and who asks meanwhile is answered.

Row F17 of ``docs/results/faults.md``.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Final

import httpx
import pytest
from checkpoints import DEMO
from clouds import device_hello
from faults.herd import herd
from faults.notes import note
from faults.shapes import Asked
from faults.times import longest_pause
from forked import ForkedProcess
from installation import Installation, wait_until
from msgspec.structs import replace
from processes import free_port

from service.logs import configure_logs
from wire.connection import Role
from wire.limits import CLOUD_LINK, GATEWAY_LINK
from wire.messages import AnyMessage
from wire.request_messages import AgentHello, ServedModel

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

DEVICES: Final = 500
SPREAD_S: Final = 0.1
"""At the least, from the tenth in a hundred of them to the ninetieth: not all in one moment."""
ANSWERED_WITHIN_S: Final = 10.0
BACK_WITHIN_S: Final = 60.0


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Each of them would say that its server is gone."""
    configure_logs("device", "error")


def spread(came: list[float]) -> tuple[float, float]:
    """From the tenth in a hundred to the ninetieth, and from the first to the last, in seconds."""
    times = sorted(came)
    return times[len(times) * 9 // 10] - times[len(times) // 10], times[-1] - times[0]


async def test_a_gateway_is_lost_by_five_hundred_devices(tmp_path: Path) -> None:
    """All are back soon, and not all at once; a device that answers is among them, and the next answer is
    transformers'."""
    port = free_port()
    log = tmp_path / "gateway.log"

    def start() -> ForkedProcess:
        words = ("--port", str(port), "--max-agents", "600", "--log-level", "warning")
        gateway = ForkedProcess("gateway", *words, log=log, port=port)
        gateway.start()
        return gateway

    hellos: list[AnyMessage] = [
        AgentHello(f"device {number}", "", [ServedModel("other/model", 100, 1)], 1) for number in range(DEVICES)
    ]
    gateway = start()
    words = ("--model", str(DEMO), "--mode", "local", "--threads", "1", "--gateway", f"ws://127.0.0.1:{port}")
    own = ForkedProcess("device_agent", *words, log=tmp_path / "device.log")
    base = f"http://127.0.0.1:{port}/v1"
    try:
        await asyncio.to_thread(gateway.wait_ready)
        with own:
            await asyncio.to_thread(wait_until, lambda: serves(base))
            async with herd(f"ws://127.0.0.1:{port}/device", Role.AGENT, GATEWAY_LINK, hellos) as devices:
                await devices.all_there()
                await asyncio.to_thread(gateway.end, signal.SIGKILL)
                await devices.all_gone()
                devices.refused = 0
                gateway, began = start(), time.monotonic()
                came = await devices.all_there()
                all_s = time.monotonic() - began
                await asyncio.to_thread(wait_until, lambda: serves(base), ANSWERED_WITHIN_S)
                asked = Asked(base, ["plain"])
                answers = await asyncio.to_thread(asked.answers)
                middle_s, whole_s = spread(came)
                print(f"{DEVICES} devices: all back {all_s:.1f} s after its start, most within {middle_s:.1f} s")
                print(f"{whole_s:.1f} s from the first to the last; {devices.refused} tries in vain")
                assert answers["plain"].text == asked.expected("plain")
                saw = f"503 until it was back; all devices came within {whole_s:.1f} s of one another"
                compared = answers["plain"].tokens
                note("plain", f"kill -9 of the gateway of {DEVICES} devices", saw, compared=compared, recovered_s=all_s)
                assert middle_s > SPREAD_S and all_s < BACK_WITHIN_S
    finally:
        await asyncio.to_thread(gateway.end, signal.SIGKILL)


async def test_a_cloud_is_lost_by_hundreds_of_devices(tmp_path: Path) -> None:
    """The same where a cloud is killed and started again: the installation's own device is served among them."""
    with Installation(
        tmp_path, forked=True, cloud_settings=("--threads", "1"), device_settings=("--threads", "1")
    ) as site:
        hello = device_hello(DEMO, 2, 0)
        hellos: list[AnyMessage] = [replace(hello, name=f"device {number}") for number in range(DEVICES)]
        url = f"ws://127.0.0.1:{site.cloud_port}/device"
        asked = Asked(site.base)
        for name in asked.turns:  # What transformers says is found out before anything is timed.
            asked.expected(name)
        async with herd(url, Role.DEVICE, CLOUD_LINK, hellos) as devices:
            await devices.all_there()
            await asyncio.to_thread(site.cloud.end, signal.SIGKILL)
            await devices.all_gone()
            began = time.monotonic()
            site.start_cloud()
            came = await devices.all_there()
            await asyncio.to_thread(wait_until, site.ready, BACK_WITHIN_S)
            answers = await asyncio.to_thread(asked.answers)
            middle_s, whole_s = spread(came)
            for name, answer in answers.items():
                assert answer.text == asked.expected(name), name
                saw = f"503 until it was back; all devices came within {whole_s:.1f} s of one another"
                pause_s = longest_pause(began, answer.times)
                note(name, f"kill -9 of the cloud of {DEVICES} devices", saw, compared=answer.tokens,
                     recovered_s=pause_s)  # fmt: skip
            assert middle_s > SPREAD_S


def serves(base: str) -> bool:
    """Whether the model that answers is there."""
    try:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "model": "trilby-demo"}
        return httpx.post(f"{base}/chat/completions", json=body, timeout=30, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
