"""What a device makes of the times of its frames on a simulated link: bandwidth, latency, first in, first out."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.cloud.bandwidth import MAX_BYTES_S, SHORT_BYTES, LinkMonitor
from device_agent.cloud.link import SHORT_FRAMES, LinkPace

ROW = 8192


@dataclass
class Link:
    """A link and a cloud that takes frames in turn; ``way_s`` is the latency of one way, ``jitter`` a part of it."""

    up: float
    down: float
    way_s: float = 0.01
    jitter: float = 0.0
    random: Random = field(default_factory=lambda: Random(7))
    up_free: float = 0.0
    down_free: float = 0.0
    cloud_free: float = 0.0

    def pass_frame(self, posted: float, up_bytes: int, down_bytes: int, step_s: float) -> tuple[float, float]:
        """When the result is back, and how long the frame waited in the cloud."""
        self.up_free = max(self.up_free, posted) + up_bytes / self.up
        arrived = self.up_free + self.way_s * (1 + self.jitter * self.random.random())
        begun = max(arrived, self.cloud_free)
        self.cloud_free = begun + step_s
        self.down_free = max(self.down_free, self.cloud_free) + down_bytes / self.down
        return self.down_free + self.way_s * (1 + self.jitter * self.random.random()), begun - arrived


def use(
    link: Link,
    monitor: LinkMonitor | LinkPace,
    rows: int,
    want: int,
    frames: int = 30,
    gap_s: float = 0.0,
    at: float = 0.0,
    rtt_s: float = 0.0,
) -> float:
    """Send equal frames, ``gap_s`` after the one before was posted, and tell the monitor of their results in order.

    rtt_s: what was measured; 0: what is true.
    """
    results = []
    for _ in range(frames):
        back, queue_s = link.pass_frame(at, rows * ROW, want * ROW, 0.02)
        monitor.sent(at, rows * ROW)
        results.append((at, back, queue_s))
        at += gap_s
    for posted, back, queue_s in results:
        monitor.answered(posted, back, rows * ROW, want * ROW, queue_s, 0.02, rtt_s or 2 * link.way_s)
    return max(back for _, back, _ in results)


@pytest.mark.parametrize("gap_s", [0.0, 0.01, 10.0])
@pytest.mark.parametrize("bandwidth", [1e6, 7.5e6, 20e6, 100e6, 1e9])
def test_bandwidth_up(bandwidth: float, gap_s: float) -> None:
    """Within 10 %, for frames back to back, close together, and alone; one row back tells nothing of the way down."""
    monitor = LinkMonitor()
    use(Link(bandwidth, bandwidth), monitor, rows=128, want=1, gap_s=gap_s)
    assert monitor.up_bytes_s == pytest.approx(bandwidth, rel=0.1)
    assert monitor.down_bytes_s is None


@given(st.sampled_from([1e6, 7.5e6, 30e6]), st.integers(0, 2**32), st.sampled_from([0.0, 10.0]))
def test_jitter(bandwidth: float, seed: int, gap_s: float) -> None:
    """A latency that is up to a fifth longer at times costs no more than 10 % on a frame of 2 MiB."""
    monitor = LinkMonitor()
    use(Link(bandwidth, bandwidth, jitter=0.2, random=Random(seed)), monitor, rows=256, want=1, gap_s=gap_s)
    assert monitor.up_bytes_s == pytest.approx(bandwidth, rel=0.1)


@pytest.mark.parametrize("gap_s", [0.0, 10.0])
@pytest.mark.parametrize("down", [3e6, 15e6, 60e6])
def test_both_ways(down: float, gap_s: float) -> None:
    """Where all rows come back, the way down is measured too, once the way up is known from other frames; also where
    results wait for each other on it."""
    link, monitor = Link(10e6, down), LinkMonitor()
    at = use(link, monitor, rows=128, want=1)
    use(link, monitor, rows=128, want=128, gap_s=gap_s, at=at)
    assert monitor.up_bytes_s == pytest.approx(10e6, rel=0.1)
    assert monitor.down_bytes_s == pytest.approx(down, rel=0.1)


@pytest.mark.parametrize("gap_s", [0.0, 10.0])
def test_both_ways_at_once(gap_s: float) -> None:
    """Where nothing else is ever sent, two equal ways are told apart from the first frame on."""
    monitor = LinkMonitor()
    use(Link(10e6, 10e6), monitor, rows=128, want=128, gap_s=gap_s)
    assert monitor.up_bytes_s == pytest.approx(10e6, rel=0.1)
    assert monitor.down_bytes_s == pytest.approx(10e6, rel=0.1)


def test_results_out_of_order() -> None:
    """A result that overtakes that of an earlier frame does not count the earlier frame's upload as its own."""
    link, monitor = Link(10e6, 10e6), LinkMonitor()
    for turn in range(20):
        at = 10.0 * turn
        frames = []
        for _ in range(2):
            back, queue_s = link.pass_frame(at, 128 * ROW, ROW, 0.02)
            monitor.sent(at, 128 * ROW)
            frames.append((at, back, queue_s))
            at += 1e-4
        for posted, back, queue_s in reversed(frames):
            monitor.answered(posted, back, 128 * ROW, ROW, queue_s, 0.02, 0.02)
    # Only results in order are measured, so nothing is known yet, rather than half the bandwidth.
    assert monitor.up_bytes_s is None
    use(link, monitor, rows=128, want=1, at=1000.0)
    assert monitor.up_bytes_s == pytest.approx(10e6, rel=0.1)


def test_frames_that_are_never_answered() -> None:
    """The frames of a session that ended do not stop the measuring for good."""
    link, monitor = Link(10e6, 10e6), LinkMonitor()
    for _ in range(100):
        monitor.sent(0.0, 128 * ROW)
    use(link, monitor, rows=128, want=1, at=1.0, frames=100)
    assert monitor.up_bytes_s == pytest.approx(10e6, rel=0.1)


def test_a_frame_that_is_abandoned_stops_no_measuring() -> None:
    """One frame at a time follows it: the first cannot be measured, since it may have waited; the others are."""
    link, monitor = Link(10e6, 10e6), LinkMonitor()
    link.pass_frame(0.0, 512 * ROW, 0, 0.0)
    monitor.sent(0.0, 512 * ROW)
    monitor.abandoned(0.0, 512 * ROW)
    at = use(link, monitor, rows=128, want=1, at=0.001, frames=1)
    assert monitor.up_bytes_s is None
    for _ in range(5):
        at = use(link, monitor, rows=128, want=1, at=at + 1, frames=1)
    assert monitor.up_bytes_s == pytest.approx(10e6, rel=0.1)


def test_round_trip_unknown() -> None:
    """A frame alone is not measured then; frames behind another are, since the latency is in both."""
    alone, behind = LinkMonitor(), LinkMonitor()
    monitors = (alone, 10.0), (behind, 0.0)
    for monitor, gap_s in monitors:
        link, at, results = Link(10e6, 10e6), 0.0, []
        for _ in range(20):
            results.append((at, *link.pass_frame(at, 128 * ROW, ROW, 0.02)))
            at += gap_s
        for posted, back, queue_s in results:
            monitor.answered(posted, back, 128 * ROW, ROW, queue_s, 0.02, None)
    assert alone.up_bytes_s is None
    assert behind.up_bytes_s == pytest.approx(10e6, rel=0.1)


def test_a_change_is_followed_and_reported_once() -> None:
    """From 10 to 2 MB/s within 20 frames; only what differs by a fifth is a change."""
    monitor, at = LinkMonitor(), 0.0
    assert not monitor.changed() and monitor.report() == (0, 0)
    at = use(Link(10e6, 10e6), monitor, 128, 1)
    assert monitor.changed()
    up, down = monitor.report()
    assert up == pytest.approx(10e6, rel=0.1) and down == 0
    at = use(Link(9e6, 9e6), monitor, 128, 1, at=at + 1)
    assert not monitor.changed()
    use(Link(2e6, 2e6), monitor, 128, 1, frames=20, at=at + 1)
    assert monitor.changed()
    assert monitor.report()[0] == pytest.approx(2e6, rel=0.1)
    assert not monitor.changed()


@pytest.mark.parametrize(("before", "after"), [(20e6, 0.3e6), (0.3e6, 20e6)])
def test_another_link_is_known_after_two_frames(before: float, after: float) -> None:
    """A device that moves from WLAN to mobile radio, or back, need not send a prompt by what was true before."""
    monitor = LinkMonitor()
    at = use(Link(before, before), monitor, 128, 1)
    use(Link(after, after), monitor, 128, 1, frames=2, gap_s=1.0, at=at + 1)
    assert monitor.up_bytes_s == pytest.approx(after, rel=0.1)


@pytest.mark.parametrize("late_s", [1e-6, 30.0])
def test_one_frame_alone_is_jitter(late_s: float) -> None:
    """One that takes no time, or half a minute, does not begin the mean anew; a second one the other way neither."""
    monitor = LinkMonitor()
    at = use(Link(1e6, 1e6), monitor, 128, 1)
    for seconds in (late_s, 1e-9, 30.0):
        monitor.answered(at, at + seconds, 128 * ROW, 0, 0.0, 0.0, 0.0)
        at += 100
    known = monitor.up_bytes_s
    assert known is not None and 0.03e6 < known < 3e6


def test_short_frames_that_are_late_are_no_other_link() -> None:
    """A fast link that is known from long frames stays fast however many drafts follow, and where some come late."""
    monitor = LinkMonitor()
    at = use(Link(100e6, 100e6), monitor, 128, 1, gap_s=1.0)
    for number in range(40):
        at += 1
        late_s = 0.02 if number > 30 else 0.0
        monitor.answered(at, at + 5 * ROW / 100e6 + late_s, 5 * ROW, 0, 0.0, 0.0, 0.0)
    assert monitor.up_bytes_s is not None and monitor.up_bytes_s > 25e6


def test_results_that_come_together_are_no_faster_link() -> None:
    """The way back stood still: the first frame seems to have taken that long, the two behind it no time."""
    link, monitor = Link(5e6, 5e6), LinkMonitor()
    at = use(link, monitor, 128, 1) + 1
    frames = [(at, *link.pass_frame(at, 128 * ROW, 0, 0.02)) for _ in range(3)]
    together = frames[-1][1] + 0.5
    for number, (posted, _, queue_s) in enumerate(frames):
        monitor.sent(posted, 128 * ROW)
        monitor.answered(posted, together + number / 1000, 128 * ROW, 0, queue_s, 0.02, 0.02)
    assert monitor.up_bytes_s is not None and monitor.up_bytes_s < 10e6


def use_short(link: Link, pace: LinkPace, at: float, rtt_s: float | None) -> float:
    """``SHORT_FRAMES`` short frames, one a second."""
    for number in range(SHORT_FRAMES):
        back, queue_s = link.pass_frame(at + number, 100, 100, 0.02)
        pace.answered(at + number, back, 100, 100, queue_s, 0.02, rtt_s)
    return at + SHORT_FRAMES


def test_a_slower_path_is_known_from_short_frames() -> None:
    """The round trip that was measured first does not count for ever, on a link that is never idle."""
    pace, at = LinkPace(1, True), 0.0
    for link in (Link(5e6, 5e6, way_s=0.005), Link(5e6, 5e6, way_s=0.03)):
        at = use_short(link, pace, at, 0.01)
        at = use(link, pace, rows=8, want=0, gap_s=1.0, at=at, rtt_s=0.01)
        assert pace.pace.up_bytes_s == pytest.approx(5e6, rel=0.15)


def test_a_new_round_trip_is_newer_than_all_before() -> None:
    """After a pause, what short frames took before it says nothing."""
    pace = LinkPace(1, True)
    at = use_short(Link(5e6, 5e6, way_s=0.0005), pace, 0.0, None)
    use(Link(5e6, 5e6, way_s=0.03), pace, rows=8, want=0, gap_s=1.0, at=at, rtt_s=0.06)
    assert pace.pace.up_bytes_s == pytest.approx(5e6, rel=0.15)


def test_one_row_is_short_however_long() -> None:
    """Of a wide model a single row is as long as a long frame of another: it measures the round trip all the same."""
    pace = LinkPace(2**15, True)
    pace.sent(0.0, 2**15)
    pace.answered(0.0, 0.1, 2**15, 0, 0.0, 0.05, 0.02)
    assert pace.pace.up_bytes_s is None and pace.pace.step_s == 0.05


@pytest.mark.parametrize("known_s", [None, 0.3])
def test_short_frames_tell_the_round_trip(known_s: float | None) -> None:
    """Where it was never measured, or while the cloud was slow to answer: no frame alone would be measured, or each as
    if it had taken no time."""
    link, pace = Link(5e6, 5e6), LinkPace(1, True)
    for at in range(20):
        back, queue_s = link.pass_frame(float(at), 100, 100, 0.02)
        pace.answered(float(at), back, 100, 100, queue_s, 0.02, known_s)
        back, queue_s = link.pass_frame(at + 0.5, 32 * ROW, 0, 0.02)
        pace.sent(at + 0.5, 32 * ROW)
        pace.answered(at + 0.5, back, 32 * ROW, 0, queue_s, 0.02, known_s)
    assert pace.pace.up_bytes_s == pytest.approx(5e6, rel=0.1)


def test_decode_rows_measure_nothing() -> None:
    """A frame of one row says more of latency than of bandwidth."""
    pace = LinkPace(1, True)
    use(Link(10e6, 10e6), pace, rows=1, want=1, gap_s=0.1)
    assert ROW <= SHORT_BYTES
    assert (pace.pace.up_bytes_s, pace.pace.down_bytes_s) == (None, None)


moments = st.floats(allow_nan=True, allow_infinity=True)
lengths = st.integers(0, 2**33)


@given(st.lists(st.tuples(moments, moments, lengths, lengths, moments, moments, st.none() | moments), max_size=20))
def test_absurd_times(results: list[tuple[float, float, int, int, float, float, float | None]]) -> None:
    """Whatever the clocks say, a bandwidth is unknown or positive and at most the cap, and can be reported."""
    pace = LinkPace(1, True)
    for number, result in enumerate(results):
        pace.sent(result[0], result[2])
        pace.answered(*result)
        for known in (pace.pace.up_bytes_s, pace.pace.down_bytes_s):
            assert known is None or 0 < known <= MAX_BYTES_S * 1.001
        told = pace.news(number)
        assert told is None or all(0 <= each <= MAX_BYTES_S * 1.001 for each in (told.up_bytes_s, told.down_bytes_s))


def test_many_frames_on_the_way() -> None:
    """Two prompts of many chunks, all sent before the first is answered: every one is measured behind the others."""
    link, monitor = Link(5e6, 5e6), LinkMonitor()
    use(link, monitor, rows=64, want=0, frames=40)
    assert monitor.up_bytes_s == pytest.approx(5e6, rel=0.1)


def test_loopback() -> None:
    """A frame that seems to have taken a nanosecond counts as the cap; the mean stays near what other frames say."""
    monitor = LinkMonitor()
    monitor.answered(0.0, 1e-9, 2**20, 0, 0.0, 0.0, 0.0)
    assert monitor.up_bytes_s == pytest.approx(MAX_BYTES_S)
    monitor = LinkMonitor()
    use(Link(1e9, 1e9, way_s=0.0), monitor, rows=128, want=1, gap_s=1.0)
    monitor.answered(100.0, 100.0 + 1e-9, 128 * ROW, 0, 0.0, 0.0, 0.0)
    assert monitor.up_bytes_s == pytest.approx(1.25e9, rel=0.1)
