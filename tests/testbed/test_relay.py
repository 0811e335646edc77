"""A relay adds the delay, jitter and bandwidth it is told, keeps bytes whole and in order, and can be changed."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from threading import Thread

import pytest
from bench.testbed.forwarding import Delay, WayClock
from bench.testbed.relay import FORWARDING, Relay
from processes import ROOT

pytestmark = pytest.mark.system

PATHS = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}


@contextmanager
def echoing() -> Iterator[int]:
    """A port that sends back what it gets."""

    def echo(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            Thread(target=echo, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Thread(target=serve)
        server.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        server.join()


def ping(connection: socket.socket, size: int) -> float:
    """Seconds until as many bytes have come back."""
    began = time.perf_counter()
    connection.sendall(bytes(size))
    left = size
    while left:
        left -= len(connection.recv(left))
    return time.perf_counter() - began


def send_all(connection: socket.socket, data: bytes) -> None:
    """Send, and end what is sent."""
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


@contextmanager
def far_echo(delay_s: float, bytes_s: float) -> Iterator[socket.socket]:
    """A connection to an echo over a relay."""
    with (
        echoing() as port,
        Relay("", "127.0.0.1", port, delay_s, bytes_s=bytes_s) as relay,
        socket.create_connection(("127.0.0.1", relay.port)) as connection,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


@pytest.mark.slow
@pytest.mark.parametrize(("delay_s", "bytes_s"), [(0.02, 0.0), (0.01, 1e6), (0.0, 1e5)])
def test_a_round_trip_takes_what_the_link_says(delay_s: float, bytes_s: float) -> None:
    """Never less than two delays and the bytes of both ways over the bandwidth; the best of many is close to that."""
    size = 1000
    with far_echo(delay_s, bytes_s) as connection:
        best = min(ping(connection, size) for _ in range(20))
    least = 2 * delay_s + (2 * size / bytes_s if bytes_s else 0.0)
    assert least <= best <= least + 1e-3


def test_bytes_come_whole_and_in_order_and_the_end_behind_them() -> None:
    """A long message is the same on the other side, and so is the end of what is sent."""
    sent = os.urandom(300_000)
    received = bytearray()
    with far_echo(0.005, 2e6) as connection:
        began = time.perf_counter()
        sender = Thread(target=send_all, args=(connection, sent))
        sender.start()
        while data := connection.recv(65536):
            received += data
        took = time.perf_counter() - began
        sender.join()
    assert bytes(received) == sent
    assert took >= 0.01 + len(sent) / 2e6


def test_a_relay_to_nowhere_ends_its_connections() -> None:
    """Where nobody listens, who dials learns of it."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with (
        Relay("", "127.0.0.1", port, 0.0) as relay,
        socket.create_connection(("127.0.0.1", relay.port), 10) as connection,
    ):
        assert connection.recv(1) == b""


def test_a_way_is_paid_for_byte_by_byte() -> None:
    """What is handed in while the way is busy leaves behind what was there; an idle way has saved nothing up."""
    clock = WayClock(Delay(0.5), 100.0)
    assert [clock.due(0.0, 100), clock.due(0.25, 100), clock.due(10.0, 50)] == [1.5, 2.5, 11.0]
    assert WayClock(Delay(0.5)).due(3.0, 10**9) == 3.5


def test_jitter_is_drawn_evenly_by_its_seed_and_overtakes_nothing() -> None:
    """Far apart, pieces are later by all of the jitter or none and on average half; close together they keep order."""
    delay = Delay(0.5, 0.2)
    extra = [WayClock(delay, seed=str(seed)).due(1.0, 10) - 1.5 for seed in range(1000)]
    assert 0.0 <= min(extra) < 0.01 and 0.19 < max(extra) <= 0.2 and 0.09 < statistics.fmean(extra) < 0.11
    one, same, other = (WayClock(delay, seed=seed) for seed in ("1", "1", "2"))
    close = [one.due(now / 1000, 10) for now in range(100)]
    assert close == sorted(close) == [same.due(now / 1000, 10) for now in range(100)]
    assert close != [other.due(now / 1000, 10) for now in range(100)]


def test_a_shorter_delay_keeps_the_order() -> None:
    """What comes after the change waits for what came before it, and no longer."""
    delay = Delay(0.5)
    clock = WayClock(delay)
    assert clock.due(1.0, 10) == 1.5
    delay.delay_s = 0.1
    assert [clock.due(1.1, 10), clock.due(1.6, 10)] == [1.5, 1.7000000000000002]


@pytest.mark.slow
def test_delay_and_jitter_change_while_it_runs() -> None:
    """The same connection has the new round trip, and jitter spreads it; then the old one again."""
    with (
        echoing() as port,
        Relay("", "127.0.0.1", port, 0.0) as relay,
        socket.create_connection(("127.0.0.1", relay.port)) as connection,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert min(ping(connection, 10) for _ in range(20)) < 0.005
        relay.set(0.02, 0.01)
        time.sleep(0.1)
        far = [ping(connection, 10) for _ in range(20)]
        assert min(far) >= 0.04 and statistics.pstdev(far) > 0.001
        relay.set(0.0, 0.0)
        time.sleep(0.1)
        assert min(ping(connection, 10) for _ in range(20)) < 0.005
    assert relay.late_s[0] < 0.005


def test_who_sends_waits_where_nobody_reads() -> None:
    """A relay holds so many bytes and no more: a sender is not told that a slow reader took what it did not."""
    with (
        socket.create_server(("127.0.0.1", 0)) as reader,
        Relay("", "127.0.0.1", reader.getsockname()[1], 0.0) as relay,
        socket.create_connection(("127.0.0.1", relay.port)) as connection,
        reader.accept()[0] as never_read,
    ):
        connection.settimeout(1.0)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 100_000_000:
                sent += connection.send(bytes(1 << 20))
        never_read.setblocking(True)
    assert sent < 40_000_000


def test_a_relay_that_does_not_run_says_so() -> None:
    """Changed or killed while it should run, started twice, ended twice, with a delay that is none."""
    relay = Relay("", "127.0.0.1", 9, 0.0)
    with pytest.raises(RuntimeError, match="does not run"):
        relay.set(0.1, 0.0)
    relay.start()
    with pytest.raises(RuntimeError, match="the relay runs"):
        relay.start()
    with pytest.raises(ValueError, match="delay of -1"):
        relay.set(-1.0, 0.0)
    relay.stop()
    relay.stop()
    with pytest.raises(ValueError, match="jitter of nan"):
        Relay("", "127.0.0.1", 9, 0.0, float("nan"))
    with pytest.raises(RuntimeError, match="did not start"):
        Relay("no-such-namespace", "127.0.0.1", 9, 0.0).start()
    late = Relay("", "127.0.0.1", 9, 0.0)
    with pytest.raises(RuntimeError, match="waited 0 s in vain for a relay to start"):
        late.start(within_s=0.0)
    assert not late.runs
    late.start()
    assert late.runs
    late.stop()


def test_a_relay_that_cannot_accept_any_more_ends() -> None:
    """With status 1 and what happened, instead of leaving half of its connections waiting."""
    few = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16)); del sys.argv[0]"
    code = f"{few}; runpy.run_path({str(FORWARDING)!r}, run_name='__main__')"
    with echoing() as port, ExitStack() as stack:
        argv = [sys.executable, "-c", code, "forwarding", "127.0.0.1", str(port), "0", "0", "0", "0"]
        pipe = subprocess.PIPE
        process = stack.enter_context(subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe))
        assert process.stdout is not None
        at = int(process.stdout.readline())
        for _ in range(20):
            with suppress(ConnectionError):
                stack.enter_context(socket.create_connection(("127.0.0.1", at), 10))
        status = process.wait(30)
        _, said = process.communicate(timeout=30)
    assert status == 1 and b"Too many open files" in said


def test_a_relay_ends_with_the_process_that_made_it() -> None:
    """Even where that is killed: its port is closed soon after."""
    code = (
        "from bench.testbed.relay import Relay; import time\n"
        "relay = Relay('', '127.0.0.1', 9, 0.0); relay.start(); print(relay.port, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=PATHS) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        socket.create_connection(("127.0.0.1", port)).close()
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10.0
    while True:
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return
        assert time.monotonic() < deadline
        time.sleep(0.02)
