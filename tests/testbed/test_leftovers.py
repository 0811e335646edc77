"""What a killed testbed leaves behind is found and removed, whoever looks, and what belongs to a live one is not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.testbed import leftovers
from bench.testbed.hierarchy import this_hierarchy
from bench.testbed.leaf import pids_in
from processes import ROOT

WITHIN_S = 60.0

OWNER = """
import sys
from pathlib import Path
from bench.testbed.bed import Testbed
from bench.testbed.scenario import load

with Testbed(load(Path(sys.argv[1])), Path(sys.argv[2])) as bed:
    bed.start("server", "family")
    bed.endpoint("aside", "far", 8000)
    print(bed.prefix, flush=True)
    sys.stdin.read()
"""


class Owner:
    """A process with a small bed, and what is there of the bed."""

    def __init__(self, scenario: Path, folder: Path) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(scenario), str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.prefix = self.process.stdout.readline().strip()
        assert self.prefix == leftovers.prefix_of(self.process.pid)

    def pids(self) -> list[int]:
        """The processes on its hosts."""
        return [pid for cgroup in self.cgroups() for path in cgroup.rglob("program-*") for pid in pids_in(path)]

    def cgroups(self) -> list[Path]:
        """Its cgroups, of all controllers."""
        return this_hierarchy().find(re.compile(self.prefix))

    def names(self) -> list[str]:
        """Its namespaces, interfaces outside them, its file, and programs that have it on their command line."""
        folders = [leftovers.NAMESPACES, leftovers.INTERFACES, leftovers.STATES]
        found = [str(each) for folder in folders for each in folder.glob(f"{self.prefix}*")]
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = each.read_bytes().decode(errors="replace")
            except OSError:
                continue
            if self.prefix in words:
                found.append(words)
        return found

    def end(self) -> int:
        """Let it end as it should, where it runs; its exit status."""
        self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait, but not for ever."""
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.mark.system
@pytest.mark.usefixtures("possible")
def test_kill(small_file: Path, tmp_path: Path) -> None:
    """kill -9 of an owner ends its parts and what they have started; whoever cleans removes the rest, and leaves the
    neighbour alone."""
    killed, neighbour = Owner(small_file, tmp_path / "killed"), Owner(small_file, tmp_path / "neighbour")
    try:
        wait_until(lambda: len(neighbour.pids()) == len(killed.pids()) == 3)
        parts = neighbour.pids()
        killed.process.kill()
        killed.end()
        wait_until(lambda: not killed.pids())
        assert killed.cgroups() and killed.names()
        assert killed.prefix in leftovers.clean()
        assert not killed.cgroups()
        wait_until(lambda: not killed.names())
        assert neighbour.pids() == parts and neighbour.names()
        assert neighbour.end() == 0
        assert not neighbour.cgroups() and not neighbour.names()
    finally:
        for each in (killed, neighbour):
            each.process.kill()
            each.process.wait()


def test_whose(tmp_path: Path) -> None:
    """A bed is owned while the very process runs that noted it, not another with its number."""
    sleeping = subprocess.Popen(["sleep", "1000"])
    try:
        prefix = leftovers.prefix_of(sleeping.pid)
        file = tmp_path / f"{prefix}.json"
        assert leftovers.owned(prefix, tmp_path)  # Without a file nobody can know better.
        file.write_text(json.dumps({"pid": sleeping.pid, "begun": leftovers.begun(sleeping.pid)}))
        assert leftovers.owned(prefix, tmp_path)
        file.write_text(json.dumps({"pid": sleeping.pid, "begun": leftovers.begun(os.getpid())}))
        assert not leftovers.owned(prefix, tmp_path)
        file.write_text("cut o")
        assert leftovers.owned(prefix, tmp_path)
    finally:
        sleeping.kill()
        wait_until(lambda: not leftovers.begun(sleeping.pid))  # It is dead before anybody has waited for it.
        sleeping.wait()
    assert not leftovers.owned(prefix, tmp_path)


def test_own(tmp_path: Path) -> None:
    """A process claims once; what has its number but no file is from before its time."""
    prefix = leftovers.prefix_of(os.getpid())
    assert not leftovers.owned(prefix, tmp_path)
    assert leftovers.claim(tmp_path) == prefix and leftovers.owned(prefix, tmp_path)
    with pytest.raises(RuntimeError, match="one at a time"):
        leftovers.claim(tmp_path)
    leftovers.release(prefix, tmp_path)
    assert not leftovers.owned(prefix, tmp_path)


def test_prefixes() -> None:
    """No prefix is the beginning of another, and all leave room in the 15 characters of an interface's name."""
    prefixes = [leftovers.prefix_of(pid) for pid in (1, 12, 123, 4_194_304)]
    assert all(leftovers.NAME.fullmatch(f"{each}-12") for each in prefixes)
    assert {len(each) for each in prefixes} == {9}
