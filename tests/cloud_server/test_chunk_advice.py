"""A device is told how to cut its prompts when that is news, and not otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_server.schedule.chunk_advice import DRIFT, SCHEDULES, Advising
from cloud_server.schedule.chunk_model import UNKNOWN_LINK_ROWS, Conditions, chunk_rows, first_rows
from cloud_server.schedule.chunk_search import schedule
from device_agent.cloud.chunks import Chunker
from wire.limits import FIRST_CHUNK, LEAST_CHUNK, MAX_CHUNKS
from wire.session_messages import Advice

ROW_BYTES = 8192
SLOW_BYTES_S = 1e6
FAST_BYTES_S = 1e9


@dataclass
class Cloud:
    """The conditions of a cloud for every device, and what was posted to one."""

    mu: float = 8.0
    base_s: float = 0.02
    row_s: float = 0.0002
    cap_rows: int = 512
    posted: list[Advice] = field(default_factory=list)

    def conditions(self, up_bytes_s: float | None) -> Conditions:
        """For a device with this bandwidth."""
        base_s, row_s = self.base_s, self.row_s
        return Conditions(
            mu=self.mu,
            g=lambda rows: base_s + row_s * rows,
            pipeline=1,
            row_bytes=ROW_BYTES,
            up_bytes_s=up_bytes_s,
            cap_rows=self.cap_rows,
        )

    def advising(self, up_bytes_s: float = 0) -> Device:
        """A device that has told this bandwidth, 0 for none; what was posted so far is left out."""
        device = Device(self, up_bytes_s)
        device.connected()
        self.posted.clear()
        return device


@dataclass
class Device:
    """A device that is told what the cloud posts."""

    cloud: Cloud
    up_bytes_s: float = 0
    advising: Advising = field(default_factory=Advising)

    def connected(self) -> None:
        self._post(self.advising.default(self._conditions))

    def opened(self, session: int, prompt: int) -> None:
        self._post(self.advising.opened(session, prompt, self._conditions))

    def look_again(self, position: Callable[[int], int | None]) -> Iterator[None]:
        for advice in self.advising.look_again(self._conditions, position):
            self._post(advice)
            yield

    @property
    def _conditions(self) -> Conditions:
        return self.cloud.conditions(self.up_bytes_s or None)

    def _post(self, advice: Advice | None) -> None:
        if advice is not None:
            self.cloud.posted.append(advice)


def of_session(posted: list[Advice], session: int) -> list[Advice]:
    """The advice for one session."""
    return [advice for advice in posted if advice.session == session]


def test_a_device_that_comes_is_told_one_size() -> None:
    """For prompts that have no advice of their own, and whose link nobody has measured yet; and how they begin."""
    cloud = Cloud()
    Device(cloud).connected()
    assert cloud.posted == [Advice([UNKNOWN_LINK_ROWS, FIRST_CHUNK])]


@given(st.integers(1, 20_000), st.sampled_from([0.0, SLOW_BYTES_S, FAST_BYTES_S]), st.integers(16, 512))
def test_a_prompt_gets_sizes_that_add_up(prompt: int, up_bytes_s: float, cap_rows: int) -> None:
    """A prompt is told at once how to be cut, within what one message holds; one that is cut before that can come is
    told nothing."""
    cloud = Cloud(cap_rows=cap_rows)
    cloud.advising(up_bytes_s).opened(7, prompt)
    if not cloud.posted:
        assert prompt < FIRST_CHUNK + LEAST_CHUNK or (up_bytes_s == FAST_BYTES_S and prompt <= cap_rows)
        return
    (advice,) = cloud.posted
    assert advice.session == 7 and advice.begin == 0
    assert all(0 < size <= cap_rows for size in advice.sizes) and len(advice.sizes) <= MAX_CHUNKS
    assert sum(advice.sizes) == prompt or (len(advice.sizes) == MAX_CHUNKS and sum(advice.sizes) < prompt)


@given(st.integers(1, 8000), st.sampled_from([0.0, 1e5, SLOW_BYTES_S, 1e8, FAST_BYTES_S]), st.integers(64, 512))
def test_a_device_can_follow(prompt: int, up_bytes_s: float, cap_rows: int) -> None:
    """The advice that comes when the first chunk has been cut begins where that ends, so no chunk is cut twice."""
    cloud = Cloud(cap_rows=cap_rows)
    advising = Device(cloud, up_bytes_s)
    advising.connected()
    ((default, first_most),) = [advice.sizes for advice in cloud.posted]
    cloud.posted.clear()
    chunker = Chunker(prompt, default, cap_rows, first_most)
    first = chunker.next()
    advising.opened(7, prompt)
    if not cloud.posted:
        assert first == prompt
        return
    (advice,) = cloud.posted
    assert first == advice.sizes[0]


@given(st.integers(1, 20_000), st.sampled_from([0.0, SLOW_BYTES_S, FAST_BYTES_S]))
def test_nothing_is_said_twice(prompt: int, up_bytes_s: float) -> None:
    """Where nothing has changed, looking again says nothing."""
    cloud = Cloud()
    advising = cloud.advising(up_bytes_s)
    advising.opened(7, prompt)
    said = list(cloud.posted)
    for _ in range(2):
        list(advising.look_again({7: 0}.get))
    assert cloud.posted == said


def test_a_changed_link_is_news() -> None:
    """A bandwidth that is measured changes the one size, and what is left of a prompt under way."""
    cloud = Cloud()
    advising = cloud.advising()
    advising.opened(7, 6000)
    assert len(cloud.posted) == 1
    advising.up_bytes_s = SLOW_BYTES_S
    list(advising.look_again({7: 1024}.get))
    conditions = cloud.conditions(SLOW_BYTES_S)
    size = chunk_rows(conditions)
    assert cloud.posted[1:] == [
        Advice([size, first_rows(conditions, size)]),
        Advice(schedule(conditions, 6000 - 1024), 7, 1024),
    ]


def test_a_busier_cloud_is_news() -> None:
    """So is a cloud whose steps take much longer than before, and not one whose steps hardly do."""
    cloud = Cloud()
    advising = cloud.advising(SLOW_BYTES_S)
    advising.opened(7, 6000)
    cloud.posted.clear()
    cloud.row_s *= 1.01
    list(advising.look_again({7: 0}.get))
    assert cloud.posted == []
    cloud.row_s *= 100
    list(advising.look_again({7: 0}.get))
    assert [advice.session for advice in cloud.posted] == [None, 7]


@pytest.mark.parametrize("position", [None, 6000, 6500])
def test_a_prompt_that_is_through_is_forgotten(position: int | None) -> None:
    """Nothing more is said of a session that is over or past its prompt, whatever changes."""
    cloud = Cloud()
    advising = cloud.advising()
    advising.opened(7, 6000)
    list(advising.look_again({7: position}.get))
    cloud.posted.clear()
    advising.up_bytes_s = SLOW_BYTES_S
    list(advising.look_again({7: 0}.get))
    assert [advice.session for advice in cloud.posted] == [None]


def test_a_closed_session_is_forgotten() -> None:
    """A session that is closed gets no advice, and its number may be used again."""
    cloud = Cloud()
    advising = cloud.advising()
    advising.opened(7, 6000)
    advising.advising.closed(7)
    advising.advising.closed(7)
    cloud.posted.clear()
    advising.up_bytes_s = SLOW_BYTES_S
    list(advising.look_again({7: 0}.get))
    assert [advice.session for advice in cloud.posted] == [None]
    advising.opened(7, 9000)
    assert [sum(advice.sizes) for advice in of_session(cloud.posted, 7)] == [9000]


def test_many_at_once_are_told_a_little_later() -> None:
    """However many sessions a device opens at once, only some get a schedule at once; the others follow the default
    and get theirs when conditions are looked at, where that differs. Then there are schedules at once again."""
    cloud = Cloud()
    advising = cloud.advising(SLOW_BYTES_S)
    for session in range(SCHEDULES + 3):
        advising.opened(session, 6000)
    assert [advice.session for advice in cloud.posted] == list(range(SCHEDULES))
    list(advising.look_again(dict.fromkeys(range(SCHEDULES + 3), 0).get))
    assert [advice.session for advice in cloud.posted] == list(range(SCHEDULES + 3))
    assert len({tuple(advice.sizes) for advice in cloud.posted}) == 1
    advising.opened(99, 6000)
    assert cloud.posted[-1].session == 99


def test_what_has_not_changed_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is scheduled anew when it has come further or conditions have drifted, also in small steps, and not
    otherwise."""
    scheduled: list[int] = []

    def counted(conditions: Conditions, rows: int) -> list[int]:
        scheduled.append(rows)
        return schedule(conditions, rows)

    monkeypatch.setattr("cloud_server.schedule.chunk_advice.schedule", counted)
    cloud = Cloud()
    advising = cloud.advising(SLOW_BYTES_S)
    advising.opened(7, 6000)
    for _ in range(3):
        list(advising.look_again({7: 0}.get))
    left = 6000 - cloud.posted[0].sizes[0]
    assert scheduled == [left]
    list(advising.look_again({7: 512}.get))
    assert scheduled == [left, 5488]
    steps = 0
    while len(scheduled) == 2:
        cloud.base_s *= 1 + DRIFT / 4
        cloud.row_s *= 1 + DRIFT / 4
        list(advising.look_again({7: 512}.get))
        steps += 1
    assert 3 <= steps <= 6


def test_there_is_a_pause_after_every_session() -> None:
    """So whoever looks may let others go first; one that is closed in a pause is left out."""
    cloud = Cloud()
    advising = cloud.advising()
    for session in (1, 2, 3):
        advising.opened(session, 6000)
    cloud.posted.clear()
    advising.up_bytes_s = SLOW_BYTES_S
    said = []
    for _ in advising.look_again({1: 0, 2: 0, 3: 0}.get):
        said.append([advice.session for advice in cloud.posted])
        advising.advising.closed(2)
    assert said == [[None], [None, 1], [None, 1, 3]]


def test_a_prompt_longer_than_a_message_is_told_on() -> None:
    """Advice that does not reach the end of a prompt is renewed before it is used up, and is short work at any cap."""
    cloud = Cloud(cap_rows=16)
    advising = cloud.advising(SLOW_BYTES_S)
    prompt = 32768
    advising.opened(7, prompt)
    told, position = sum(cloud.posted[-1].sizes), 0
    while told < prompt:
        position += 512
        assert position < told
        list(advising.look_again({7: position}.get))
        newest = cloud.posted[-1]
        assert len(newest.sizes) <= MAX_CHUNKS and newest.begin <= position
        told = newest.begin + sum(newest.sizes)
    assert told == prompt


def test_sessions_are_told_apart() -> None:
    """Each is advised from where it stands."""
    cloud = Cloud()
    advising = cloud.advising()
    advising.opened(1, 6000)
    advising.opened(2, 5000)
    cloud.posted.clear()
    advising.up_bytes_s = SLOW_BYTES_S
    list(advising.look_again({1: 3000, 2: 100}.get))
    assert [(advice.begin, sum(advice.sizes)) for advice in cloud.posted if advice.session == 1] == [(3000, 3000)]
    assert [(advice.begin, sum(advice.sizes)) for advice in cloud.posted if advice.session == 2] == [(100, 4900)]
