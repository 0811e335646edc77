"""A scale-down and a lost node, rehearsed with hosts that are network namespaces: no token is lost, none is wrong."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from bench.testbed.bed import Testbed
from bench.testbed.inside import get, inside
from bench.testbed.iproute import run
from bench.testbed.possible import obstacle
from bench.testbed.scenario import load
from checkpoints import DEMO
from faults.judging import GOES_ON
from faults.notes import note
from installation import wait_until
from oracle import oracle_answer
from streamed import Answer, stream_answer

pytestmark = [pytest.mark.system, pytest.mark.slow]

QUESTIONS: Final = ("Tell me a story about a fox.", "What is 2 + 3?", "Who found the key?", "Where is the hen?")
CLIENTS: Final = 8
TOKENS: Final = 240
SOME: Final = 30
"""Pieces of each answer that come in each state of the site."""

SILENT_S: Final = 15.0
"""After so long a connection on which nothing comes is given up."""

MOST_S: Final = SILENT_S + 10.0
"""The longest pause where a node is lost; the rest is for the rows that are sent anew, on any machine."""

SITE: Final = """
[hosts.home]
[hosts.cloud]
count = 3
[links.wan]
between = ["home", "cloud"]
[processes.gateway]
on = "home"
command = "gateway --log-level warning"
ready = "http://127.0.0.1:8000/health"
[processes.cloud]
on = "cloud"
command = "cloud_server --model models/demo --split 2 --host {bind} --threads 1"
environment = { TRILBY_CLOUD_TOKEN = "a-cloud-token", TRILBY_DRAIN_TO = "{elsewhere}" }
ready = "http://127.0.0.1:8001/health"
[processes.device]
on = "home"
command = \"\"\"
device_agent --model models/demo --split 2 --threads 1 --draft none --max-num-seqs 8
--cloud ws://{endpoint:cloud-1:8001} --cloud ws://{endpoint:cloud-2:8001} --cloud ws://{endpoint:cloud-3:8001}
\"\"\"
environment = { TRILBY_CLOUD_TOKEN = "a-cloud-token" }
ready = "http://127.0.0.1:8000/state"
ready_text = '"cloud_connected":true'
"""


def running(bed: Testbed) -> list[int]:
    """How many sessions each cloud has; 0 where none answers."""
    counts = []
    for number in (1, 2, 3):
        try:
            _, text = get(bed.namespace(f"cloud-{number}"), "http://127.0.0.1:8001/metrics")
            named = dict(line.split() for line in text.splitlines() if line.startswith("trilby_cloud_num_requests_run"))
            counts.append(int(float(named["trilby_cloud_num_requests_running"])))
        except OSError:
            counts.append(0)
    return counts


def unplug(bed: Testbed, host: str) -> None:
    """Take a host's cables out: nobody is told, neither by an end of a connection nor by a reset."""
    namespace = bed.namespace(host)
    for device in json.loads(run(["ip", "-n", namespace, "-j", "link"])):
        if device["ifname"] != "lo":
            run(["ip", "-n", namespace, "link", "set", device["ifname"], "down"])


def test_a_cloud_is_scaled_down_and_another_is_lost(tmp_path: Path) -> None:
    """Eight answers run on three clouds' first one. It gets SIGTERM, says that they had better go to the third one, and
    ends well; they do. Then that one's network is gone, without a word: they go on at the second. Each text is
    transformers', and while a cloud drained nobody waited as long as for one that is lost."""
    if obstacle():
        pytest.skip(f"no testbed here: {obstacle()}")
    expected = [oracle_answer(DEMO, each, TOKENS, whole=True)[0] for each in QUESTIONS]
    counts, lock = [0] * CLIENTS, threading.Lock()

    def seen(who: int, count: int) -> None:
        with lock:
            counts[who] = count

    def ask(bed: Testbed, who: int) -> Answer:
        turn = {"role": "user", "content": QUESTIONS[who % len(QUESTIONS)]}
        body = {"messages": [turn], "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
        return inside(
            bed.namespace("home"), partial(stream_answer, "http://127.0.0.1:8000/v1", body, partial(seen, who))
        )

    def more(than: list[int]) -> bool:
        return all(now >= before + SOME for now, before in zip(counts, than, strict=True))

    scenario = tmp_path / "site.toml"
    scenario.write_text(SITE)
    with Testbed(load(scenario), tmp_path / "logs") as bed, ThreadPoolExecutor(CLIENTS) as pool:
        bed.start("gateway", "cloud", variables={"elsewhere": f"ws://{bed.address('home', 'cloud-3')}:8001"})
        bed.start("device")
        device_log = tmp_path / "logs" / "device.log"
        wait_until(lambda: device_log.read_text().count("cloud connected") == 3)
        answers = [pool.submit(ask, bed, who) for who in range(CLIENTS)]
        wait_until(partial(more, [0] * CLIENTS))
        assert running(bed) == [CLIENTS, 0, 0]
        drained = time.monotonic()
        first = bed.part("cloud-1").popen
        first.terminate()
        wait_until(lambda: first.poll() is not None)
        assert first.returncode == 0 and running(bed) == [0, 0, CLIENTS]
        wait_until(partial(more, list(counts)))
        lost = time.monotonic()
        unplug(bed, "cloud-3")
        found = [each.result() for each in answers]
    for who, answer in enumerate(found):
        assert (answer.text, answer.done, answer.error) == (expected[who % len(QUESTIONS)], True, {})
    pauses = [[_pause(each, *span) for each in found] for span in ((0.0, drained), (drained, lost), (lost, lost + 1e9))]
    for what, each in zip(("before", "drained", "lost"), pauses, strict=True):
        print(f"{what}: the longest wait of each answer {min(each):.2f} to {max(each):.2f} s")
    note(
        "plain",
        "SIGTERM to a cloud, its successor's network gone",
        GOES_ON,
        compared=CLIENTS * TOKENS,
        recovered_s=max(pauses[2]),
    )
    assert max(pauses[1]) < SILENT_S / 2 and SILENT_S / 2 < max(pauses[2]) < MOST_S


def _pause(answer: Answer, begin: float, end: float) -> float:
    """The longest wait for text that ended between two moments."""
    pairs = zip(answer.times, answer.times[1:], strict=False)
    return max((later - earlier for earlier, later in pairs if begin <= later < end), default=0.0)
