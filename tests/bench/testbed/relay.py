"""A long way between two programs of one machine: TCP, with every byte so much later, and only so many bytes a second.

    with Relay("", "127.0.0.1", port, delay_s=0.01) as relay:
        ...  # dial 127.0.0.1:relay.port instead

What forwards is a process of its own, ``forwarding.py``.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from bench.testbed.said import lines

FORWARDING = Path(__file__).with_name("forwarding.py").resolve()

WITHIN_S = 30.0


class Relay:
    """The process; a context manager. It listens at 127.0.0.1 of its namespace, and ends with the process that made it.

    Args:
        namespace: the network namespace it runs in; '' is this one.
        host, port: where connections go to, as seen from there.
        delay_s: one way; a round trip takes twice that.
        jitter_s: at most so much more, drawn for each piece; their order is kept.
        seed: of the jitter.
        bytes_s: of each way of each connection; 0 is unlimited.

    Attributes:
        port: what to dial instead.
        late_s: once it has ended, by how much deliveries came too late: median and 99th percentile.

    Raises:
        ValueError: a delay or a jitter that is negative or no number.
    """

    def __init__(
        self,
        namespace: str,
        host: str,
        port: int,
        delay_s: float,
        jitter_s: float = 0.0,
        seed: int = 0,
        bytes_s: float = 0.0,
    ) -> None:
        self.port = 0
        self.late_s = (0.0, 0.0)
        inside = ["nsenter", f"--net=/run/netns/{namespace}"] if namespace else []
        values = (host, port, *_checked(delay_s, jitter_s), seed, bytes_s)
        self._command = [*inside, sys.executable, "-I", str(FORWARDING), *map(str, values)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether its process does."""
        return self._process is not None and self._process.poll() is None

    def start(self, within_s: float = WITHIN_S) -> None:
        """Start it and wait for its port. Raises RuntimeError where it runs, or does not start within ``within_s``."""
        if self._process is not None:
            raise RuntimeError("the relay runs")
        # A session of its own: Ctrl-C is for the bench, which ends everything in order.
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        try:
            self.port = int(next(lines(self._process, within_s, "a relay to start"), "0"))
        finally:
            if not self.port:
                process, self._process = self._process, None
                process.kill()
                process.communicate()
        if not self.port:
            raise RuntimeError("the relay did not start")

    def set(self, delay_s: float, jitter_s: float) -> None:
        """Another delay, for all bytes that come from now on; no byte overtakes an earlier one.

        Raises:
            ValueError: a delay or a jitter that is negative or no number.
            RuntimeError: it does not run.
        """
        line = "{!r} {!r}\n".format(*_checked(delay_s, jitter_s))
        if not self.runs:
            raise RuntimeError("the relay does not run")
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError("the relay does not run") from None

    def stop(self) -> None:
        """End it, and know ``late_s``; what is on the way is lost. Twice does no harm.

        Raises:
            RuntimeError: it had ended by itself, or does not end.
        """
        if self._process is None:
            return
        process, self._process = self._process, None
        try:
            output, _ = process.communicate(timeout=WITHIN_S)  # The end of its input is its end.
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise RuntimeError(f"waited {WITHIN_S:g} s in vain for a relay to end") from None
        if process.returncode:
            raise RuntimeError(f"the relay had ended with status {process.returncode}")
        median, most = map(float, output.split())
        self.late_s = median, most

    def __enter__(self) -> Relay:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _checked(delay_s: float, jitter_s: float) -> tuple[float, float]:
    if not all(math.isfinite(each) and each >= 0 for each in (delay_s, jitter_s)):
        raise ValueError(f"a delay of {delay_s} s with a jitter of {jitter_s} s")
    return float(delay_s), float(jitter_s)
