"""How fast a disk is read."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter

import pytest

from device_agent.profiling import disk
from device_agent.profiling.disk import measured_read


@pytest.mark.parametrize("direct", [True, False])
def test_it_is_read_for_about_as_long_as_said(direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directly where that works, else past what is cached; in a folder that need not be there, where nothing stays."""
    monkeypatch.setattr(disk, "SECONDS", 0.1)
    monkeypatch.setattr(disk, "PIECE_BYTES", 1 << 20)
    if not direct:
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    began = perf_counter()
    assert measured_read(tmp_path / "some" / "units") > 0
    assert 0.1 <= perf_counter() - began < 10
    assert not list((tmp_path / "some" / "units").iterdir())


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    """It is told."""
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        measured_read(tmp_path / "file" / "units")
