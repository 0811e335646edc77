"""A redis-server of Debian's package for tests: on a socket in a folder of its own, nothing kept on the disk."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import redis

START_WITHIN_S = 30.0
NEEDS = "redis-server is not installed (apt-get install redis-server)"


class RedisServer:
    """A server that can be killed and started again, empty; a context manager that ends it.

    Args:
        options: further ones of its command line.
    """

    def __init__(self, *options: str) -> None:
        if shutil.which("redis-server") is None:
            pytest.skip(NEEDS)
        self._options = options
        self._folder = tempfile.TemporaryDirectory(prefix="redis")  # A socket's path must be short.
        self.path = Path(self._folder.name) / "socket"
        self.url = f"unix://{self.path}"
        self.client: Any = redis.Redis.from_url(self.url, protocol=2)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> RedisServer:
        """Start it, and wait until it answers."""
        options = ["--port", "0", "--unixsocket", str(self.path), "--save", "", "--appendonly", "no", *self._options]
        self._process = subprocess.Popen(
            ["redis-server", *options], cwd=self._folder.name, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_WITHIN_S
        while True:
            try:
                self.client.ping()
                return self
            except redis.RedisError:
                assert time.monotonic() < deadline and self._process.poll() is None, "redis-server did not start"
                time.sleep(0.01)

    def kill(self) -> None:
        """End it at once; what it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.kill()
        self.client.close()
        self._folder.cleanup()
