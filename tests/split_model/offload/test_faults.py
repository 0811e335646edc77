"""Disks and files that fail: who uses a unit is told which and where, nothing wrong is computed, later uses go on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from processes import with_paths
from streamed_units import loading, units_of

from split_model.checkpoint import Checkpoint
from split_model.errors import BadCheckpoint
from split_model.offload.errors import DiskFull, ReadFailed
from split_model.offload.layout import Cut
from split_model.offload.loader import Loader
from split_model.offload.store import UnitStore
from split_model.offload.unit_file import HEAD_BYTES, write
from split_model.offload.units import Unit
from split_model.slices import whole
from split_model.stack import Span, Stack

UNITS = units_of(4)


@pytest.fixture
def checkpoint(tiny: Path) -> Checkpoint:
    return Checkpoint.open(tiny)


def run(stack: Stack) -> torch.Tensor:
    hidden = torch.randn(5, stack.spec.hidden_size, generator=torch.Generator().manual_seed(1))
    return stack.forward(hidden, [Span(stack.new_cache(5), 5)])


@pytest.fixture
def right(checkpoint: Checkpoint) -> torch.Tensor:
    return run(Stack.load(checkpoint, whole(checkpoint.spec), torch.float32))


def streamed(checkpoint: Checkpoint, loader: Loader) -> Stack:
    return Stack.load(checkpoint, whole(checkpoint.spec), torch.float32, loader=loader)


def file_of(cache: Path, unit: Unit) -> Path:
    [path] = cache.glob(f"*/{unit.layer}-{unit.half}-*.unit")
    return path


@pytest.mark.parametrize("left", [0, 4096, 5000, 10_000])
def test_a_file_cut_short_while_it_serves_fails_one_pass(
    left: int, checkpoint: Checkpoint, right: torch.Tensor, cache: Path
) -> None:
    """The error names unit and file; the next pass has the file made anew and is right."""
    with loading(checkpoint, UNITS, rings=1) as loader:
        stack = streamed(checkpoint, loader)
        assert torch.equal(run(stack), right)
        path = file_of(cache, Unit(2, "mlp"))
        os.truncate(path, left)
        with pytest.raises(ReadFailed, match="mlp of layer 2") as failed:
            run(stack)
        assert (failed.value.unit, failed.value.path) == (Unit(2, "mlp"), path)
        assert str(path) in str(failed.value)
        for _ in range(2):
            assert torch.equal(run(stack), right)


def test_files_that_are_removed_while_they_serve_are_read_on(
    checkpoint: Checkpoint, right: torch.Tensor, cache: Path
) -> None:
    """They are open; who opens them next makes them anew."""
    with loading(checkpoint, UNITS, rings=1) as loader:
        stack = streamed(checkpoint, loader)
        assert torch.equal(run(stack), right)
        for path in cache.glob("*/*.unit"):
            path.unlink()
        assert torch.equal(run(stack), right)
    with loading(checkpoint, UNITS, rings=1) as loader:
        assert torch.equal(run(streamed(checkpoint, loader)), right)


@pytest.mark.parametrize("harm", ["cut", "emptied", "other", "blocks lost", "head lost", "folder"])
def test_unsound_files_are_made_anew_when_they_are_opened(
    harm: str, checkpoint: Checkpoint, right: torch.Tensor, cache: Path
) -> None:
    """Whatever lies there under a unit's name."""
    UnitStore(checkpoint, torch.float32, lambda layer: Cut()).make(UNITS)
    path, other = file_of(cache, Unit(1, "mlp")), file_of(cache, Unit(2, "mlp"))
    size = path.stat().st_size
    if harm == "cut":
        os.truncate(path, size - 4096)
    elif harm == "emptied":
        path.write_bytes(b"")
    elif harm == "other":
        path.write_bytes(other.read_bytes())
    elif harm == "blocks lost":
        with open(path, "r+b") as file:
            file.seek(size - 4096)
            file.write(bytes(4096))
    elif harm == "head lost":
        with open(path, "r+b") as file:
            file.write(b"{" * 4096)
    else:
        path.unlink()
        path.symlink_to("/dev/zero")
    with loading(checkpoint, UNITS) as loader:
        assert torch.equal(run(streamed(checkpoint, loader)), right)
    assert path.stat().st_size == size


def test_what_another_process_left_half_done_is_removed(checkpoint: Checkpoint, cache: Path) -> None:
    """It was killed while it repacked."""
    UnitStore(checkpoint, torch.float32, lambda layer: Cut()).make(UNITS[:1])
    [folder] = cache.iterdir()
    (folder / ".left.part").write_bytes(b"half")
    UnitStore(checkpoint, torch.float32, lambda layer: Cut()).make(UNITS[:2])
    assert sorted(path.suffix for path in folder.iterdir()) == ["", ".unit", ".unit"]


def test_two_processes_at_once_make_each_file_once(checkpoint: Checkpoint, right: torch.Tensor, cache: Path) -> None:
    """Both go on with the same sound files, and nothing is left beside them."""
    code = (
        "import sys, torch\n"
        "from split_model.checkpoint import Checkpoint\n"
        "from split_model.offload.layout import Cut\n"
        "from split_model.offload.store import UnitStore\n"
        "from streamed_units import units_of\n"
        "store = UnitStore(Checkpoint.open(sys.argv[1]), torch.float32, lambda layer: Cut())\n"
        "made = []\n"
        "store.make(units_of(4), lambda done, of: made.append(done))\n"
        "print(max(made, default=0))\n"
    )
    command = [sys.executable, "-c", code, str(checkpoint.path)]
    with ExitStack() as running:
        both = [
            running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=with_paths()))
            for _ in range(2)
        ]
        said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    made = [int(each) for each in said]
    assert min(made) == 0 < max(made)
    assert len(list(cache.glob("*/*.unit"))) == len(UNITS) and not list(cache.glob("*/.*.part"))
    with loading(checkpoint, UNITS) as loader:
        assert torch.equal(run(streamed(checkpoint, loader)), right)


def test_a_head_that_is_too_long_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """With nothing left: a file whose head runs into its weights is never there."""
    with pytest.raises(BadCheckpoint, match="too long a head"):
        write(tmp_path / "some.unit", {"of": "x" * HEAD_BYTES}, checkpoint, [], torch.float32)
    assert not list(tmp_path.glob("*.unit")) and not list(tmp_path.glob(".*.part"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB in memory."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = os.geteuid() == 0 and not subprocess.call(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], stderr=subprocess.DEVNULL
    )
    if not mounted:
        pytest.skip("only root can mount a disk of that size")
    yield folder
    subprocess.check_call(["umount", folder])


def test_a_full_disk_is_said_and_nothing_is_left(
    checkpoint: Checkpoint, right: torch.Tensor, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path and how much is missing; what has room is still made, and read without going past the page cache where
    the file system refuses that."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    with pytest.raises(DiskFull, match="bytes more must be free") as full:
        Loader.open(checkpoint, UNITS, torch.float32, 1 << 20)
    assert full.value.missing > 0 and small_disk in full.value.path.parents
    assert [path.name for path in small_disk.rglob("*") if path.is_file()] == [".lock"]
    with loading(checkpoint, UNITS[:1]) as loader:
        assert torch.equal(run(streamed(checkpoint, loader)), right)


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A disk of which a part can be taken away: its folder, and the file that it is made of."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    image.touch()
    os.truncate(image, 32 << 20)
    if os.geteuid() or subprocess.call(["mkfs.ext4", "-q", image], stderr=subprocess.DEVNULL):
        pytest.skip("only root can make a disk of a file")
    if subprocess.call(["mount", "-o", "loop", image, folder], stderr=subprocess.DEVNULL):
        pytest.skip("there is no loop device here")
    yield folder, image
    subprocess.check_call(["umount", folder])


def test_a_disk_that_reports_errors_fails_the_pass_with_the_file(
    checkpoint: Checkpoint, failing_disk: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, right: torch.Tensor
) -> None:
    """The kernel says EIO for each read; nothing is computed of what was in the buffers before."""
    folder, image = failing_disk
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    with loading(checkpoint, UNITS, rings=1) as loader:
        stack = streamed(checkpoint, loader)
        assert torch.equal(run(stack), right)
        assert loader._store.direct
        os.truncate(image, 1 << 20)
        for _ in range(2):
            with pytest.raises(ReadFailed, match=r"layer \d cannot be read from .*unit: Input/output error") as failed:
                run(stack)
            assert folder in failed.value.path.parents
