"""llama.cpp split by its own RPC: the programs of both sides, and what is said where an interpreter has no RPC."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.random_llama import Shape, prompts, write_checkpoint
from bench.rivals import llama_rpc
from processes import ROOT, free_port

from split_model.reference import Reference

pytestmark = pytest.mark.system

PYTHON = os.environ.get("LLAMA_RPC_PYTHON", "")
MISSING = llama_rpc.missing(PYTHON)
LAYERS = 6
NEW = 8
CLOSE = 0.02
"""Of the spread of one position's logits."""
SHAPE = Shape(hidden=64, layers=LAYERS, intermediate=96, heads=4, kv_heads=2, vocab=512, positions=512)

needs_rpc = pytest.mark.skipif(bool(MISSING), reason=f"LLAMA_RPC_PYTHON: {MISSING}")


@contextmanager
def program(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A rival's program under llama.cpp's interpreter, ended with the block."""
    with subprocess.Popen(
        [PYTHON, "-m", f"bench.rivals.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def message(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that is JSON; llama.cpp's server prints lines of its own."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise AssertionError(f"it ended with {process.wait()}")


def answer(process: subprocess.Popen[str], prompt: list[int], new: int) -> dict[str, Any]:
    """What the client says to one request."""
    assert process.stdin is not None
    process.stdin.write(json.dumps({"prompt": prompt, "new": new}) + "\n")
    process.stdin.flush()
    return message(process)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(SHAPE, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Of a server that listens."""
    where = f"127.0.0.1:{free_port()}"
    with program("llama_rpc_server", where) as server:
        assert message(server)["ready"] == where
        yield where


@needs_rpc
@pytest.mark.parametrize(
    ("ends", "device"),
    [
        (("--front", "2"), {0, 1, LAYERS}),
        (("--front", "1", "--tail", "2"), {0, 4, 5, LAYERS}),
        (("--front", "0", "--tail", "5"), {1, 2, 3, 4, 5, LAYERS}),
        (("--front", "2", "--head", "server"), {0, 1}),
        (("--front", "0", "--head", "server"), set()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_layers_are_where_they_are_asked_for(
    checkpoint: Path, endpoint: str, ends: tuple[str, ...], device: set[int], tmp_path: Path
) -> None:
    """The ends asked for stay on the device, the rest is the server's, and each token is as likely as the best."""
    prompt = prompts(SHAPE, [40], 3)[0]
    with program("llama_rpc_client", str(checkpoint), str(tmp_path / "model.gguf"), endpoint, *ends) as client:
        placed = message(client)["layers"]
        assert placed == ["CPU" if layer in device else "RPC0" for layer in range(LAYERS + 1)]
        first, second = answer(client, prompt, NEW), answer(client, prompt, NEW)
    logits = Reference.load(checkpoint, torch.float32).logits(prompt + first["tokens"][:-1])[-NEW:]
    short = logits.max(1).values - logits[range(NEW), first["tokens"]]
    # llama.cpp rounds hidden states to float16 before every matrix, so of two that are near it may take the other.
    assert bool((short < CLOSE * logits.std(1)).all())
    assert second["tokens"] == first["tokens"], "nothing of the first request is left"
    assert second["began"] >= first["began"] + first["times"][-1]
    for each in (first, second):
        assert len(each["times"]) == NEW
        assert each["times"][0] > 0
        assert each["times"] == sorted(each["times"])


@needs_rpc
def test_no_layer_for_the_server(checkpoint: Path, tmp_path: Path) -> None:
    """A split that leaves the server nothing is refused before anybody is dialled."""
    arguments = (str(checkpoint), str(tmp_path / "model.gguf"), "127.0.0.1:1", "--front", "4", "--tail", "2")
    with program("llama_rpc_client", *arguments) as client:
        assert client.stderr is not None
        assert "of 6 layers, 4 at the front and 2 at the end leave none" in client.stderr.read()
        assert client.wait(60) == 1


@needs_rpc
def test_nobody_to_dial(checkpoint: Path, tmp_path: Path) -> None:
    """Without a server the client is aborted, and the last it says is whom it could not reach."""
    nowhere = f"127.0.0.1:{free_port()}"
    with program("llama_rpc_client", str(checkpoint), str(tmp_path / "model.gguf"), nowhere) as client:
        assert client.stderr is not None
        assert client.stderr.read().rstrip().endswith(f"Failed to connect to {nowhere}")
        assert client.wait(60) == -signal.SIGABRT


@needs_rpc
def test_a_port_that_is_taken(endpoint: str) -> None:
    """A second server at one address ends, though somebody answers there."""
    with program("llama_rpc_server", endpoint) as server:
        assert server.stderr is not None
        assert f"cannot listen at {endpoint}" in server.stderr.read()
        assert server.wait(60) == 1


def test_an_interpreter_without_rpc_is_named_with_what_it_needs() -> None:
    """No interpreter, one that does not start, and one without llama.cpp: each has its reason, with the packages."""
    assert "no interpreter named" in llama_rpc.missing("")
    assert llama_rpc.missing("/nowhere/python").startswith("/nowhere/python does not start")
    bare = llama_rpc.missing(sys.executable)
    assert bare.startswith(sys.executable)
    assert bare.endswith(f"(it needs: {llama_rpc.PACKAGES})")
