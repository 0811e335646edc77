"""No module of the product calls what runs the data that it reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import ROOT

PACKAGES = (
    *(
        "cloud_server",
        "device_agent",
        "drafting",
        "gateway",
        "models",
        "peers",
        "service",
        "split_model",
        "tls",
        "wire",
    ),
)
MODULES = frozenset({"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"})
CALLS = frozenset({"eval", "exec", "compile", "torch.load", "np.load", "numpy.load", "yaml.load", "yaml.unsafe_load"})


def found_in(text: str) -> Iterator[str]:
    """What of it a module imports or calls."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield node.module or ""
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in CALLS:
                yield called


def sources() -> list[Path]:
    """All modules of the product."""
    return [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]


def test_nothing_that_is_read_is_run() -> None:
    """In no module."""
    files = sources()
    assert len(files) > 300
    assert {str(file.relative_to(ROOT)): found for file in files if (found := list(found_in(file.read_text())))} == {}


@pytest.mark.parametrize(
    "planted",
    ["import pickle", "from pickle import loads", "torch.load(file)", "np.load(file, allow_pickle=True)", "eval(text)"],
)
def test_what_is_planted_is_found(planted: str) -> None:
    """So that the test above can fail."""
    assert list(found_in(planted))
