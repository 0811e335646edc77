"""A local network: everyone reaches everyone, each port is as fast as it is told, and bytes are counted at it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.testbed import scenario as scenarios
from bench.testbed.bed import Testbed
from bench.testbed.declared import Lan
from bench.testbed.inside import inside
from bench.testbed.network import Network, remove_network
from bench.testbed.scenario import BadScenario, Scenario, load
from network_flows import flow, link

PREFIX = f"try-lan-{os.getpid()}"

THREE = """
[hosts.device]
count = 3
[hosts.cloud]
[links.wan]
between = ["device-1", "cloud"]
[lans.home]
among = ["device"]
out_mb_s = 2.0
in_mb_s = 1.0
[processes.listener]
on = "device"
command = "/bin/echo {lan:device-2} {address:device-2} {endpoint:device-2:80} {lan:device-1}"
"""


@pytest.fixture
def prefix(possible: None) -> Iterator[str]:
    """What the names of a test's namespaces begin with."""
    yield PREFIX
    remove_network(PREFIX)


def scenario(folder: Path, text: str = THREE) -> Scenario:
    """The scenario of a text."""
    path = folder / "lan.toml"
    path.write_text(text)
    return load(path)


@pytest.mark.slow
@pytest.mark.system
def test_ports_are_as_fast_as_they_are_told(prefix: str) -> None:
    """Out and in, to whomever; two who send to a third share its port, and both ways go at once."""
    hosts = ["one", "two", "three"]
    network = Network.make(prefix, hosts, [], [Lan("home", tuple(hosts), 1.0, 2.0)])
    size = 200_000
    with flow(network, "one", "three") as first, flow(network, "two", "three", 5001) as second:
        assert first.seconds(size, 2) == pytest.approx(0.2, rel=0.1)
        network.port("one").set(4.0, 2.0)
        network.port("two").set(4.0, 2.0)
        assert first.seconds(size, 2) == pytest.approx(0.1, rel=0.1)
        time.sleep(0.05)
        for way in (first, second):
            way.give(size)
        assert max(first.took(), second.took()) == pytest.approx(0.2, rel=0.15)
        with flow(network, "three", "one", 5002) as back:
            back.give(size // 2)
            first.give(size)
            assert back.took() < 1.2 * 0.1 and first.took() < 1.2 * 0.1


@pytest.mark.system
def test_bytes_are_counted_at_each_port(prefix: str) -> None:
    """What a host has sent, and what was sent to it; nothing of others passes by."""
    hosts = ["one", "two", "three", "aside"]
    network = Network.make(prefix, hosts, [link("one", "aside", 0.0, 0.0)], [Lan("home", tuple(hosts[:3]), 50.0, 50.0)])
    with flow(network, "one", "two") as way:
        way.seconds(300_000)
    said = 32  # The receiver's answer.
    for host, out, into in (("one", 300_000, said), ("two", said, 300_000), ("three", 0, 0)):
        port = network.port(host)
        for found, exact in zip(port.bytes(), (out, into), strict=True):
            assert exact <= found <= 1.02 * exact + 500  # An acknowledgement may be long enough to count.
        assert port.dropped() == 0
    assert network.address("one", "two") == network.address("three", "two") == network.port("two").address
    assert network.address("aside", "one").startswith("10.231.")
    with pytest.raises(ValueError, match="no local network"):
        network.port("aside")


@pytest.mark.system
def test_a_multicast_reaches_all(prefix: str) -> None:
    """So members may find each other; whoever is not of the network hears nothing."""
    hosts = ["one", "two", "three", "aside"]
    network = Network.make(prefix, hosts, [], [Lan("home", tuple(hosts[:3]), 0.0, 0.0)])
    group = "239.1.2.3"

    def listener(host: str) -> socket.socket:
        found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        found.bind(("", 5353))
        found.settimeout(5.0)
        own = network.port(host).address
        found.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + socket.inet_aton(own))
        return found

    def say() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as speaker:
            speaker.sendto(b"here I am", (group, 5353))

    heard = {host: inside(network.namespace(host), lambda host=host: listener(host)) for host in hosts[1:3]}  # type: ignore[misc]
    inside(network.namespace("one"), say)
    for each in heard.values():
        with each:
            data, (sender, _) = each.recvfrom(100)
            assert (data, sender) == (b"here I am", network.port("one").address)
    with pytest.raises(OSError):
        inside(network.namespace("aside"), say)


@pytest.mark.system
def test_a_bed_has_a_network(possible: None, tmp_path: Path) -> None:
    """Beside its links; a process is told each host's one address, its own too."""
    with Testbed(scenario(tmp_path), tmp_path) as bed:
        address = bed.port("device-2").address
        assert bed.address("device-1", "device-2") == bed.address("device-3", "device-2") == address
        assert bed.endpoint("device-1", "device-2", 80) == f"{address}:80"
        bed.start("listener")
        for number in (1, 2, 3):
            assert bed.part(f"listener-{number}").popen.wait(20) == 0
        said = (tmp_path / "listener-1.log").read_text().split()
        assert said == [address, address, f"{address}:80", bed.port("device-1").address]
        with pytest.raises(KeyError):
            bed.port("cloud")
        with pytest.raises(KeyError, match="no link joins"):
            bed.address("device-2", "cloud")
    assert not [name for name in os.listdir("/run/netns") if name.startswith(bed.prefix)]


def test_a_network_is_declared(tmp_path: Path) -> None:
    """By names or kinds of hosts; in_mb_s is as out_mb_s where nothing is said."""
    found = scenario(tmp_path)
    (lan,) = found.lans
    assert lan.hosts == ("device-1", "device-2", "device-3") and (lan.out_mb_s, lan.in_mb_s) == (2.0, 1.0)
    assert found.lan("device-3") is lan
    with pytest.raises(KeyError):
        found.lan("cloud")
    assert scenario(tmp_path, THREE.replace("in_mb_s = 1.0", "")).lans[0].in_mb_s == 2.0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('among = ["device"]', 'among = ["divice"]', "no host divice"),
        ('among = ["device"]', 'among = ["device-1"]', "two hosts or more"),
        ('among = ["device"]', 'among = ["device", "device-1"]', "once"),
        ('among = ["device"]', 'among = ["device", "cloud"]', "not by both"),
        ("[processes", '[lans.other]\namong = ["device-3", "cloud"]\n[processes', "in one local network"),
        ("out_mb_s = 2.0", "out_mb_s = -1", "out_mb_s"),
        ("out_mb_s = 2.0", "", "out_mb_s"),
    ],
)
def test_a_network_that_cannot_be_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    """The message says where and why."""
    if not new:
        assert scenario(tmp_path, THREE.replace(old, new)).lans[0].out_mb_s == 0.0  # Unlimited.
        return
    with pytest.raises(BadScenario, match=message):
        scenario(tmp_path, THREE.replace(old, new))


def test_a_host_has_one_port() -> None:
    """Networks that cannot be are known before anything is made."""
    two = (Lan("home", ("a", "b"), 1.0, 1.0), Lan("work", ("b", "c"), 1.0, 1.0))
    for links, lans in (((), two), ((link("b", "a", 1.0, 1.0),), two[:1]), ((), (Lan("home", ("a", "d"), 1.0, 1.0),))):
        with pytest.raises(ValueError):
            Network("none", ["a", "b", "c"], links, lans)


@pytest.mark.parametrize("count", [2, 4, 6])
def test_shipped(count: int) -> None:
    """Groups of two, four and six, with quotas and bandwidth that are given."""
    path = Path(str(scenarios.__file__)).parent / "scenarios" / f"lan_{count}.toml"
    found = load(path, {"cores": str(1.6 / count), "mb_s": "15.625"})
    assert len(found.lan("device-1").hosts) == count and found.cores_total == pytest.approx(1.6)
