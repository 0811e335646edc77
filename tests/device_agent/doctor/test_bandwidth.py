"""What times of frames say of a link, and what is said of it."""

from __future__ import annotations

import struct

import pytest

from device_agent.doctor.bandwidth import LEAST_JITTER_S, Speeds, finite_rows, speeds_of
from device_agent.doctor.cloud import bandwidth_of
from device_agent.doctor.link import round_trip, unlike
from service.doctor.finding import Status
from wire.errors import Code, ConnectionFailed
from wire.session_messages import DeviceHello

HELLO = DeviceHello("", "", "m", "", 1, 3, 4096, "float32")


def test_speeds() -> None:
    """Bytes by seconds; what is shorter than the round trips' own differences says only that it is fast."""
    assert speeds_of(10**6, 2.0, 4.0, 0.01) == Speeds(500_000, 250_000, False, False, 10**6)
    assert speeds_of(10**6, 0.001, 1.0, 0.01) == Speeds(10**6 / 0.02, 10**6, True, False, 10**6)
    assert speeds_of(10**6, 0.0, -0.5, 0.0).up_bytes_s == 10**6 / (2 * LEAST_JITTER_S)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_rows_are_finite_numbers(dtype: str, size: int) -> None:
    """Between a half and two, whatever chance says."""
    data = finite_rows(8, 32, dtype)
    assert len(data) == 8 * 32 * size
    for at in range(0, len(data), size):
        [value] = struct.unpack("<f", data[at : at + size].rjust(4, b"\0"))
        assert 0.5 <= value < 2


@pytest.mark.parametrize(("up", "status"), [(10e6, "ok"), (1e5, "warn")])
def test_a_bandwidth_is_explained_by_a_prompt(up: float, status: Status) -> None:
    """A thousand rows of 16 kB are 16 MB."""
    found = bandwidth_of("ws://a", Speeds(up, 2e6, False, False, 10**6), HELLO)
    assert found.status == status and ("1.6 s up" if status == "ok" else "164 s up") in found.seen
    fast = bandwidth_of("", Speeds(5e6, 5e3, True, False, 10**6), HELLO)
    assert fast.seen.startswith("up at least 5.0 MB/s, down 5 kB/s (1 MB at once)")


@pytest.mark.parametrize(("times", "status"), [([0.02, 0.03, 0.9], "ok"), ([0.2, 0.3, 0.21], "warn"), ([], "warn")])
def test_a_round_trip_is_a_median(times: list[float], status: Status) -> None:
    """One late ping is none; without any there is nothing to say."""
    found = round_trip("ws://a", times)
    assert found.status == status and bool(found.todo) is (status == "warn")
    assert not times or found.figures["median_s"] == sorted(times)[1]


@pytest.mark.parametrize(
    ("code", "check", "status"),
    [
        (Code.VERSION_MISMATCH, "release", "fail"),
        (Code.OVERLOADED, "hello", "warn"),
        (Code.BAD_FRAME, "hello", "fail"),
        (Code.LOST, "hello", "fail"),
    ],
)
def test_why_there_was_no_hello(code: Code, check: str, status: Status) -> None:
    """Each with what to do."""
    found = unlike("ws://a", ConnectionFailed(code, "something; look there"), "gateway")
    assert (found.check, found.status) == (check, status) and found.todo
    assert code is not Code.LOST or (found.seen, found.todo) == ("something", "Look there.")
