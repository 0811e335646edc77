"""A method served on a testbed: its processes started, loads run against it, and what the cloud counted meanwhile."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final

from bench.hat.latency import Record, read_records
from bench.hat.prompts import Prompt
from bench.hat.setups import Setup
from bench.testbed.bed import Testbed
from bench.testbed.inside import get
from bench.testbed.machine import too_large
from bench.testbed.said import end_of, lines
from bench.testbed.scenario import Scenario, load

GATEWAY_PORT: Final = 8000
CLOUD_PORT: Final = 8001
WARM_TOKENS: Final = 16
WARM_LENGTHS: Final = (1800, 900, 350, 64)
LINK_LENGTH: Final = 350
LINK_ROUNDS, LINK_TOKENS = 2, 64
SCRAPE_WITHIN_S: Final = 20.0
DEADLINE_S: Final = 240.0
"""Of one load; what is not answered then has failed."""

CLIENT_WITHIN_S: Final = 60.0
"""Longer than that the client may take for its own start and end."""

LEAST_DELAY_MS: Final = 0.001
"""So that a link has a relay, whose delay is set later."""


@dataclass(frozen=True)
class Processes:
    """What is started; cells with the same are measured on the same.

    Attributes:
        device, cloud: flags that the method is.
        stages: processes of the cloud's pipeline, each on a machine of its own.
        cores: quota of the cloud, of each stage; 0 is the setup's.
        relayed: whether the links get a delay.
        sends_text: whether the whole model is in the cloud.
    """

    device: tuple[str, ...]
    cloud: tuple[str, ...]
    stages: int = 1
    relayed: bool = False
    sends_text: bool = False
    cores: float = 0.0


@dataclass(frozen=True)
class Counted:
    """What the cloud counted; times in seconds.

    Attributes:
        squares: of the steps' times.
        up_bytes, down_bytes: of frames.
    """

    steps: float
    seconds: float
    squares: float
    rows: float
    up_bytes: float
    down_bytes: float

    @classmethod
    def read(cls, metrics: str) -> Counted:
        """From what ``/metrics`` says."""
        names = ["step_seconds_count", "step_seconds_sum", "step_seconds_squares_total", "iteration_tokens_total_sum"]
        names += ["received_bytes_total", "sent_bytes_total"]
        found = (re.search(rf"^trilby_cloud_{name} (\S+)$", metrics, re.MULTILINE) for name in names)
        return cls(*(float(each[1]) if each else 0.0 for each in found))

    def since(self, before: Counted) -> Counted:
        """What came since ``before``."""
        return Counted(*(getattr(self, name) - getattr(before, name) for name in self.__dataclass_fields__))

    @property
    def step_mean_s(self) -> float:
        """Mean time of a step."""
        return self.seconds / self.steps if self.steps else 0.0

    @property
    def step_std_s(self) -> float:
        """Its standard deviation."""
        return max(0.0, self.squares / self.steps - self.step_mean_s**2) ** 0.5 if self.steps else 0.0

    def as_dict(self) -> dict[str, float]:
        """For the record."""
        rows = self.rows / self.steps if self.steps else 0.0
        known = {"steps": self.steps, "step_mean_s": self.step_mean_s, "step_std_s": self.step_std_s, "rows_mean": rows}
        return {**known, "up_bytes": self.up_bytes, "down_bytes": self.down_bytes}


def quotas_of(scenario: Scenario, cloud_cores: float) -> float:
    """The sum of all hosts' quotas, each at its largest, where the cloud has so many."""
    return scenario.cores_total - scenario.host("cloud").most_cores + cloud_cores


class Serving:
    """A context manager: the processes of a method, ready and warm. A stage that ends is started again by the cloud on
    the cloud's own machine, which is another measurement: ``load`` raises then.

    Attributes:
        bed: the testbed they are on.
    """

    def __init__(self, setup: Setup, processes: Processes, folder: Path) -> None:
        self.setup = setup
        self.processes = processes
        self.folder = folder
        variables = {
            "model": str(setup.model),
            "split": str(0 if processes.sends_text else setup.split),
            "device_module": setup.module,
            "device_flags": " ".join(processes.device),
            "cloud_flags": " ".join((*processes.cloud, "--stages", str(processes.stages))),
            "delay_ms": str(LEAST_DELAY_MS if processes.relayed else 0.0),
        }
        self.bed = Testbed(load(setup.scenario(processes.sends_text), variables), folder)

    def __enter__(self) -> Serving:
        """Raises RuntimeError where quotas do not fit this machine, or something does not become ready."""
        stages, cores = self.processes.stages, self.processes.cores or self.setup.cloud_cores
        if large := too_large(quotas_of(self.bed.scenario, cores * stages), os.cpu_count() or 1):
            raise RuntimeError(large)
        with ExitStack() as stack:
            stack.enter_context(self.bed)
            self.bed.start("gateway", "cloud")
            if stages == 1:
                self.bed.host("cloud").set_cores(cores)
            else:
                self.bed.set_apart("cloud", cores, stages)
            self._cloud = set(self.bed.part("cloud").pids())
            self.bed.start("agent")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def devices(self) -> list[str]:
        """The hosts that have a slow link."""
        return [link.a for link in self.bed.scenario.links if link.kind == "wan"]

    def counted(self) -> Counted:
        """What the cloud has counted so far. Raises RuntimeError where it does not say."""
        namespace = self.bed.namespace("cloud")
        try:
            status, text = get(namespace, f"http://127.0.0.1:{CLOUD_PORT}/metrics", SCRAPE_WITHIN_S)
        except (OSError, HTTPException) as error:
            raise RuntimeError(f"waited in vain for the cloud's metrics: {error!r}") from error
        if status != 200:
            raise RuntimeError(f"the cloud's metrics answer {status}")
        return Counted.read(text)

    def set_links(self, up_bytes_s: float, down_bytes_s: float, rtt_ms: float) -> None:
        """The same bandwidths and delay for every device's link; 0 is unlimited."""
        for device in self.devices:
            link = self.bed.link(device, self._far(device))
            link.set(up_mb_s=up_bytes_s / 1e6, down_mb_s=down_bytes_s / 1e6)
            if self.processes.relayed:
                link.set(delay_ms=rtt_ms / 2, jitter_ms=0.0)

    def reset_modes(self) -> None:
        """Every device in the mode it began with."""
        for host in self.bed.scenario.hosts:
            if host.modes:
                self.bed.host(host.name).set_cores(host.cores)

    def load(
        self,
        prompts: Sequence[Prompt],
        due: Sequence[float],
        tokens: int,
        closed: int = 0,
        sent: Callable[[int], None] = lambda count: None,
        began: Callable[[], None] = lambda: None,
    ) -> list[Record]:
        """Send all prompts when they are due, or ``closed`` at a time.

        Args:
            sent: told how many were.
            began: called when the client's clock begins.

        Raises:
            RuntimeError: a process of the method, a relay or the client has ended, or the client takes too long.
        """
        plan = self.folder / "plan.json"
        records = self.folder / "records.jsonl"
        requests = [
            {
                "id": number,
                "due_s": moment,
                "messages": prompt.messages,
                "max_tokens": tokens,
                "prompt_tokens": prompt.tokens,
            }
            for number, (prompt, moment) in enumerate(zip(prompts, due, strict=True))
        ]
        base = f"http://{self.bed.address('home', self._gateway_host)}:{GATEWAY_PORT}/v1"
        plan.write_text(json.dumps({"base": base, "requests": requests, "deadline_s": DEADLINE_S, "closed": closed}))
        argv = [sys.executable, "-m", "bench.hat.load", str(plan), str(records)]
        client = self.bed.spawn("home", argv, stdout=subprocess.PIPE)
        assert client.stdout is not None
        count, awaited = 0, f"{len(requests)} answers of the load generator"
        with client.stdout:
            for line in lines(client, DEADLINE_S + CLIENT_WITHIN_S, awaited):
                if line.startswith("began "):
                    began()
                elif line.startswith("sent "):
                    count += 1
                    sent(count)
        if status := end_of(client, CLIENT_WITHIN_S, "the load generator to end"):
            raise RuntimeError(f"the load generator ended with status {status}")
        self._check_all_run()
        return read_records(records.read_text(encoding="utf-8").splitlines())

    def warm(self, up_bytes_s: float = 0.0, down_bytes_s: float = 0.0) -> None:
        """A few answers of every device, which nobody counts, the same for every method: memory is touched, and kernels
        are compiled, for prompts of every length; then links are learned at these bandwidths (0: unlimited)."""
        together = len([part for part in self.bed.scenario.processes if part.kind == "agent"])
        self.set_links(0.0, 0.0, 0.0)
        for number, length in enumerate(WARM_LENGTHS):
            self._answer(together, length, number)
        if up_bytes_s:
            self.set_links(up_bytes_s, down_bytes_s, 0.0)
            for number in range(LINK_ROUNDS):
                self._answer(together, LINK_LENGTH, len(WARM_LENGTHS) + number, LINK_TOKENS)

    def wan_bytes(self) -> tuple[int, int]:
        """Bytes that went up and down all slow links since the bed was made."""
        each = [self.bed.bytes(device, self._far(device)) for device in self.devices]
        return sum(up for up, _ in each), sum(down for _, down in each)

    def _check_all_run(self) -> None:
        """Raises RuntimeError with what does not."""
        ended = [part.name for part in self.bed.scenario.processes if not self.bed.part(part.name).runs]
        links = {device: self.bed.link(device, self._far(device)) for device in self.devices}
        ended += [f"a relay of {device}" for device, link in links.items() if not link.runs]
        if not ended and self.processes.stages > 1 and set(self.bed.part("cloud").pids()) != self._cloud:
            ended.append("a stage of the cloud")
        if ended:
            raise RuntimeError(f"ended meanwhile: {', '.join(ended)}; see the logs in {self.folder}")

    def _answer(self, together: int, length: int, seed: int, tokens: int = WARM_TOKENS) -> None:
        prompts = self.setup.texts([length] * together, seed + 1)
        self.load(prompts, [0.0] * together, tokens, closed=together)

    @property
    def _gateway_host(self) -> str:
        return next(part.on for part in self.bed.scenario.processes if part.kind == "gateway")

    def _far(self, device: str) -> str:
        return next(link.b for link in self.bed.scenario.links if link.a == device and link.kind == "wan")
