"""Links for tests of the testbed, and connections between real programs over them, which say how long messages take."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.testbed.network import Network
from bench.testbed.scenario import Link

WITHIN_S = 60.0

TAKE = """
import socket, sys, time
with socket.create_server(("0.0.0.0", int(sys.argv[1]))) as listener:
    print("listening", flush=True)
    with listener.accept()[0] as came:
        came.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reading = came.makefile("rb", buffering=0)
        while head := reading.read(8):
            left = int(head) - 8
            while left:
                left -= len(came.recv(min(left, 65536)))
            came.sendall(time.perf_counter().hex().ljust(32).encode())
"""
"""Reads messages that begin with their size in 8 digits, and says of each when it was there."""

GIVE = """
import json, socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as way:
    way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for line in sys.stdin:
        size = int(line)
        began = time.perf_counter()
        way.sendall(b"%08d" % size + bytes(size - 8))
        said = b""
        while len(said) < 32:
            said += way.recv(32 - len(said))
        print(float.fromhex(said.decode().strip()) - began, flush=True)
"""
"""Sends messages of the sizes it reads, and says how long each took until its last byte was there."""


def link(a: str, b: str, up_mb_s: float, down_mb_s: float) -> Link:
    """A link without delay."""
    return Link("way", a, b, up_mb_s, down_mb_s, 0.0, 0.0, False, "", (1.0, 1.0), 0.0, None, 0.0)


@dataclass
class Flow:
    """One connection over a link; messages go from the side that dialled."""

    giver: subprocess.Popen[str]

    def give(self, size: int) -> None:
        """Send so many bytes."""
        assert self.giver.stdin is not None
        self.giver.stdin.write(f"{size}\n")
        self.giver.stdin.flush()

    def took(self) -> float:
        """Seconds that the next message took."""
        assert self.giver.stdout is not None
        return float(self.giver.stdout.readline())

    def seconds(self, size: int, times: int = 1) -> float:
        """The shortest of some messages; other programs make some longer, never shorter."""
        found = []
        for _ in range(times):
            time.sleep(0.05)
            self.give(size)
            found.append(self.took())
        return min(found)


@contextmanager
def flow(network: Network, sender: str, receiver: str, port: int = 5000) -> Iterator[Flow]:
    """A connection between real programs on two hosts."""

    def enter(host: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{network.namespace(host)}", sys.executable, "-c"]

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*enter(receiver), TAKE, str(port)], **pipes) as taker:  # type: ignore[call-overload]
        assert taker.stdout.readline()
        address = network.address(sender, receiver)
        with subprocess.Popen([*enter(sender), GIVE, address, str(port)], **pipes) as giver:  # type: ignore[call-overload]
            yield Flow(giver)
            giver.communicate(timeout=WITHIN_S)
        taker.wait(WITHIN_S)
