"""A group on two hosts of a network: its portal and gateway on one, a member on the other, which dies or is cut off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.testbed.bed import Testbed
from bench.testbed.inside import inside
from bench.testbed.processes import environment
from bench.testbed.scenario import load
from checkpoints import DEMO
from installation import wait_until
from oracle import oracle_answer
from streamed import stream_answer

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.usefixtures("possible")]

SCENARIO = """
[hosts.study]
[hosts.kitchen]
[lans.home]
among = ["study", "kitchen"]
out_mb_s = 20.0
in_mb_s = 20.0
"""
QUESTION = "Tell me a story about a fox."
TOKENS = 60
AT = 10
"""After so many pieces of text it happens."""
GOES_ON_WITHIN_S = 15.0
API = "http://127.0.0.1:8000"
PORT = 8003
MODEL = ("--model", str(DEMO), "--threads", "1")
SECRETS = {"TRILBY_GROUP_KEY": "a key of this test alone", "TRILBY_DEVICE_TOKEN": "a token of devices"}


class House:
    """The processes on both hosts; clients ask from the first."""

    def __init__(self, bed: Testbed, log: Path) -> None:
        self.bed = bed
        self._log = log
        self._where = f"{bed.port('study').address}:{PORT}"
        self._begin("study", "gateway", "--port", "8000")
        group = ("--mode", "galaxy", "--devices", "2", "--shares", "even", "--name", "study")
        self._begin(
            "study", "device_agent", *MODEL, *group, "--group-listen", self._where, "--gateway", "ws://127.0.0.1:8000"
        )
        self.member = self.join()

    def join(self) -> subprocess.Popen[Any]:
        """Another host takes part."""
        return self._begin("kitchen", "device_agent.group.member", *MODEL, "--join", self._where, "--name", "kitchen")

    def from_study(self, call: Callable[[], Any]) -> Any:
        """What a call returns there."""
        return inside(self.bed.namespace("study"), call)

    def working(self) -> int:
        """How many devices compute."""
        try:
            state = self.from_study(lambda: httpx.get(f"{API}/state", timeout=10, trust_env=False).json())
        except httpx.HTTPError:
            return 0
        members = [member for agent in state["agents"] if "group" in agent for member in agent["group"]["members"]]
        return sum(each["state"] == "working" for each in members)

    def _begin(self, host: str, module: str, *arguments: str) -> subprocess.Popen[Any]:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", module, *arguments]
            return self.bed.spawn(host, command, env=environment(SECRETS), stdout=log, stderr=log)


@pytest.mark.parametrize("what", ["killed", "cut off"])
def test_a_member_on_another_host_is_lost(what: str, tmp_path: Path) -> None:
    """In the middle of a stream: the text is transformers', and goes on soon. Once the member is back both compute
    again, and the next answer is right too."""
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    text, _ = oracle_answer(DEMO, QUESTION, TOKENS, whole=True)
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": TOKENS, "temperature": 0}
    body |= {"ignore_eos": True, "draft": "none"}
    with Testbed(load(tmp_path / "scenario.toml"), tmp_path / "logs") as bed:
        house = House(bed, tmp_path / "logs" / "house.log")
        wait_until(lambda: house.working() == 2)

        def seen(count: int) -> None:
            if count == AT:
                house.member.kill() if what == "killed" else bed.port("kitchen").plug(False)

        answer = house.from_study(lambda: stream_answer(f"{API}/v1", body, seen))
        assert (answer.text, answer.done, answer.error) == (text, True, {})
        assert max(later - before for before, later in pairwise(answer.times)) < GOES_ON_WITHIN_S
        assert house.working() == 1
        if what == "killed":
            house.join()
        else:
            bed.port("kitchen").plug(True)
        wait_until(lambda: house.working() == 2)
        again = house.from_study(lambda: stream_answer(f"{API}/v1", body))
        assert (again.text, again.done) == (text, True)
