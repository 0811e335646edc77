"""Parameters are counted from files' headers alone."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from bench.hat.looks import LOOKS
from bench.hat.trained import FILES, count, parameters
from safetensors import safe_open


@pytest.mark.parametrize("method", FILES)
def test_a_drafter_has_as_many_as_its_tensors(method: str) -> None:
    """As safetensors itself reads them."""
    with safe_open(FILES[method], framework="np") as opened:
        names = opened.keys()
        elements = sum(prod(opened.get_slice(name).get_shape()) for name in names)
    assert parameters(method) == count(FILES[method]) == elements > 0


def test_most_methods_train_nothing() -> None:
    """And every one that does is known."""
    assert parameters("ushape") is None and set(FILES) < set(LOOKS)


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    """Not read on with."""
    (tmp_path / "file").write_bytes(b"\x04" + 7 * b"\x00" + b"none")
    with pytest.raises(ValueError, match="Expecting"):
        count(tmp_path / "file")
