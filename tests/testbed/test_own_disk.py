"""A host may have a disk of its own, which alone is slow, and which is gone with its bed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.testbed.bed import Testbed
from bench.testbed.leftovers import remove_bed
from bench.testbed.own_disk import FOLDER, disk_obstacle, make_disk, remove_disks
from bench.testbed.scenario import load

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("possible")]

MB_S, MB = 20, 40
SCENARIO = f"""
[hosts.slow]
disk_mb = 100
disk_mb_s = {MB_S}
[hosts.other]
[processes.keeper]
on = "slow"
command = "http.server 8000 --directory {{disk}}"
ready = "http://127.0.0.1:8000/file"
"""
READ = """
import mmap, os, sys, time
file, buffer = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 4 << 20)
began, done = time.perf_counter(), 0
while more := os.preadv(file, [buffer], done):
    done += more
print(done / (time.perf_counter() - began) / 1e6)
"""


@pytest.fixture(scope="module", autouse=True)
def has_loop_devices() -> None:
    """Skips where there can be no such disk."""
    if disk_obstacle():
        pytest.skip(disk_obstacle())


def speed(bed: Testbed, host: str, file: Path) -> float:
    """At which a host reads a file, 10^6 bytes a second, past all caches."""
    reading = bed.spawn(host, [sys.executable, "-c", READ, str(file)], stdout=subprocess.PIPE, text=True)
    said, _ = reading.communicate(timeout=60)
    return float(said)


def test_speed(tmp_path: Path) -> None:
    """Its host reads it at the rate that was asked for; what another host reads of it, and what this one reads
    elsewhere, is not held back."""
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    with Testbed(load(path), tmp_path / "logs") as bed:
        file = bed.disk("slow") / "file"
        file.write_bytes(os.urandom(MB * 10**6 // 2**20 * 2**20))
        os.sync()
        elsewhere = Path("/var/tmp") / f"{bed.prefix}-file"
        elsewhere.write_bytes(file.read_bytes())
        try:
            os.sync()
            assert MB_S * 0.8 < speed(bed, "slow", file) < MB_S * 1.4
            assert speed(bed, "other", file) > MB_S * 1.4
            assert speed(bed, "slow", elsewhere) > MB_S * 1.4
        finally:
            elsewhere.unlink()
        bed.start("keeper")  # It is ready once it serves the file, so it was told where the disk is.
        with pytest.raises(KeyError):
            bed.disk("other")
        mounted = bed.disk("slow")
    assert not mounted.exists() and not mounted.parent.exists()


def test_left_over(tmp_path: Path) -> None:
    """The disks of a bed that was killed are removed with all else of it; to remove them twice does no harm."""
    prefix = "tb9999998"
    disk = make_disk(prefix, "1", 20)
    (disk.path / "file").write_text("something")
    remove_bed(prefix)
    assert not (FOLDER / prefix).exists()
    remove_disks(prefix)
