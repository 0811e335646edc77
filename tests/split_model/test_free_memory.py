"""Free memory is that of the machine, or less: what the container or service leaves."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from split_model import control_groups
from split_model.free_memory import free_bytes
from split_model.host_memory import said_by_vm_stat

CPU = torch.device("cpu")


def test_free_memory_is_some_of_what_there_is() -> None:
    """More than nothing, and not more than the machine has."""
    assert 0 < free_bytes(CPU) <= psutil.virtual_memory().total


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of all control groups, none of which says anything yet; this process is in none."""
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "_OWN", tmp_path / "own")
    return tmp_path


@pytest.fixture
def container(system: Path) -> tuple[Path, Path]:
    """Where a container would say its limit and its usage."""
    return system / "memory.max", system / "memory.current"


def test_a_container_has_less(container: tuple[Path, Path]) -> None:
    """What its limit leaves, where that is less than the machine has; nothing where it is used up."""
    limit, usage = container
    limit.write_text("20000000\n")
    usage.write_text("5000000\n")
    assert free_bytes(CPU) == 15_000_000
    usage.write_text("20000001\n")
    assert free_bytes(CPU) == 0


@pytest.mark.parametrize(
    "stat",
    [
        "anon 9\nfile 3000000\ninactive_file 1000000\nactive_file 2000000\n",
        "inactive_file 7\nactive_file 8\ntotal_inactive_file 1000000\ntotal_active_file 2000000\n",
    ],
    ids=["version 2", "version 1"],
)
def test_cached_files_are_free(stat: str, container: tuple[Path, Path]) -> None:
    """A checkpoint that was just read fills the file cache, which the system gives up as soon as memory is wanted."""
    limit, usage = container
    limit.write_text("20000000\n")
    usage.write_text("5000000\n")
    (limit.parent / "memory.stat").write_text(stat)
    assert free_bytes(CPU) == 18_000_000


@pytest.mark.parametrize("written", ["max\n", f"{2**63 - 4096}\n", ""])
def test_a_container_without_a_limit_has_all(written: str, container: tuple[Path, Path]) -> None:
    """In the words of either version of control groups, or none."""
    limit, usage = container
    limit.write_text(written)
    usage.write_text("5000000\n")
    assert free_bytes(CPU) > 20_000_000


def test_half_a_control_group(container: tuple[Path, Path]) -> None:
    """A limit without a usage beside it is no reason to fail."""
    container[0].write_text("20000000\n")
    assert free_bytes(CPU) > 20_000_000


@pytest.mark.parametrize(
    ("own", "folder", "names"),
    [
        ("0::/system.slice/trilby.service\n", "system.slice/trilby.service", ("memory.max", "memory.current")),
        ("0::/system.slice/trilby.service\n", "system.slice", ("memory.max", "memory.current")),
        (
            "9:name=systemd:/\n4:memory:/jobs/one\n0::/\n",
            "memory/jobs/one",
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ),
    ],
    ids=["version 2", "above it", "version 1"],
)
def test_a_service_has_what_its_own_group_leaves(own: str, folder: str, names: tuple[str, str], system: Path) -> None:
    """A service manager's limit stands at the service's own control group, or at one above it."""
    (system / "own").write_text(own)
    group = system / folder
    group.mkdir(parents=True)
    for name, number in zip(names, ("20000000", "5000000"), strict=True):
        (group / name).write_text(number)
    assert free_bytes(CPU) == 15_000_000


VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            412345.
Pages inactive:                           20000.
Pages speculative:                         3000.
Pages throttled:                              0.
Pages wired down:                        123456.
Pages purgeable:                            700.
"Translation faults":                 123456789.
"""


def test_macos_says_what_can_be_taken() -> None:
    """Free pages, and those that it gives up first: not what programs use."""
    assert said_by_vm_stat(VM_STAT) == 33_000 * 16384
