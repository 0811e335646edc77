"""Redis dies, comes back empty, takes no writes, or stands still, while two gateways answer: no answer notices.

Row F9 of ``docs/results/faults.md``: a plain answer, a second turn and a drafted one at once, asked at the gateway that
the device is not connected to.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from faults.judging import judge
from faults.shapes import Asked
from faults.split import SETTINGS
from forked import ForkedProcess
from installation import Installation, wait_until
from processes import free_port
from redis import RedisError
from redis_here import RedisServer

from gateway.registry.names import GATEWAY

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

SECRETS: Final = {"TRILBY_GATEWAY_TOKEN": "what-gateways-share"}
KNOWN_WITHIN_S: Final = 15.0
"""After redis is back, on any machine; two beats of a second are the goal."""
STILL_S: Final = 2.0
MEANWHILE: Final = "asked while it was"
AFTERWARDS: Final = "asked afterwards"


class Site:
    """Two gateways, of which the second knows the device by redis alone."""

    def __init__(self, redis: RedisServer, stack: ExitStack, folder: Path) -> None:
        self.redis = redis
        secrets, settings = {**SECRETS, "TRILBY_REDIS": redis.url}, dict[str, Any](SETTINGS)
        self.one = stack.enter_context(Installation(folder, forked=True, gateway_environment=secrets, **settings))
        port = free_port()
        self.two = stack.enter_context(
            ForkedProcess("gateway", "--port", str(port), log=folder / "two.log", port=port, environment=secrets)
        )
        self.base = f"http://127.0.0.1:{port}/v1"

    def known(self) -> bool:
        """Whether the second gateway hears by redis of the first one's device."""
        state = httpx.get(f"{self.base.removesuffix('/v1')}/state", timeout=10, trust_env=False).json()
        fleet = state["fleet"]
        return bool(fleet["redis"]["connected"] and fleet["gateways"] and fleet["gateways"][0]["agents"])

    def kept(self) -> bool:
        """Whether redis has what both gateways say of themselves."""
        try:
            return len(list(self.redis.client.scan_iter(f"{GATEWAY}*"))) >= 2
        except RedisError:
            return False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Whoever breaks redis mends it."""
    with RedisServer() as redis, ExitStack() as stack:
        site = Site(redis, stack, tmp_path_factory.mktemp("fleet"))
        wait_until(site.known)
        yield site


def killed(site: Site) -> None:
    """It is gone."""
    site.redis.kill()


def emptied(site: Site) -> None:
    """It is gone, and another one without any data is there at once."""
    site.redis.kill()
    site.redis.start()


def read_only(site: Site) -> None:
    """It follows another one, which is not there, and so takes no writes."""
    site.redis.client.execute_command("REPLICAOF", "127.0.0.1", "1")


def still(site: Site) -> None:
    """It answers nothing until it is mended."""
    process = site.redis._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)


def shortly_still(site: Site) -> None:
    """It answers nothing for a while."""
    still(site)
    time.sleep(STILL_S)
    wake(site)


def wake(site: Site) -> None:
    """It answers again, if it still runs."""
    process = site.redis._process
    assert process is not None
    process.send_signal(signal.SIGCONT)


def mend(site: Site) -> None:
    """It is there, answers, and takes writes."""
    process = site.redis._process
    if process is None or process.poll() is not None:
        site.redis.start()
    wake(site)
    site.redis.client.execute_command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize(
    ("breaks", "injected", "again_when"),
    [
        (killed, "redis: kill -9", MEANWHILE),
        (emptied, "redis: kill -9, started again empty", AFTERWARDS),
        (read_only, "redis takes no writes", MEANWHILE),
        (still, "redis: SIGSTOP, SIGCONT behind the answers", MEANWHILE),
        (shortly_still, "redis: SIGSTOP for 2 s", AFTERWARDS),
    ],
)
def test_redis_breaks(breaks: Any, injected: str, again_when: str, site: Site) -> None:
    """The answers go on; who asks while it is gone is answered by what was heard last; and soon after it is back the
    gateways know of each other by it again."""
    mend(site)
    wait_until(site.known)
    broken: list[float] = []

    def do() -> None:
        broken.append(time.monotonic())
        breaks(site)

    asked = Asked(site.base, do=do)
    asked.begin()
    answers = asked.answers()
    asked_again = time.monotonic()
    again = Asked(site.base).answers()
    mend(site)
    took_s = wait_until(lambda: site.kept() and site.known(), KNOWN_WITHIN_S)
    print(f"{injected}: known again {took_s:.1f} s after it was back")
    judge(asked, answers, broken[0] if broken else 0.0, injected)
    judge(asked, again, asked_again, f"{injected}; {again_when}")
