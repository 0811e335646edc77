"""A whole installation of real processes: gateway, clouds, device, each with its real command line."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from checkpoints import DEMO
from forked import ForkedProcess
from processes import Process, free_port

Running = TypeVar("Running", bound="Installation")

READY_WITHIN_S = 120.0

OPERATOR: Final = "an-operators-token"
"""What the clouds ask of operators."""


@dataclass
class Installation:
    """The processes, their ports and logs; a context manager.

    ``with_standby`` starts a second cloud that the device knows too. ``cloud_url`` and ``gateway_url`` may point the
    device at something that stands between it and the first, or the gateway. ``forked`` starts all of them faster, for
    tests that start many.
    """

    folder: Path
    model: Path = DEMO
    split: int = 2
    tail: int = 0
    cloud_url: str = ""
    gateway_url: str = ""
    with_device: bool = True
    with_standby: bool = False
    forked: bool = False
    gateway_settings: tuple[str, ...] = ()
    device_settings: tuple[str, ...] = ()
    cloud_settings: tuple[str, ...] = ()
    gateway_environment: dict[str, str] = field(default_factory=dict)
    device_environment: dict[str, str] = field(default_factory=dict)
    cloud_environment: dict[str, str] = field(default_factory=dict)
    gateway_port: int = field(default_factory=free_port)
    cloud_port: int = field(default_factory=free_port)
    standby_port: int = field(default_factory=free_port)
    gateway: Process = field(init=False)
    cloud: Process = field(init=False)
    standby: Process = field(init=False)
    device: Process = field(init=False)

    @property
    def base(self) -> str:
        """The API's base URL."""
        return f"http://127.0.0.1:{self.gateway_port}/v1"

    @property
    def cloud_ports(self) -> list[int]:
        """The ports of all clouds."""
        return [self.cloud_port, self.standby_port] if self.with_standby else [self.cloud_port]

    def get(self, path: str, port: int | None = None) -> httpx.Response:
        """One GET, at the gateway or at another port."""
        url = f"http://127.0.0.1:{port or self.gateway_port}{path}"
        return httpx.get(url, timeout=10, trust_env=False, verify=False)  # Loading certificates takes 20 ms.

    def operate(self, method: str, path: str, port: int) -> Any:
        """What an operator is told by a cloud."""
        url, headers = f"http://127.0.0.1:{port}{path}", {"Authorization": f"Bearer {OPERATOR}"}
        return httpx.request(method, url, headers=headers, timeout=60, trust_env=False, verify=False).json()

    def cloud_state(self, port: int | None = None) -> dict[str, Any]:
        """A cloud's /state."""
        return dict(self.operate("GET", "/state", port or self.cloud_port))

    def cloud_metric(self, name: str, port: int | None = None) -> float:
        """One value of a cloud's /metrics."""
        lines = self.get("/metrics", port or self.cloud_port).text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"trilby_cloud_{name} "))

    def open_sessions(self, port: int) -> list[dict[str, Any]]:
        """The sessions that a cloud runs now; none where no cloud answers."""
        try:
            sessions = self.cloud_state(port)["sessions"]
        except httpx.HTTPError:
            return []
        return [each for each in sessions if each["state"] == "open"]

    def serving(self) -> list[int]:
        """The ports of the clouds that run sessions now."""
        return [port for port in self.cloud_ports if self.open_sessions(port)]

    def cloud_at(self, port: int) -> Process:
        """The cloud that listens on ``port``."""
        return self.cloud if port == self.cloud_port else self.standby

    def start_gateway(self) -> Process:
        """Start the gateway, without waiting."""
        arguments = ["--port", str(self.gateway_port), *self.gateway_settings]
        environment = self.gateway_environment
        self.gateway = self._start("gateway", "gateway.log", arguments, self.gateway_port, environment)
        return self.gateway

    def start_cloud(self) -> Process:
        """Start the cloud, without waiting."""
        self.cloud = self._cloud("cloud", self.cloud_port)
        return self.cloud

    def start_standby(self) -> Process:
        """Start the second cloud, without waiting."""
        self.standby = self._cloud("standby", self.standby_port)
        return self.standby

    def start_cloud_at(self, port: int) -> Process:
        """Start a cloud where one has ended, without waiting."""
        return self.start_cloud() if port == self.cloud_port else self.start_standby()

    def start_device(self) -> Process:
        """Start the device, without waiting."""
        first, *others = (f"ws://127.0.0.1:{port}" for port in self.cloud_ports)
        links = ["--gateway", self.gateway_url or f"ws://127.0.0.1:{self.gateway_port}"]
        for url in (self.cloud_url or first, *others):
            links += ["--cloud", url]
        arguments = [*self._cut, *links, *self.device_settings]
        self.device = self._start("device_agent", "device.log", arguments, 0, self.device_environment)
        return self.device

    def ready(self) -> bool:
        """Whether a device serves and reaches a cloud."""
        try:
            return self.get("/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def all_connected(self) -> bool:
        """Whether the device is connected to every cloud."""
        try:
            return self.ready() and all(self.cloud_state(port)["devices"] for port in self.cloud_ports)
        except httpx.HTTPError:
            return False

    @property
    def _cut(self) -> list[str]:
        return ["--model", str(self.model), "--split", str(self.split), "--tail", str(self.tail)]

    def _cloud(self, name: str, port: int) -> Process:
        arguments = [*self._cut, *self.cloud_settings, "--port", str(port)]
        environment = {"TRILBY_OPERATOR_TOKEN": OPERATOR, **self.cloud_environment}
        return self._start("cloud_server", f"{name}.log", arguments, port, environment)

    def _start(self, module: str, log: str, arguments: list[str], port: int, environment: dict[str, str]) -> Process:
        # What is loaded before a program cannot be loaded into a fork.
        kind = ForkedProcess if self.forked and "LD_PRELOAD" not in environment else Process
        return kind(module, *arguments, log=self.folder / log, port=port, environment=environment).start()

    def __enter__(self: Running) -> Running:
        with ExitStack() as stack:
            self.start_gateway()
            stack.callback(lambda: self.gateway.end())
            self.start_cloud()
            stack.callback(lambda: self.cloud.end())
            if self.with_standby:
                self.start_standby()
                stack.callback(lambda: self.standby.end())
            if self.with_device:
                self.start_device()
                stack.callback(lambda: self.device.end())
            self.gateway.wait_ready(), self.cloud.wait_ready()
            if self.with_standby:
                self.standby.wait_ready()
            if self.with_device:
                wait_until(self.all_connected if self.with_standby else self.ready)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def wait_until(condition: Callable[[], bool], within_s: float = READY_WITHIN_S) -> float:
    """Wait until ``condition()`` holds; returns the seconds it took, fails when it does not in time."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, "waited in vain"
        time.sleep(0.05)
    return time.monotonic() - began
