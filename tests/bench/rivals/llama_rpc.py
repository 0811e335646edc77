"""llama.cpp's RPC: what its two programs here share, and whether an interpreter can run them.

    PYTHONPATH=tests PYTHON -m bench.rivals.llama_rpc

prints the version of an interpreter's llama-cpp-python, or says on standard error what is missing and fails. Wheels of
llama-cpp-python have no RPC; its source has:

    CMAKE_ARGS="-DGGML_RPC=ON" PYTHON -m pip install --no-binary llama-cpp-python llama-cpp-python gguf

The Python package has no names for RPC, so the C functions of ``ggml-rpc.h`` and ``ggml-backend.h`` are called.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = "llama-cpp-python built with CMAKE_ARGS=-DGGML_RPC=ON, and gguf"
TESTS = Path(__file__).resolve().parents[2]

_CPU_DEVICE = 0
"""GGML_BACKEND_DEVICE_TYPE_CPU"""


class RpcUnavailable(Exception):
    """This interpreter has no llama.cpp with RPC; the text says what is missing."""


class Ggml:
    """The functions of libggml that RPC needs; what they return are pointers, as numbers."""

    def __init__(self) -> None:
        """Raises RpcUnavailable."""
        try:
            llama: Any = importlib.import_module("llama_cpp")
            importlib.import_module("gguf")
            library: Any = importlib.import_module("llama_cpp._ggml").libggml
        except ImportError as error:
            raise RpcUnavailable(f"{error} (it needs: {PACKAGES})") from error
        if not hasattr(library, "ggml_backend_rpc_add_server"):
            raise RpcUnavailable(f"its llama.cpp was built without RPC (it needs: {PACKAGES})")
        # llama.cpp aborts the process where its link breaks, and would call a debugger first for a page of frames.
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        self.version = str(llama.__version__)
        self._library = library
        pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
        for name, takes, gives in (
            ("ggml_backend_dev_by_type", [ctypes.c_int], pointer),
            ("ggml_backend_reg_dev_get", [pointer, size], pointer),
            ("ggml_backend_rpc_add_server", [text], pointer),
            ("ggml_backend_rpc_start_server", [text, text, size, size, ctypes.POINTER(pointer)], None),
        ):
            function = getattr(library, name)
            function.argtypes, function.restype = takes, gives

    def cpu(self) -> int:
        """This machine's CPU as a ggml device."""
        return int(self._library.ggml_backend_dev_by_type(_CPU_DEVICE))

    def remote(self, endpoint: str) -> int:
        """The first device of the RPC server at ``host:port``.

        The process is aborted, with a word on standard error, where nobody answers there.
        """
        registry = self._library.ggml_backend_rpc_add_server(endpoint.encode())
        return int(self._library.ggml_backend_reg_dev_get(registry, 0))

    def serve(self, endpoint: str, threads: int) -> None:
        """Serve this machine's CPU, one client after the other; returns only where it cannot."""
        devices = (ctypes.c_void_p * 1)(self.cpu())
        self._library.ggml_backend_rpc_start_server(endpoint.encode(), None, threads, 1, devices)


def missing(python: str | None) -> str:
    """Why this interpreter cannot run the two programs, or nothing where it can."""
    if not python:
        return f"no interpreter named (one with {PACKAGES})"
    try:
        result = subprocess.run(
            [python, "-m", "bench.rivals.llama_rpc"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
    except OSError as error:
        return f"{python} does not start: {error}"
    if result.returncode == 0:
        return ""
    last = result.stderr.strip().splitlines()[-1:] or [f"it ended with {result.returncode}"]
    return f"{python}: {last[0]}"


def main() -> None:
    """Print the version, or end with what is missing."""
    try:
        print(Ggml().version)
    except RpcUnavailable as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
