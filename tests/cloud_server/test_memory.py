"""Pages take a part of the memory that is free here, whatever the machine or the container has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloud_server.cache.memory import SHARE, in_small_pages, page_count
from cloud_server.cache.pool import KVPool

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
