"""What changes while a testbed runs is drawn by its seed, made when it is due, and written down."""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from threading import Event, current_thread

import pytest
from bench.testbed import changes as module
from bench.testbed.changes import Changes, schedule_of
from bench.testbed.network import Network
from bench.testbed.scenario import Host, Link, Scenario
from bench.testbed.schedule import LEAST_MB_S, MODE_EVERY, LinkChange, ModeChange, Schedule
from bench.testbed.shaped_link import ShapedLink
from bench.testbed.traces import Trace

MODES = (0.1, 0.2, 0.4)


def host(name: str, *modes: float) -> Host:
    """A host that has these modes."""
    return Host(name, "device", 1, modes[0] if modes else 1.0, modes, 0, 0.0)


def link(
    a: str,
    up: float = 0.0,
    down: float = 0.0,
    trace: str = "",
    vary: tuple[float, float] | None = None,
    vary_s: float = 0.0,
    scale: float = 1.0,
    vary_down: tuple[float, float] | None = None,
    scale_down: float = 0.0,
    from_s: float = 0.0,
) -> Link:
    """A link to the cloud; what is not given for its way down is as for its way up."""
    drawn = (vary, vary_down or vary) if vary else None
    return Link(
        "way", a, "cloud", up, down, 0.0, 0.0, False, trace, (scale, scale_down or scale), from_s, drawn, vary_s
    )


def scenario(*parts: Host | Link) -> Scenario:
    """Of these hosts and links."""
    hosts = tuple(each for each in parts if isinstance(each, Host))
    return Scenario("test", "", hosts, tuple(each for each in parts if isinstance(each, Link)), ())


def test_bandwidths_are_drawn_anew_within_their_factors() -> None:
    """At the beginning and every ``vary_s``, each way of each link by itself, evenly; 0 stays unlimited."""
    made = scenario(link("a", 2.0, 4.0, vary=(0.5, 1.5), vary_s=3.0), link("b", 2.0, 0.0, vary=(0.5, 1.5), vary_s=3.0))
    schedule = Schedule(made, {}, 7)
    assert schedule.next_s() == 0.0
    drawn: list[LinkChange] = []
    for step in range(400):
        changes = schedule.due(3.0 * step + 1.0)
        assert [(each.at_s, each.a) for each in changes] == [(3.0 * step, "a"), (3.0 * step, "b")]
        assert schedule.next_s() == 3.0 * (step + 1) and schedule.due(3.0 * step + 2.9) == []
        drawn += changes
    ups = [[each.up_mb_s for each in drawn if each.a == name] for name in "ab"]
    downs = [each.down_mb_s for each in drawn if each.a == "a"]
    assert ups[0] != ups[1] and [down / 2 for down in downs] != ups[0]
    assert all(1.0 <= up <= 3.0 for up in ups[0]) and all(2.0 <= down <= 6.0 for down in downs)
    assert statistics.fmean(ups[0]) == pytest.approx(2.0, abs=0.15) and max(ups[0]) > 2.9 and min(ups[0]) < 1.1
    assert {each.down_mb_s for each in drawn if each.a == "b"} == {0.0}


def test_each_way_is_drawn_within_its_own_factors() -> None:
    """Where they differ."""
    schedule = Schedule(scenario(link("a", 1.0, 1.0, vary=(0.5, 0.6), vary_down=(2.0, 3.0), vary_s=1.0)), {}, 7)
    drawn = [change for second in range(50) for change in schedule.due(second)]
    assert all(0.5 <= each.up_mb_s <= 0.6 and 2.0 <= each.down_mb_s <= 3.0 for each in drawn) and len(drawn) == 50


def test_what_is_drawn_does_not_depend_on_when_it_is_asked() -> None:
    """The same seed gives the same at the same time, also to one who asks seldom; another seed another."""
    made = scenario(link("a", 2.0, 4.0, vary=(0.5, 1.5), vary_s=0.1))
    often, seldom, other = (Schedule(made, {}, seed) for seed in (1, 1, 2))
    last = [often.due(0.1 * step + 0.05) for step in range(100)][-1]
    assert seldom.due(9.95) == last != other.due(9.95)
    times = [Schedule(made, {}, 1).due(step * 0.1)[0].at_s for step in range(1, 300)]
    assert times == [step * 0.1 for step in range(1, 300)]


def test_a_trace_is_played_in_a_loop() -> None:
    """Scaled; up is its own column, or else in the proportion of the link's, or as down; none at all is very little."""
    both = Trace((0.0, 1.0, 3.0), (1.0, 2.0, 0.0), (0.5, 0.0, 3.0), 4.0)
    down = Trace((0.0, 2.0), (1.0, 4.0), None, 4.0)
    made = scenario(
        link("a", trace="both", scale=2.0),
        link("b", 1.0, 4.0, trace="down"),
        link("c", trace="down"),
        link("d", 0.7, 0.0, trace="down"),
    )
    schedule = Schedule(made, {"both": both, "down": down}, 0)

    def rates(at_s: float) -> dict[str, tuple[float, float, float]]:
        return {each.a: (each.at_s, each.up_mb_s, each.down_mb_s) for each in schedule.due(at_s)}

    first = rates(0.0)
    assert first == {"a": (0.0, 1.0, 2.0), "b": (0.0, 0.25, 1.0), "c": (0.0, 1.0, 1.0), "d": (0.0, 0.7, 1.0)}
    assert schedule.next_s() == 1.0
    assert rates(1.5) == {"a": (1.0, LEAST_MB_S, 4.0)}
    assert rates(3.5) == {
        "a": (3.0, 6.0, LEAST_MB_S),
        "b": (2.0, 1.0, 4.0),
        "c": (2.0, 4.0, 4.0),
        "d": (2.0, 0.7, 4.0),
    }
    assert schedule.next_s() == 4.0
    assert rates(4.1)["a"] == (4.0, 1.0, 2.0)
    assert rates(41.5)["a"] == (41.0, LEAST_MB_S, 4.0)


def test_a_trace_is_begun_where_the_link_says() -> None:
    """The step it begins in is cut there and ends the round; each way has its own scale."""
    trace = Trace((0.0, 1.0, 3.0), (1.0, 2.0, 4.0), (0.5, 1.0, 2.0), 4.0)
    made = scenario(link("a", trace="it", scale=2.0, scale_down=10.0, from_s=6.0), link("b", trace="it", from_s=3.0))
    schedule = Schedule(made, {"it": trace}, 0)
    found: list[LinkChange] = []
    while schedule.next_s() < 8.0:
        found += schedule.due(schedule.next_s())
    rates = {name: [(each.at_s, each.up_mb_s, each.down_mb_s) for each in found if each.a == name] for name in "ab"}
    once = [(0.0, 2.0, 20.0), (1.0, 4.0, 40.0), (2.0, 1.0, 10.0), (3.0, 2.0, 20.0)]
    assert rates["a"] == [*once, *((4.0 + at_s, up, down) for at_s, up, down in once)]
    assert rates["b"][:3] == [(0.0, 2.0, 4.0), (1.0, 0.5, 1.0), (2.0, 1.0, 2.0)]


def test_modes_are_drawn_anew_every_five_requests() -> None:
    """For every host that has several, evenly, whenever the count passes a multiple, however far it jumps."""
    made = scenario(host("a", *MODES), host("b", *MODES), host("still", 0.3), host("plain"))
    schedule, jumping = Schedule(made, {}, 3), Schedule(made, {}, 3)
    drawn: list[ModeChange] = []
    for count in range(1, 1001):
        changes = schedule.requests_made(count)
        assert bool(changes) == (count % MODE_EVERY == 0)
        drawn += changes
    assert {each.host for each in drawn} == {"a", "b"} and len(drawn) == 2 * 1000 // MODE_EVERY
    counts = [[each.cores for each in drawn if each.host == name].count(mode) for name in "ab" for mode in MODES]
    assert min(counts) > 40
    assert jumping.requests_made(1003) == drawn[-2:] and drawn[-1].after_requests == 1000
    assert jumping.requests_made(1004) == []


def test_nothing_to_change_is_never_due() -> None:
    """A scenario that stays as it is."""
    schedule = Schedule(scenario(host("a"), link("a", 1.0, 1.0)), {}, 0)
    assert schedule.due(1e6) == [] and schedule.next_s() == math.inf and schedule.requests_made(100) == []


class Recorded:
    """A host and a link at once that write down what is changed; ``broken`` ones fail, others wait for ``hold``."""

    def __init__(self) -> None:
        self.rates: list[tuple[float | None, float | None, str]] = []
        self.cores: list[float] = []
        self.broken = False
        self.hold: Event | None = None

    def set(self, up_mb_s: float | None = None, down_mb_s: float | None = None) -> None:
        """A link's."""
        if self.broken:
            raise OSError("the link is gone")
        if self.hold is not None:
            self.hold.wait(60.0)
        self.rates.append((up_mb_s, down_mb_s, current_thread().name))

    def set_cores(self, cores: float) -> None:
        """A host's."""
        self.cores.append(cores)


class Bed:
    """A testbed of one link and one host."""

    def __init__(self, way: Recorded | ShapedWay) -> None:
        self.way = way
        self.machine = Recorded()

    def link(self, one: str, other: str) -> Recorded | ShapedWay:
        """The only one."""
        return self.way

    def host(self, name: str) -> Recorded:
        """The only one."""
        return self.machine


class ShapedWay:
    """A real link, all of whose bandwidths are set together."""

    def __init__(self, shaped: ShapedLink) -> None:
        self._shaped = shaped

    def set(self, up_mb_s: float | None = None, down_mb_s: float | None = None) -> None:
        """Both of them."""
        assert up_mb_s is not None and down_mb_s is not None
        self._shaped.set(up_mb_s, down_mb_s)


@pytest.mark.slow
def test_changes_are_made_when_they_are_due_and_written_down() -> None:
    """The first before anything else happens, the others soon after their time, modes at once; none after the end."""
    way = Recorded()
    bed = Bed(way)
    made = scenario(host("a", *MODES), link("a", 1.0, 1.0, vary=(0.5, 2.0), vary_s=0.1))
    with Changes(bed, schedule_of(made, 1)) as changes:
        assert len(way.rates) == 1
        changes.requests_made(MODE_EVERY)
        assert len(bed.machine.cores) == 1 and bed.machine.cores[0] in MODES
        time.sleep(0.55)
    count = len(way.rates)
    assert 4 <= count <= 7 and {name for *_, name in way.rates[1:]} == {"changes"}
    links = [each for each in changes.made if isinstance(each.change, LinkChange)]
    assert [(up, down) for up, down, _ in way.rates] == [
        (each.change.up_mb_s, each.change.down_mb_s) for each in links if isinstance(each.change, LinkChange)
    ]
    assert all(0 <= each.at_s - each.change.at_s < 0.1 for each in links if isinstance(each.change, LinkChange))
    assert [each.change for each in changes.made if isinstance(each.change, ModeChange)] == [
        ModeChange(MODE_EVERY, "a", bed.machine.cores[0])
    ]
    time.sleep(0.15)
    assert len(way.rates) == count


def test_a_change_that_fails_is_heard_of() -> None:
    """At the end, as what it was; not in place of another failure."""
    way = Recorded()
    made = scenario(link("a", 1.0, 1.0, vary=(0.5, 2.0), vary_s=0.05))
    with pytest.raises(OSError, match="gone"), Changes(Bed(way), schedule_of(made, 1)):
        way.broken = True
        time.sleep(0.2)
    way.broken = False
    with pytest.raises(KeyError), Changes(Bed(way), schedule_of(made, 1)):
        way.broken = True
        time.sleep(0.2)
        raise KeyError


def test_a_change_that_does_not_end_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, in place of waiting for it for ever."""
    monkeypatch.setattr(module, "WITHIN_S", 0.1)
    let_go, way = Event(), Recorded()
    made = scenario(link("a", 1.0, 1.0, vary=(0.5, 2.0), vary_s=0.05))
    with pytest.raises(RuntimeError, match="a change to be made"), Changes(Bed(way), schedule_of(made, 1)):
        way.hold = let_go
        time.sleep(0.2)
    let_go.set()


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.usefixtures("possible")
def test_a_real_link_follows_a_trace(tmp_path: Path) -> None:
    """Every change of a trace reaches the link of a network, in time."""
    path = tmp_path / "trace.csv"
    path.write_text("time_s,down_mbps,up_mbps\n0,8,4\n0.5,80,0\n")
    cloud = link("a", trace=str(path))
    network = Network.make("try-net-changes", ["a", "cloud"], [cloud])
    try:
        with Changes(Bed(ShapedWay(network.link("a", "cloud"))), schedule_of(scenario(cloud), 1)) as changes:
            time.sleep(1.2)
    finally:
        network.close()
    rates = [
        (each.change.up_mb_s, each.change.down_mb_s) for each in changes.made if isinstance(each.change, LinkChange)
    ]
    assert rates == [(0.5, 1.0), (LEAST_MB_S, 10.0), (0.5, 1.0)]
    assert [each.at_s for each in changes.made] == pytest.approx([0.0, 0.5, 1.0], abs=0.15)
