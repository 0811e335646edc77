"""Pages take a part of the memory that is free here, whatever the machine or the container has."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloud_server.cache import memory
from cloud_server.cache.memory import SHARE, free_bytes, in_small_pages, page_count
from cloud_server.cache.pool import KVPool

CPU = torch.device("cpu")
GB = 10**9


@given(st.integers(0, 10**13), st.integers(1, 10**9), st.integers(1, 10**6))
def test_pages_are_as_many_as_fit(free: int, page_bytes: int, most: int) -> None:
    """They stay within their share of the memory and within ``most``, and one more would break one of the two; a single
    page there always is."""
    count = page_count(free, page_bytes, most)
    assert 1 <= count <= most
    assert count == 1 or count * page_bytes <= free * SHARE
    assert count == most or (count + 1) * page_bytes > free * SHARE


def test_a_page_of_no_bytes() -> None:
    """A cloud without layers has pages too: as many as can be asked for."""
    assert page_count(GB, 0, 100) == 100


def test_free_memory_is_some_of_what_there_is() -> None:
    """More than nothing, and not more than the machine has."""
    assert 0 < free_bytes(CPU) <= psutil.virtual_memory().total


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    """Where a container would say its limit and its usage."""
    files = tmp_path / "memory.max", tmp_path / "memory.current"
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", (files,))
    return files


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


def test_pages_of_the_cache_are_taken_a_few_kilobytes_at_a_time() -> None:
    """A few positions in all layers and heads take little memory: the first prompt must not wait until large pages are
    cleared at every one of the places where its keys and values lie."""
    smaps = Path("/proc/self/smaps")
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this system has no large pages")
    pool = KVPool(8, 4, 64, torch.float32, "cpu", 300, 32)
    for store in (pool.keys, pool.values):
        before = mapping_of(smaps.read_text(), store.data_ptr())  # Another pool may lie beside it, in one mapping.
        store[:, :16] = 1.0
        assert store.nbytes > 32 * 2**20
        entry = mapping_of(smaps.read_text(), store.data_ptr())
        taken = int(entry["Rss"].split()[0]) - int(before["Rss"].split()[0])
        assert taken <= 4096, "large pages would be 64 MB of each store"
        assert "nh" in entry["VmFlags"].split(), "the system may put large pages here"


def mapping_of(smaps: str, address: int) -> dict[str, str]:
    """What Linux says of the mapping that an address is in."""
    entry: dict[str, str] = {}
    inside = False
    for line in smaps.splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            begin, end = (int(each, 16) for each in name.split("-"))
            inside = begin <= address < end
        elif inside:
            entry[name.rstrip(":")] = rest.strip()
    return entry


def test_a_cache_that_is_too_large_is_a_memory_error() -> None:
    """And one of no layers takes none."""
    with pytest.raises(MemoryError):
        in_small_pages(2**62, torch.float32)
    assert in_small_pages(0, torch.float32).numel() == 0
