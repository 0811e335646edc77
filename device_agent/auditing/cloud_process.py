"""A cloud server as a process of its own on this machine, for as long as an audit needs it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import httpx

from service.children import Children
from service.python_module import python_module

START_WITHIN_S: Final = 600.0
"""A large model takes minutes to be read."""

POLL_S = 0.1
LOOPBACK = "127.0.0.1"


class AuditFailed(Exception):
    """What was to be recorded could not be; the message says why."""


@asynccontextmanager
async def cloud_process(settings: Sequence[str], token: str) -> AsyncIterator[str]:
    """Its address, ``ws://host:port``, once it is ready.

    Args:
        settings: words of ``trilby cloud``'s command line, without the address.
        token: what devices have to show.

    Raises ``AuditFailed`` where it does not become ready.
    """
    port = _free_port()
    children = Children()
    os.environ["TRILBY_CLOUD_TOKEN"] = token  # Others on the machine could read a command line.
    where = ["--host", LOOPBACK, "--port", str(port), "--log-level", "error"]
    children.start("cloud", [*python_module("service.begin"), "cloud_server", *settings, *where])
    try:
        await _ready(f"http://{LOOPBACK}:{port}/health", children)
        children.ready("cloud")
        yield f"ws://{LOOPBACK}:{port}"
    finally:
        await asyncio.shield(asyncio.to_thread(children.stop))


async def _ready(url: str, children: Children) -> None:
    deadline = asyncio.get_running_loop().time() + START_WITHIN_S
    async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
        while asyncio.get_running_loop().time() < deadline:
            if (ended := children.ended()) is not None:
                raise AuditFailed(f"the cloud server could not start (exit status {ended[1]}); see its message above")
            try:
                if (await client.get(url)).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(POLL_S)
    raise AuditFailed(f"the cloud server was not ready within {START_WITHIN_S:g} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
