"""A method served on a testbed: its processes started, loads run against it, and what the cloud counted meanwhile."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.hat.latency import Record, read_records
from bench.hat.prompts import Prompt
from bench.hat.setups import Setup
from bench.testbed.bed import Testbed
from bench.testbed.inside import get
from bench.testbed.scenario import load

GATEWAY_PORT: Final = 8000
CLOUD_PORT: Final = 8001
WARM_TOKENS: Final = 16
WARM_LENGTHS: Final = (1800, 900, 350, 64)
LINK_LENGTH: Final = 350
LINK_ROUNDS, LINK_TOKENS = 2, 64
SCRAPE_WITHIN_S: Final = 20.0
DEADLINE_S: Final = 240.0
"""Of one load; what is not answered then has failed."""

LEAST_DELAY_MS: Final = 0.001
"""So that a link has a relay, whose delay is set later."""


@dataclass(frozen=True)
class Processes:
    """What is started; cells with the same are measured on the same.

    Attributes:
        device, cloud: flags that the method is.
        stages: processes of the cloud's pipeline.
        relayed: whether the links get a delay.
        sends_text: whether the whole model is in the cloud.
    """

    device: tuple[str, ...]
    cloud: tuple[str, ...]
    stages: int = 1
    relayed: bool = False
    sends_text: bool = False


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


class Serving:
    """A context manager: the processes of a method, ready and warm.

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
        with ExitStack() as stack:
            stack.enter_context(self.bed)
            self.bed.start("gateway", "cloud")
            self.bed.host("cloud").set_cores(self.setup.cloud_cores * self.processes.stages)
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
        """What the cloud has counted so far."""
        namespace = self.bed.namespace("cloud")
        status, text = get(namespace, f"http://127.0.0.1:{CLOUD_PORT}/metrics", SCRAPE_WITHIN_S)
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
            RuntimeError: a process of the method or the client has ended.
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
        client = self.bed.spawn("home", argv, stdout=subprocess.PIPE, text=True)
        assert client.stdout is not None
        count = 0
        with client.stdout as said:
            for line in said:
                if line.startswith("began "):
                    began()
                elif line.startswith("sent "):
                    count += 1
                    sent(count)
        if client.wait(DEADLINE_S):
            raise RuntimeError(f"the load generator ended with status {client.returncode}")
        ended = [part.name for part in self.bed.scenario.processes if not self.bed.part(part.name).runs]
        if ended:
            raise RuntimeError(f"ended meanwhile: {', '.join(ended)}; see the logs in {self.folder}")
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

    def _answer(self, together: int, length: int, seed: int, tokens: int = WARM_TOKENS) -> None:
        prompts = self.setup.texts([length] * together, seed + 1)
        self.load(prompts, [0.0] * together, tokens, closed=together)

    @property
    def _gateway_host(self) -> str:
        return next(part.on for part in self.bed.scenario.processes if part.kind == "gateway")

    def _far(self, device: str) -> str:
        return next(link.b for link in self.bed.scenario.links if link.a == device and link.kind == "wan")
