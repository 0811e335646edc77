"""Sizes as people write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from device_agent.config import DeviceConfig
from service.serve import ServeConfig
from service.sizes import bytes_of, for_each


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", 0),
        ("500", 500 * 10**6),
        ("2GiB", 2 << 30),
        ("1.5 GB", 1_500_000_000),
        ("64mib", 64 << 20),
        ("8KB", 8000),
        ("3kib", 3072),
        ("7MB", 7_000_000),
    ],
)
def test_units_and_numbers_alone(text: str, size: int) -> None:
    """Powers of two with an i, powers of ten without; a number alone is in MB, as settings whose names end in -mb."""
    assert bytes_of("--memory", text) == size


@pytest.mark.parametrize("text", ["much", "-1", "2 TiB", "1e9", "1.GB", "GB", "9" * 13])
def test_anything_else_is_refused_by_the_flags_name(text: str) -> None:
    """And never taken for something near it."""
    with pytest.raises(ValueError, match="--memory is a size such as 2GiB"):
        bytes_of("--memory", text)


def test_one_for_each_device() -> None:
    """In their order; one alone is for all."""
    assert for_each("--memory", "2GiB, 1GiB,800", 3) == ["2GiB", "1GiB", "800"]
    assert for_each("--memory", "1GiB", 3) == ["1GiB"] * 3
    assert for_each("--memory", "", 2) == ["", ""]
    for text in ("1GiB,2GiB", "1GiB,x,1GiB", "1GiB,,1GiB"):
        with pytest.raises(ValueError, match="--memory"):
            for_each("--memory", text, 3)


@pytest.mark.parametrize("config", [ServeConfig, partial(DeviceConfig, "m")])
def test_a_device_alone_has_one_size(config: Callable[..., ServeConfig | DeviceConfig]) -> None:
    """Where there is no group a second size is nobody's, and would go lost; in a group each has its own."""
    for mode in ("local", "hat"):
        with pytest.raises(ValueError, match="--memory says 2 sizes for one device"):
            config(mode=mode, memory="2GiB,1GiB")
    assert config(mode="local", memory="2GiB").memory == "2GiB"
    assert ServeConfig(mode="lime", memory="2GiB,1GiB").memory == "2GiB,1GiB"
