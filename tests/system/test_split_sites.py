"""Device and cloud where what is wrong is there from the beginning: a network that harms messages, too few pages,
clocks that jump; and a client that never reads. A plain answer, a second turn and a drafted one at once, each compared
with transformers'.

Rows F8, F10, F12 and F13 of ``docs/results/faults.md``.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest
from fault_proxy import KINDS, Faults
from faults.clocks import jumping
from faults.judging import judge
from faults.proxied import proxied
from faults.shapes import Asked, body_of
from faults.slow_reader import check_slow_reader
from faults.split import JSON, THREAD, split_site
from installation import Installation, wait_until
from processes import free_port

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(900)]

FEW_MB: Final = "7"
"""Of keys and values: some 680 positions of the demo model's ten layers in the cloud, where 970 are asked for."""
SEEDS: Final = 3
HARMFUL: Final = Faults(rate=0.02, most=25)
JUMP_S: Final = 3600.0


def test_a_client_that_reads_nothing(tmp_path: Path) -> None:
    """It is given up; who is answered beside it has the same tokens."""
    with split_site(tmp_path, gateway_settings=(*JSON, "--client-within-s", "5")) as site:
        check_slow_reader(site.base, site.running)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_messages_are_harmed(seed: int, tmp_path: Path) -> None:
    """Replayed, doubled, swapped, cut, lost, late messages, connections that end on one side or on both: the tokens are
    the same."""
    port = free_port()
    with proxied(f"ws://127.0.0.1:{port}", HARMFUL, seed) as network:
        settings = (*THREAD, *JSON, "--draft-length", "fixed", "--chunk", "32", "--recover-within-s", "60")
        with Installation(
            tmp_path, cloud_port=port, cloud_url=network.url, forked=True, device_settings=settings,
            cloud_settings=(*THREAD, *JSON),
        ) as site:  # fmt: skip
            asked = Asked(site.base)
            asked.begin()
            began = time.monotonic()
            answers = asked.answers()
            happened = network.happened.total() - network.happened["delay"]
            said = ", ".join(f"{count} {kind}" for kind, count in sorted(network.happened.items()))
            judge(asked, answers, began, f"messages to and from the cloud: {said}")
            assert happened > 0 and set(network.happened) <= set(KINDS)


def test_there_are_too_few_pages(tmp_path: Path) -> None:
    """Sessions end for others' sake and begin again: the tokens are the same, and nobody waits for ever."""
    with split_site(tmp_path, cloud_settings=(*THREAD, *JSON, "--kv-mb", FEW_MB)) as site:
        asked = Asked(site.base)
        asked.begin()
        began = time.monotonic()
        judge(asked, asked.answers(), began, f"{FEW_MB} MB of pages for sessions that want 10")
        here = site.installation
        ended = sum(here.cloud_metric("num_preemptions_total", port) for port in here.cloud_ports)
        assert ended > 0, "there was room for all that were at work"
        wait_until(lambda: site.open_sessions() == 0, 60)


def test_clocks_jump(tmp_path: Path) -> None:
    """In the middle of the answers the gateway's clock goes an hour on, in the middle of the next ones two hours
    back, and then it is right again: nothing ends early, nobody is taken for dead, and no row is sent twice. (faketime
    makes a process that computes many times as slow; ``test_clocks.py`` has a cloud's clock.)"""
    with (
        jumping(tmp_path / "clock") as clock,
        split_site(tmp_path, gateway_environment=clock.environment) as site,
    ):

        def lost() -> tuple[int, int]:
            """How often the device has lost a cloud, and the gateway the device."""
            return (
                site.process("device").output.count("no cloud"),
                site.process("gateway").output.count("agent disconnected"),
            )

        jumped, before = list[float](), lost()

        def jump(offset_s: float) -> None:
            jumped.append(time.monotonic())
            clock.set(offset_s)

        for offset_s, said in ((JUMP_S, "an hour on"), (-JUMP_S, "two hours back"), (0.0, "right again")):
            jumped.clear()  # Each jump has its own answers.
            asked = Asked(site.base, do=partial(jump, offset_s))
            asked.begin()
            judge(asked, asked.answers(), jumped[-1], f"the gateway's clock {said}")
            time.sleep(2 * clock.SEEN_WITHIN_S)
            reply = httpx.post(f"{site.base}/chat/completions", json=body_of((("user", "Hello"),), 1), trust_env=False)
            assert abs(reply.json()["created"] - time.time() - offset_s) < 600, "its clock has not jumped"
        for port in site.installation.cloud_ports:
            assert site.installation.cloud_metric("num_replays_total", port) == 0
        assert lost() == before
