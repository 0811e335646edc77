"""Our programs, started from folders with code of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from service import python_module as starting
from service.python_module import python_module

SAYS = "print('code of this folder')\n"


@pytest.mark.parametrize("version", [sys.version_info, (3, 10)], ids=["this Python", "as Python 3.10"])
def test_no_code_of_the_folder_is_run(
    version: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what is called as a library, nor as a package of ours; and arguments arrive."""
    for name in ("json.py", "click.py", "service.py", "wire.py"):
        (tmp_path / name).write_text(SAYS)
    monkeypatch.setattr(starting, "sys", SimpleNamespace(version_info=version, executable=sys.executable))
    command = [*python_module("service.command"), "doctor", "--help"]
    root = str(Path(starting.__file__).parents[1])
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": root}
    )
    assert done.returncode == 0 and "--json" in done.stdout, done.stderr
    assert "code of this folder" not in done.stdout
