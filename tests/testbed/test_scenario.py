"""Scenarios: what a file declares is what there is, and what cannot be is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.testbed import scenario as scenarios
from bench.testbed.scenario import BadScenario, Scenario, load

WHOLE = """
about = "about {what}"
[hosts.cloud]
cores = 0.8
memory_mb = 1500
[hosts.device]
count = 3
modes = [0.2, 0.4]
disk_mb_s = 80
[links.wan]
between = ["device", "cloud"]
up_mb_s = "{up}"
down_mb_s = 2
delay_ms = 10
jitter_ms = 1.5
vary = [0.5, 1.5]
vary_down = [0.8, 1.2]
vary_s = 5
[links.peers]
between = ["device", "device"]
trace = "traces/{what}.csv"
trace_scale = 0.5
trace_from_s = 7
[processes.server]
on = "cloud"
command = "cloud_server --port 8001 {flags} --host {bind}"
ready = "http://127.0.0.1:8001/health"
ready_text = "o{1}k"
environment = { TOKEN = "{what}-{self}" }
[processes.agent]
on = "device"
command = "/bin/agent --cloud {endpoint:cloud:8001}"
[processes.only]
on = "device-2"
command = "more"
"""


@pytest.fixture
def whole(tmp_path: Path) -> Scenario:
    """A scenario with all there is."""
    return read(tmp_path, WHOLE)


def read(folder: Path, text: str) -> Scenario:
    """The scenario of a text, with two variables."""
    path = folder / "whole.toml"
    path.write_text(text)
    return load(path, {"what": "it", "up": "0.25", "flags": "--mode hat"})


def test_hosts(whole: Scenario) -> None:
    """A count makes so many hosts of one kind; a host begins in its first mode; the total is of the largest quotas."""
    assert [(each.name, each.kind, each.number) for each in whole.hosts] == [
        ("cloud", "cloud", 1), ("device-1", "device", 1), ("device-2", "device", 2), ("device-3", "device", 3),
    ]  # fmt: skip
    cloud, device = whole.host("cloud"), whole.host("device-1")
    assert (cloud.cores, cloud.modes, cloud.memory_mb, cloud.disk_mb_s) == (0.8, (), 1500, 0.0)
    assert (device.cores, device.modes, device.memory_mb, device.disk_mb_s) == (0.2, (0.2, 0.4), 0, 80.0)
    assert whole.cores_total == pytest.approx(0.8 + 3 * 0.4)
    assert whole.hosts_of("device") == whole.hosts[1:] and whole.hosts_of("device-2") == (whole.hosts[2],)
    assert (whole.name, whole.about) == ("whole", "about it")


def test_links(whole: Scenario, tmp_path: Path) -> None:
    """A link for each pair, found in either order, its direction as declared; a number may be given by a variable."""
    wan = whole.link("cloud", "device-2")
    assert (wan.a, wan.b, wan.kind) == ("device-2", "cloud", "wan")
    assert (wan.up_mb_s, wan.down_mb_s, wan.delay_ms, wan.jitter_ms) == (0.25, 2.0, 10.0, 1.5)
    assert (wan.vary, wan.vary_s, wan.trace, wan.relayed) == (((0.5, 1.5), (0.8, 1.2)), 5.0, "", True)
    peers = [(each.a, each.b) for each in whole.links if each.kind == "peers"]
    assert peers == [("device-1", "device-2"), ("device-1", "device-3"), ("device-2", "device-3")]
    one = whole.link("device-3", "device-1")
    assert one.trace == str(tmp_path / "traces" / "it.csv")
    assert (one.trace_scale, one.trace_from_s) == ((0.5, 0.5), 7.0)
    assert not one.relayed and one.vary is None
    assert len(whole.links) == 6


def test_processes(whole: Scenario) -> None:
    """A process on a kind is one on each of its hosts; variables are filled now, what hosts say of themselves later."""
    (server,) = whole.parts_of("server")
    assert server.command == "cloud_server --port 8001 --mode hat --host {bind}"
    assert (server.ready, server.ready_text) == ("http://127.0.0.1:8001/health", "o{1}k")
    assert server.environment == {"TOKEN": "it-{self}"}
    agents = whole.parts_of("agent")
    assert [(each.name, each.on) for each in agents] == [(f"agent-{n}", f"device-{n}") for n in (1, 2, 3)]
    assert whole.parts_of("agent-3") == agents[2:]
    (only,) = whole.parts_of("only")
    assert (only.name, only.on) == ("only", "device-2")


def test_unknown_names(whole: Scenario) -> None:
    """What is not there is a KeyError."""
    for ask in (whole.host, whole.hosts_of, whole.parts_of):
        with pytest.raises(KeyError):
            ask("nobody")
    with pytest.raises(KeyError, match="no link joins cloud and cloud"):
        whole.link("cloud", "cloud")


BAD = {
    "TOML": ("[hosts", "is not TOML"),
    "a key nobody knows": ("[hosts.a]\ncpus = 1", r"\[hosts.a\]: .*unknown field `cpus`"),
    "a table nobody knows": ("[hosts.a]\n[link.b]", "unknown field `link`"),
    "no hosts": ("", "1 to 200 hosts"),
    "too many hosts": ("[hosts.a]\ncount = 201", "count: .* <= 200"),
    "half a host": ("[hosts.a]\ncount = 1.5", "count: Expected `int`"),
    "a host twice": ("[hosts.a]\ncount = 2\n[hosts.a-1]", "its own name"),
    "a name with a space": ('[hosts."a b"]', "a name is of"),
    "a negative quota": ("[hosts.a]\ncores = -1", "cores: .* >= 0"),
    "a quota too small": ("[hosts.a]\ncores = 0.0001", "at least 0.001"),
    "a quota that is no number": ("[hosts.a]\ncores = nan", "cores: "),
    "a quota that is true": ("[hosts.a]\ncores = true", "cores: "),
    "a quota in words": ('[hosts.a]\ncores = "half"', "cores: "),
    "a quota nobody gave": ('[hosts.a]\ncores = "{half}"', "nothing was given for {half}"),
    "an unknown end": ('[hosts.a]\n[links.l]\nbetween = ["a", "b"]', r"\[links.l\]: between: there is no host b"),
    "one end": ('[hosts.a]\n[links.l]\nbetween = ["a"]', "between: .*length 2"),
    "a link to itself": ('[hosts.a]\n[links.l]\nbetween = ["a", "a"]', "joins two hosts"),
    "joined twice": (
        '[hosts.a]\n[hosts.b]\n[links.l]\nbetween = ["a", "b"]\n[links.m]\nbetween = ["b", "a"]', "joined by one link",
    ),
    "vary without vary_s": ('[hosts.a]\n[hosts.b]\n[links.l]\nbetween = ["a", "b"]\nvary = [1, 2]', "with vary_s"),
    "vary upside down": ('[hosts.a]\n[hosts.b]\n[links.l]\nbetween = ["a", "b"]\nvary = [2, 1]\nvary_s = 1', "least"),
    "vary of one way": (
        '[hosts.a]\n[hosts.b]\n[links.l]\nbetween = ["a", "b"]\nvary_down = [1, 2]\nvary_s = 1', "least",
    ),
    "a process nowhere": ('[hosts.a]\n[processes.p]\non = "b"\ncommand = "x"', "on: there is no host b"),
    "a process without a command": ('[hosts.a]\n[processes.p]\non = "a"', "missing required field `command`"),
    "an empty command": ('[hosts.a]\n[processes.p]\non = "a"\ncommand = " "', "command: "),
    "an open quote": ("[hosts.a]\n[processes.p]\non = 'a'\ncommand = 'x \"y'", "cannot be split"),
    "a URL of another kind": ('[hosts.a]\n[processes.p]\non = "a"\ncommand = "x"\nready = "ftp://"', "http://"),
    "a text without a URL": ('[hosts.a]\n[processes.p]\non = "a"\ncommand = "x"\nready_text = "y"', "not there"),
    "a text that is no expression": (
        '[hosts.a]\n[processes.p]\non = "a"\ncommand = "x"\nready = "http://b/"\nready_text = "("', "no regular",
    ),
    "a table that is none": ("hosts = 1", "hosts: Expected `object`"),
    "a host that is no table": ("[hosts]\na = 1", r"\[hosts.a\]: Expected `object`"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str, tmp_path: Path) -> None:
    """The message says the file, the place, and what is allowed."""
    text, message = BAD[name]
    with pytest.raises(BadScenario, match=message) as refused:
        read(tmp_path, text)
    assert str(refused.value).startswith(str(tmp_path / "whole.toml"))


def test_the_example(tmp_path: Path) -> None:
    """The example of the documentation is a scenario."""
    lines = (scenarios.__doc__ or "").splitlines()
    path = tmp_path / "example.toml"
    path.write_text("\n".join(line[4:] for line in lines if line.startswith("    ")))
    assert len(load(path, {"down": "2.5"}).processes) == 3


def test_shipped() -> None:
    """The smoke scenario needs no variables, and its quotas fit two cores."""
    smoke = load(Path(str(scenarios.__file__)).parent / "scenarios" / "smoke.toml")
    assert len(smoke.hosts_of("device")) == 2 and 0 < smoke.cores_total <= 2.0
