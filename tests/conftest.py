"""What all tests share: one thread for torch, no hub, one folder of tiny models."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from forked import ForkedProcess, ForkedStage
from hypothesis import settings
from tiny_models import built

from device_agent.sharing.compute import Compute

# The same examples in every run, so that a change is judged by what it changed; `make test-random` looks for new ones.
settings.register_profile("random", deadline=None, print_blob=True, max_examples=300)
settings.register_profile("trilby", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("trilby")
torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[1]
ENDED_WITHIN_S = 10.0
LONG_ROOMS = frozenset({"device_agent", "drafting", "equivalence"})
for each in (ROOT, ROOT / "tests"):
    if str(each) not in sys.path:
        sys.path.insert(0, str(each))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that start processes go first, then those of rooms that compute, in whatever order they are: they take
    longest, and where several workers run files, nobody should wait in the end for who took the longest last."""
    first = {item.path for item in items if item.get_closest_marker("system") is not None}
    items.sort(key=lambda item: (item.path not in first, LONG_ROOMS.isdisjoint(item.path.parts)))


def pytest_collection() -> None:
    """What is imported and collected stays: to look through it again and again is a third of the time for it."""
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on garbage is looked for among what the tests make."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Threads that may still compute for a group that has ended come to their end before the interpreter does: torch
    aborts a process whose thread finds no interpreter any more."""
    deadline = time.monotonic() + ENDED_WITHIN_S
    for thread in threading.enumerate():
        if thread.name.startswith(("group-", "files-beforehand", "loader", "lodging", "stage-")):
            thread.join(max(0.0, deadline - time.monotonic()))


@pytest.fixture(scope="session", autouse=True)
def cold() -> None:
    """Processes that are forked begin without computing anything first: each would take a second for it."""
    ForkedProcess.warms = False


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Commands that are called in this process give torch more threads, and with two some products are rounded
    otherwise than with one."""
    yield
    torch.set_num_threads(1)


@pytest.fixture
def forked_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of a cloud server in this process start in tenths of a second; what they are told is the same."""
    forks = SimpleNamespace(Popen=ForkedStage, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr("cloud_server.stages.processes.subprocess", forks)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tiny random models are built, once each for the whole run."""
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture
def tiny(tiny_folder: Path) -> Path:
    """A tiny Llama."""
    return built("llama", tiny_folder)


@pytest.fixture
def compute() -> Iterator[Compute]:
    """A thread for matrix products, which ends with the test."""
    compute = Compute()
    yield compute
    compute.stop()
