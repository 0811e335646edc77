"""What the testbed's tests share: whether there can be one, and a small one that needs no model."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.testbed.possible import obstacle

SMALL = """
[hosts.near]
cores = 0.3
memory_mb = 100
[hosts.far]
[hosts.aside]
cores = 0.5
disk_mb_s = 5
[links.way]
between = ["near", "far"]
up_mb_s = 2.0
down_mb_s = 1.0
[links.late]
between = ["aside", "far"]
delay_ms = 20
[processes.server]
on = "far"
command = "http.server 8000 --bind {bind} --directory {folder}"
ready = "http://127.0.0.1:8000/hello"
ready_text = "he[l]+o"
[processes.family]
on = "near"
command = "/bin/sh -c 'sleep 1000 & exec sleep 1000'"
[processes.stubborn]
on = "near"
command = "/bin/sh -c 'trap \\"\\" TERM; sleep 1000 & while :; do wait; done'"
[processes.spinning]
on = "near"
command = "/bin/sh -c 'while :; do :; done & while :; do :; done & exec sleep 1000'"
[processes.broken]
on = "near"
command = "no_such_module_at_all"
ready = "http://127.0.0.1:1/"
[processes.unready]
on = "aside"
command = "/bin/sleep 1000"
ready = "http://{endpoint:far:8000}/hello"
ready_text = "never said by {self}"
[processes.lost]
on = "near"
command = "/bin/sleep {address:aside}"
"""


@pytest.fixture(scope="session")
def possible() -> None:
    """Skips the test where there can be no testbed."""
    if obstacle():
        pytest.skip(f"no testbed here: {obstacle()}")


@pytest.fixture(scope="session")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scenario of three hosts, two links and parts of all tempers, and what its server says."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "hello").write_text("hello")
    path = folder / "small.toml"
    path.write_text(SMALL.replace("{folder}", str(folder)))
    return path
