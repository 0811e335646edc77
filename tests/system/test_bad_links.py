"""Networks that are slow, late or gone, on hosts that are network namespaces: tokens are transformers' all the same.

Rows F6 and F7 of ``docs/results/faults.md``. No packets are dropped one by one: the kernel's netem is not everywhere;
``test_frame_faults.py`` and ``test_split_sites.py`` lose whole messages.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest
from bench.testbed.bed import Testbed
from bench.testbed.inside import inside
from bench.testbed.possible import obstacle
from bench.testbed.scenario import load
from faults.judging import judge
from faults.shapes import Asked
from faults.times import noticed_s
from house import API, a_house
from installation import wait_until

from peers.reader import SILENT_S
from service.modes import MODES

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(obstacle()), reason=f"no testbed here: {obstacle()}"),
]

GROUPS: Final = [name for name, mode in MODES.items() if mode.group]
HOSTS: Final = ("study", "kitchen", "attic")
SLOW_MB_S: Final = 0.5
"""Of a member's port: a fortieth of what it had."""
SITE: Final = """
[hosts.home]
[hosts.cloud]
[links.wan]
between = ["home", "cloud"]
up_mb_s = 5.0
down_mb_s = 5.0
delay_ms = 5
relay = true
[processes.gateway]
on = "home"
command = "gateway --log-level warning"
ready = "http://127.0.0.1:8000/health"
[processes.cloud]
on = "cloud"
command = "cloud_server --model models/demo --split 2 --host {bind} --threads 1"
environment = { TRILBY_CLOUD_TOKEN = "a-cloud-token" }
ready = "http://127.0.0.1:8001/health"
[processes.device]
on = "home"
command = \"\"\"
device_agent --model models/demo --split 2 --threads 1 --draft-length fixed --cloud ws://{endpoint:cloud:8001}
\"\"\"
environment = { TRILBY_CLOUD_TOKEN = "a-cloud-token" }
ready = "http://127.0.0.1:8000/state"
ready_text = '"cloud_connected":true'
"""


@pytest.mark.parametrize("mode", GROUPS)
def test_a_member_is_unplugged_and_comes_back(mode: str, tmp_path: Path) -> None:
    """Nobody is told that its network is gone: it is noticed by the silence, the answers go on among those who are
    left, and with its network it takes part again, in a new life of the group."""
    with a_house(tmp_path, mode, HOSTS) as house:
        wait_until(lambda: house.working() == len(HOSTS))
        broken: list[float] = []

        def unplug() -> None:
            broken.extend((time.time(), time.monotonic()))
            house.bed.port(HOSTS[-1]).plug(False)

        asked = Asked(f"{API}/v1", do=unplug)
        house.at_home(asked.begin)
        answers = house.at_home(asked.answers)

        def noticed() -> float | None:
            return noticed_s(house.log("device_agent", HOSTS[0]), broken[0], "the group is lost")

        # Answers may be over by then: where whole rows are shared out, one row needs nobody else.
        wait_until(lambda: noticed() is not None, SILENT_S + 3.0)
        judge(asked, answers, broken[1], "a member's cable pulled out; put back", noticed_s=noticed(), setting=mode)
        assert (noticed() or 0.0) < SILENT_S + 3.0
        house.bed.port(HOSTS[-1]).plug(True)
        wait_until(lambda: house.working() == len(HOSTS))
        again = Asked(f"{API}/v1")
        for name, answer in house.at_home(again.answers).items():
            assert answer.text == again.expected(name), name


@pytest.mark.parametrize("mode", GROUPS)
def test_a_members_link_becomes_slow(mode: str, tmp_path: Path) -> None:
    """A fortieth of its bandwidth, in the middle of the answers: slower, and the same tokens."""
    with a_house(tmp_path, mode, HOSTS) as house:
        wait_until(lambda: house.working() == len(HOSTS))
        broken: list[float] = []

        def slow() -> None:
            broken.append(time.monotonic())
            house.bed.port(HOSTS[-1]).set(SLOW_MB_S, SLOW_MB_S)

        asked = Asked(f"{API}/v1", do=slow)
        house.at_home(asked.begin)
        answers = house.at_home(asked.answers)
        judge(asked, answers, broken[0], "a member's port at a fortieth of its bandwidth", setting=mode)


def test_the_way_to_the_cloud_becomes_slow_and_late(tmp_path: Path) -> None:
    """A hundredth of the bandwidth and 40 ms each way, give or take 15, in the middle of the answers."""
    scenario = tmp_path / "site.toml"
    scenario.write_text(SITE)
    with Testbed(load(scenario), tmp_path / "logs") as bed:
        bed.start("gateway", "cloud")
        bed.start("device")
        broken: list[float] = []

        def slow() -> None:
            broken.append(time.monotonic())
            bed.link("home", "cloud").set(up_mb_s=0.05, down_mb_s=0.05, delay_ms=40, jitter_ms=15)

        asked = Asked("http://127.0.0.1:8000/v1", do=slow)
        space = bed.namespace("home")
        inside(space, asked.begin)
        answers = inside(space, asked.answers)
        judge(asked, answers, broken[0], "a hundredth of the bandwidth, and 40 ± 15 ms more each way")
