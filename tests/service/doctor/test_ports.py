"""The ports that Trilby takes: free, taken by real sockets, or by its own servers."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from processes import free_port

from service.doctor.finding import Finding
from service.doctor.listeners import program_on
from service.doctor.ports import port_of
from service.doctor.served import CLOUD, GATEWAY


async def told(who: str, port: int, api_key: str = "") -> list[Finding]:
    """What is found of a port."""
    found: list[Finding] = []
    await asyncio.to_thread(partial(port_of, who, port, api_key, found.append))
    return found


async def test_a_free_port() -> None:
    """Whoever wants it has it."""
    port = free_port()
    [found] = await told(GATEWAY, port)
    assert (found.check, found.status) == (f"port {port}", "ok") and "free" in found.seen


@pytest.mark.parametrize(("who", "status"), [(GATEWAY, "fail"), (CLOUD, "warn")])
async def test_a_port_that_somebody_else_has(who: str, status: str) -> None:
    """Its program is named, where the kernel tells; a cloud's only matters to who starts one there."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    [found] = await told(who, port)
    assert found.status == status and "--port" in found.todo
    if sys.platform == "linux":
        assert f"process {os.getpid()}" in found.seen
    server.close()
    await server.wait_closed()


async def test_a_port_that_is_bound_and_takes_nobody() -> None:
    """As by a program that has not begun to listen."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        [found] = await told(GATEWAY, port)
    assert found.status == "fail" and "takes no connections" in found.seen
    assert program_on(free_port()) == ""


async def test_trilbys_own_gateway(gateway: Any) -> None:
    """It is looked at, with the API key, which nobody else is shown."""
    async with gateway(api_keys="the-right-key") as port:
        found = {each.check: each for each in await told(GATEWAY, port, "the-right-key")}
    assert found[f"port {port}"].status == "ok" and "a gateway of Trilby's" in found[f"port {port}"].seen
    assert found["API key"].status == "ok" and found["health"].status == "ok"


async def test_a_web_server_is_not_shown_the_key() -> None:
    """It answers HTTP, and is none of ours."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # Whoever looks whether somebody listens says nothing.
            asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    [found] = await told(GATEWAY, server.sockets[0].getsockname()[1], "the-right-key")
    assert found.status == "fail" and asked and not any(b"the-right-key" in each for each in asked)
    server.close()
    await server.wait_closed()
