"""What is said of this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.doctor import machine
from service.doctor.finding import Finding, Say
from service.doctor.listeners import listening_inodes
from service.doctor.place import Place, place_of


def found_by(look: Callable[[Say], object]) -> list[Finding]:
    """What a check finds."""
    found: list[Finding] = []
    look(found.append)
    return found


def test_python_and_its_packages() -> None:
    """Of the environment that runs the tests none is missing or too old."""
    interpreter, *packages = found_by(machine.python)
    assert interpreter.status == "ok" and "cores" in interpreter.seen
    assert packages and all(each.status != "fail" for each in packages), packages


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said with what to do."""
    monkeypatch.setattr(machine, "LEAST_PYTHON", (99, 0))
    assert found_by(machine.python)[0].status == "fail"


@pytest.mark.parametrize(("free", "status"), [(10 * 2**30, "ok"), (2**29, "warn")])
def test_memory(free: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free beside what there is."""
    monkeypatch.setattr(machine, "free_host_bytes", lambda: free)
    [found] = found_by(machine.memory)
    assert found.status == status and found.figures["free_bytes"] == free


@pytest.mark.parametrize(("free", "status"), [(10**11, "ok"), (10**9, "warn"), (10**7, "fail")])
def test_disk(free: int, status: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where Trilby and the hub keep files, which may not be there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    own, hub = found_by(machine.disk)
    assert own.status == hub.status == status
    assert str(tmp_path / "trilby") in own.seen and str(tmp_path / "huggingface") in hub.seen


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As another user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    assert [each.status for each in found_by(machine.disk)] == ["warn", "warn"]


def test_a_folder_that_cannot_be_looked_into(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As another user's home that is still this one's HOME: a finding, not a mistake."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "theirs"))
    look, access = os.stat, os.access

    def stat(path: str | Path, **more: object) -> os.stat_result:
        if "theirs" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != tmp_path and access(folder, mode))
    assert [each.status for each in found_by(machine.disk)] == ["warn", "warn"]


def test_this_machines_clock() -> None:
    """The one that runs tests has one that goes."""
    assert found_by(machine.clock)[0].status == "ok"


TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000 100 0 0 10 0
   1: 0100007F:1F40 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000 20 4 30 10 -1
   2: 0100007F:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0000 100 0 0 10 0
a line that is cut
"""


def test_who_listens_by_the_kernels_table() -> None:
    """Those that listen on the port, not those that are connected there."""
    assert listening_inodes(TABLE, 8000) == {"4711"} and listening_inodes(TABLE, 80) == set()


def test_places() -> None:
    """As devices and clients write them; no secret is taken in a URL, and none is said again."""
    assert place_of("--cloud", "ws://cloud:8001") == Place("cloud", 8001)
    assert place_of("--gateway", "https://gate.example/trilby/v1/") == Place("gate.example", 443, True, "/trilby")
    place = place_of("--gateway", "wss://[fd00::1]:8000")
    assert (place.websocket, place.http) == ("wss://[fd00::1]:8000", "https://[fd00::1]:8000")
    for bad in ("cloud:8001", "10.0.0.1:8001", "ws://", "ws://host:port", "ftp://host", "ws://[::1"):
        with pytest.raises(ValueError, match="--cloud is ws://HOST:PORT"):
            place_of("--cloud", bad)
    with pytest.raises(ValueError) as refused:
        place_of("--cloud", "ws://user:sesame@host:1")
    assert "sesame" not in str(refused.value)
