"""A whole installation of real processes: gateway, cloud, device, each with its real command line."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from checkpoints import DEMO
from processes import Process, free_port

READY_WITHIN_S = 60.0


@dataclass
class Installation:
    """The three processes, their ports and logs; a context manager.

    ``cloud_url`` may point the device at something that stands between it and the cloud.
    """

    folder: Path
    model: Path = DEMO
    split: int = 2
    tail: int = 0
    cloud_url: str = ""
    with_device: bool = True
    gateway_settings: tuple[str, ...] = ()
    device_settings: tuple[str, ...] = ()
    cloud_settings: tuple[str, ...] = ()
    device_environment: dict[str, str] = field(default_factory=dict)
    cloud_environment: dict[str, str] = field(default_factory=dict)
    gateway_port: int = field(default_factory=free_port)
    cloud_port: int = field(default_factory=free_port)
    gateway: Process = field(init=False)
    cloud: Process = field(init=False)
    device: Process = field(init=False)

    @property
    def base(self) -> str:
        """The API's base URL."""
        return f"http://127.0.0.1:{self.gateway_port}/v1"

    def get(self, path: str, port: int | None = None) -> httpx.Response:
        """One GET, at the gateway or at another port."""
        return httpx.get(f"http://127.0.0.1:{port or self.gateway_port}{path}", timeout=10, trust_env=False)

    def cloud_state(self) -> dict[str, Any]:
        """The cloud's /state."""
        return dict(self.get("/state", self.cloud_port).json())

    def start_gateway(self) -> Process:
        """Start the gateway, without waiting."""
        self.gateway = Process(
            "gateway", "--port", str(self.gateway_port), *self.gateway_settings,
            log=self.folder / "gateway.log", port=self.gateway_port,
        ).start()  # fmt: skip
        return self.gateway

    def start_cloud(self) -> Process:
        """Start the cloud, without waiting."""
        cut = ["--model", str(self.model), "--split", str(self.split), "--tail", str(self.tail)]
        self.cloud = Process(
            "cloud_server",
            *cut,
            *self.cloud_settings,
            "--port",
            str(self.cloud_port),
            log=self.folder / "cloud.log",
            environment=self.cloud_environment,
            port=self.cloud_port,
        ).start()
        return self.cloud

    def start_device(self) -> Process:
        """Start the device, without waiting."""
        cut = ["--model", str(self.model), "--split", str(self.split), "--tail", str(self.tail)]
        cloud = self.cloud_url or f"ws://127.0.0.1:{self.cloud_port}"
        links = ["--gateway", f"ws://127.0.0.1:{self.gateway_port}", "--cloud", cloud]
        self.device = Process(
            "device_agent",
            *cut,
            *links,
            *self.device_settings,
            log=self.folder / "device.log",
            environment=self.device_environment,
        ).start()
        return self.device

    def ready(self) -> bool:
        """Whether a device serves and reaches its cloud."""
        try:
            return self.get("/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def __enter__(self) -> Installation:
        self._stack = ExitStack()
        self._stack.callback(lambda: self.gateway.end())
        self._stack.callback(lambda: self.cloud.end())
        self.start_gateway(), self.start_cloud()
        if self.with_device:
            self._stack.callback(lambda: self.device.end())
            self.start_device()
        self.gateway.wait_ready(), self.cloud.wait_ready()
        if self.with_device:
            wait_until(self.ready)
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
