"""Links are as fast as they are told, both ways and each for itself, and a network goes without a trace."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest
from bench.testbed.iproute import NetworkError, run
from bench.testbed.network import Network, remove_network
from bench.testbed.shaping import HEADER_BYTES, IP_TCP_BYTES, PACKETS, bucket, packet_bytes
from network_flows import flow, link

PREFIX = f"try-net-{os.getpid()}"

TRIES = 2


@pytest.fixture
def prefix(possible: None) -> Iterator[str]:
    """What the names of a test's namespaces begin with."""
    yield PREFIX
    remove_network(PREFIX)


def names() -> set[str]:
    """The namespaces of these tests."""
    return {name for name in os.listdir("/run/netns") if name.startswith(PREFIX)}


@pytest.mark.slow
@pytest.mark.system
def test_a_way_takes_what_it_is_told(prefix: str) -> None:
    """Within 5 %, up and down, slow and fast; a short message is not held up, and not much too early; bytes are counted
    to the last."""
    hosts = ["device", "cloud", "gateway"]
    links = [
        link("device", "cloud", 1.0, 5.0),
        link("cloud", "gateway", 20.0, 0.3),
        link("device", "gateway", 0.0, 0.0),
    ]
    network = Network.make(prefix, hosts, links)
    ways = [("device", "cloud", 1.0), ("cloud", "device", 5.0), ("cloud", "gateway", 20.0), ("gateway", "cloud", 0.3)]
    for sender, receiver, mb_s in ways:
        with flow(network, sender, receiver) as way:
            for size in (100_000, 250_000 if mb_s < 0.5 else 500_000):
                own_s = size / (mb_s * 1e6)
                assert abs(way.seconds(size, TRIES) - own_s) < 0.05 * own_s + 0.0005, (sender, size)
            own_s = 600 / (mb_s * 1e6)
            assert own_s - 0.001 < way.seconds(600, 10) < own_s + 0.001
    with flow(network, "device", "gateway") as way:
        assert way.seconds(5_000_000, 3) < 0.1
    exact = TRIES * 600_000 + 10 * 600 + (2 * TRIES + 10) * 32
    for counted in network.link("device", "cloud").bytes():
        assert exact <= counted < 1.01 * exact  # What was sent twice counts twice.
    assert network.link("device", "cloud").dropped() == network.link("cloud", "gateway").dropped() == 0


@pytest.mark.slow
@pytest.mark.system
def test_traffic_the_other_way_and_on_other_links_takes_nothing(prefix: str) -> None:
    """Acknowledgements of a fast way leave a slow one as it is, and links that share a host share nothing else."""
    links = [link("one", "cloud", 0.3, 5.0), link("two", "cloud", 1.0, 0.0)]
    network = Network.make(prefix, ["one", "two", "cloud"], links)
    with flow(network, "one", "cloud") as up, flow(network, "two", "cloud", 5001) as other:
        up.give(120_000)
        other.give(400_000)
        assert up.took() < 1.1 * 0.4 and other.took() < 1.1 * 0.4
    with flow(network, "one", "cloud") as up, flow(network, "cloud", "one") as down:
        down.give(4_000_000)
        up.give(200_000)
        assert up.took() < 1.1 * 200_000 / 0.3e6 and down.took() < 1.1 * 0.8


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize(("first", "second"), [(0.4, 4.0), (4.0, 0.4), (0.0, 1.0), (1.0, 0.0)])
def test_a_bandwidth_changes_in_the_middle_of_a_message(prefix: str, first: float, second: float) -> None:
    """What is left takes the new time, nothing is lost, and the next message is exact again."""
    network = Network.make(prefix, ["device", "cloud"], [link("device", "cloud", first, 1.0)])
    way = network.link("device", "cloud")
    with flow(network, "device", "cloud") as sending:
        sending.give(400_000)
        if first:
            time.sleep(200_000 / (first * 1e6))
        way.set(second, 1.0)
        left, changed = 400_000 - way.bytes()[0], time.monotonic()
        assert sending.took() > 0.0
        rest_s = max(0, left) / (second * 1e6) if second else 0.0
        assert abs(time.monotonic() - changed - rest_s) < 0.1 * rest_s + 0.1
        own_s = 200_000 / (second * 1e6) if second else 0.0
        assert abs(sending.seconds(200_000, 3) - own_s) < 0.05 * own_s + 0.003
    assert way.dropped() == 0
    shown = json.loads(run(["tc", "-n", network.namespace("device"), "-j", "qdisc", "show", "dev", "l0"]))
    held = next(each["options"]["burst"] for each in shown if each["kind"] == "tbf")
    assert held <= int(bucket(second, packet_bytes(second), packet_bytes(second)).split()[3])


@pytest.mark.system
def test_many_hosts_and_links_are_made_in_a_moment_and_go_without_a_trace(prefix: str) -> None:
    """8 hosts, 14 links, in seconds on a busy machine too; afterwards no namespace is left, however often it is
    removed, and others stay."""
    hosts = ["cloud", "gateway", *(f"device-{number}" for number in range(1, 7))]
    links = [link(host, end, 1.0, 4.0) for host in hosts[2:] for end in ("cloud", "gateway")]
    links += [link("cloud", "gateway", 0.0, 0.0), link("device-1", "device-2", 2.0, 2.0)]
    other = Network.make(f"{prefix}x", ["alone"], [])
    began = time.monotonic()
    network = Network.make(prefix, hosts, links)
    assert time.monotonic() - began < 20.0
    assert len(names()) == len(hosts) + 1 + 2
    assert network.namespace("cloud") == f"{prefix}-1" and network.address("cloud", "cloud") == "127.0.0.1"
    addresses = [network.address(a, b) for each in links for a, b in ((each.a, each.b), (each.b, each.a))]
    assert len(set(addresses)) == len(addresses) and all(each.startswith("10.231.") for each in addresses)
    with flow(network, "device-6", "gateway") as way:
        assert way.seconds(1000) < 1.0
    began = time.monotonic()
    network.close()
    network.close()
    assert time.monotonic() - began < 20.0
    assert names() == {f"{prefix}x-1", f"{prefix}x-sw"}
    with pytest.raises(NetworkError, match="tc -n"):
        network.link("device-1", "cloud").bytes()
    other.close()
    assert not names()


@pytest.mark.system
def test_a_network_that_cannot_be_made_leaves_nothing(prefix: str) -> None:
    """A second of the same name fails, and nothing called so is left; a wrong rate is known before anything is."""
    with pytest.raises(ValueError, match="no bandwidth"):
        Network.make(prefix, ["a", "b"], [link("a", "b", -1.0, 0.0)])
    assert not names()
    run(["ip", "netns", "add", f"{prefix}-2"])
    with pytest.raises(NetworkError, match="File exists"):
        Network.make(prefix, ["a", "b"], [])
    assert not names()


def test_only_hosts_and_links_that_are_there_are_named() -> None:
    """Everything else is a ValueError that says what there is, before anything is made."""
    network = Network("none", ["a", "b", "c"], [link("a", "b", 1.0, 1.0)])
    assert (network.address("a", "b"), network.address("b", "a")) == ("10.231.0.2", "10.231.0.1")
    for wrong in (
        lambda: network.namespace("d"),
        lambda: network.address("a", "c"),
        lambda: network.address("d", "d"),
        lambda: network.link("b", "a"),
        lambda: Network("none", ["a"], [link("a", "b", 1.0, 1.0)]),
        lambda: Network("none", ["a"], [link("a", "a", 1.0, 1.0)]),
        lambda: Network("none", ["a", "b"], [link("a", "b", 1.0, 1.0), link("b", "a", 1.0, 1.0)]),
    ):
        with pytest.raises(ValueError):
            wrong()


@pytest.mark.parametrize("mb_s", [0.01, 0.3, 0.75, 1.0, 5.0, 20.0, 1000.0, 0.0])
def test_a_bucket_holds_a_packet_and_little_more(mb_s: float) -> None:
    """Its rate is that of content with headers added; what it lets through at once is a packet and 0.2 ms."""
    packet = packet_bytes(mb_s)
    words = bucket(mb_s, packet, packet).split()
    rate, burst = int(words[1].removesuffix("bit")) / 8, int(words[3])
    content = packet - IP_TCP_BYTES
    assert rate * content / (content + HEADER_BYTES) == pytest.approx((mb_s or 4000.0) * 1e6, rel=1e-4)
    assert content + HEADER_BYTES <= burst <= content + HEADER_BYTES + 0.0002 * rate + 1
    assert packet in {size for _, size in PACKETS}
    assert int(bucket(mb_s, packet, 16000).split()[3]) >= 16000 + HEADER_BYTES - IP_TCP_BYTES
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="no bandwidth"):
            bucket(wrong, packet, packet)
