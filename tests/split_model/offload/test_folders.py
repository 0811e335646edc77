"""Folders of repacked units: no wait without an end, and none that is used is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from processes import with_paths
from streamed_units import loading, units_of

from split_model.checkpoint import Checkpoint
from split_model.offload import folders
from split_model.offload.errors import FolderBusy, ReadFailed
from split_model.offload.folders import Hold, make_room
from split_model.offload.layout import Cut
from split_model.offload.store import UnitStore
from split_model.offload.units import Unit

UNITS = units_of(1)
NAMES = [f"{number:024x}-float32" for number in range(4)]


@pytest.fixture
def store(tiny: Path) -> UnitStore:
    return UnitStore(Checkpoint.open(tiny), torch.float32, lambda layer: Cut())


@contextmanager
def another(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it is ready, and goes on until it is killed."""
    program = f"import sys\n{code}\nprint('ready', flush=True)\nsys.stdin.read()"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=with_paths()) as process:  # type: ignore[call-overload]
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


LOCKS = "import fcntl\nfile = open(sys.argv[1], 'wb')\nfcntl.flock(file, fcntl.LOCK_EX)"


def test_who_waits_for_a_process_that_makes_nothing_is_told_which_file_it_has(
    store: UnitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked meanwhile whether it still wants to wait; and once the other is gone all goes on."""
    monkeypatch.setattr(folders, "SILENT_S", 0.3)
    folder = store.path(UNITS[0]).parent
    folder.mkdir(parents=True)
    asked: list[int] = []
    with another(LOCKS, folder / ".lock"):
        with pytest.raises(FolderBusy, match=f"{folder}/.lock locked") as busy:
            store.make(UNITS, lambda done, of: asked.append(done))
        assert busy.value.path == folder / ".lock" and asked and not any(asked)
        monkeypatch.setattr(folders, "SILENT_S", 60.0)

        def no_more(done: int, of: int) -> None:
            raise InterruptedError("no more")

        with pytest.raises(ReadFailed, match="layer 0"):
            store.make(UNITS, no_more)
    store.make(UNITS)
    assert store.path(UNITS[0]).exists()


def test_who_waits_for_a_process_that_goes_on_waits(store: UnitStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, as long as its files grow."""
    monkeypatch.setattr(folders, "SILENT_S", 0.3)
    folder = store.path(UNITS[0]).parent
    folder.mkdir(parents=True)
    seen: list[int] = []
    with another(LOCKS, folder / ".lock") as other:

        def grows(done: int, of: int) -> None:
            seen.append(done)
            (folder / ".other.part").write_bytes(b"x" * len(seen))
            if len(seen) > 12:  # Twice as long as a silent one is waited for.
                other.kill()

        store.make(UNITS, grows)
    assert len(seen) > 12 and store.path(UNITS[0]).exists()


def make_folders(root: Path, names: list[str]) -> list[Path]:
    """With 1000 bytes each, the first not used for longest."""
    found = []
    for number, name in enumerate(names):
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "0-mlp-x.unit").write_bytes(bytes(1000))
        os.utime(folder, (number + 1, number + 1))
        found.append(folder)
    return found


def test_what_was_not_used_for_longest_goes_first_and_nothing_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process holds the oldest. Removed is no more than has to be, of nothing but such folders; what a killed
    process was removing goes too."""
    monkeypatch.setattr(folders, "LEAST_FREE", 0.0)
    root = tmp_path / "units"
    held, second, third, own = make_folders(root, NAMES)
    foreign, left = root / "notes", root / f".{NAMES[0]}-1.gone"
    for each in (foreign, left):
        each.mkdir()
    code = "from pathlib import Path\nfrom split_model.offload.folders import Hold\nhold = Hold(Path(sys.argv[1]))"
    with another(code, held):
        os.utime(held, (0, 0))
        monkeypatch.setattr(folders, "MOST_BYTES", 4500)
        make_room(own, 500)
        assert all(each.exists() for each in (held, second, third, own, foreign)) and not left.exists()
        make_room(own, 501)
        assert [each.exists() for each in (held, second, third, own)] == [True, False, True, True]
        make_room(own, 10_000)
        assert [each.exists() for each in (held, second, third, own)] == [True, False, False, True]
    make_room(own, 10_000)
    assert sorted(root.iterdir()) == [own, foreign]


def test_where_a_disk_is_nearly_full_other_models_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little all of them take."""
    *others, own = make_folders(tmp_path / "units", NAMES)
    monkeypatch.setattr(folders, "LEAST_FREE", 0.0)
    make_room(own, 1)
    assert all(each.exists() for each in others)
    monkeypatch.setattr(folders, "LEAST_FREE", 1.0)
    make_room(own, 1)
    assert not any(each.exists() for each in others) and own.exists()


def test_files_are_safe_from_when_they_are_made_until_the_loader_is_closed(
    tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another model is repacked meanwhile, on a disk that counts as full."""
    monkeypatch.setattr(folders, "LEAST_FREE", 1.0)
    [other] = make_folders(cache, NAMES[:1])
    with loading(Checkpoint.open(tiny), UNITS) as loader:
        own = loader._store.path(Unit(0, "mlp")).parent
        assert own.exists() and not other.exists()
        make_room(other, 1)
        assert own.exists()
    make_room(other, 1)
    assert not own.exists()


def test_a_folder_that_is_removed_while_somebody_opens_it_is_made_again(tmp_path: Path) -> None:
    """Who holds it has the one that is there."""
    [folder, own] = make_folders(tmp_path, NAMES[:2])
    hold = Hold(folder)
    hold.close()
    hold.close()
    make_room(own, folders.MOST_BYTES)
    assert not folder.exists()
    hold = Hold(folder)
    make_room(own, folders.MOST_BYTES)
    assert folder.exists()
    hold.close()
