"""Addresses that cannot be dialled, and why: real sockets, real certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from certificates import shown
from processes import free_port

from service.certs import Authority
from service.doctor import reach
from service.doctor.place import Place
from service.doctor.reach import days_left, reached
from tls.contexts import Tls


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Certificates that last, that have ended, and that soon will have."""
    folder = tmp_path_factory.mktemp("lab")
    authority = Authority(folder)
    authority.issue(["here"], "server")
    authority.issue(["expired"], "server", days=-1)
    authority.issue(["soon"], "server", days=3)
    yield folder


@asynccontextmanager
async def listening(context: ssl.SSLContext | None, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """What takes connections and says nothing; its port."""

    open_ones: list[tuple[asyncio.Task[None] | None, asyncio.StreamWriter]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.append((asyncio.current_task(), writer))
        with suppress(OSError):
            await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(serve, host, 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _, writer in open_ones:
            writer.transport.abort()
        await asyncio.gather(*(task for task, _ in open_ones if task is not None))
        await server.wait_closed()


async def test_what_takes_connections() -> None:
    """By address and by name."""
    async with listening(None) as port:
        for host in ("127.0.0.1", "localhost"):
            found = await reached(Place(host, port), None)
            assert (found.check, found.status) == ("dialled", "ok") and 0 < found.figures["connect_s"] < 5


async def test_nobody_listens() -> None:
    """Where to look is said."""
    for host in ("127.0.0.1", "localhost"):
        found = await reached(Place(host, free_port()), None)
        assert found.status == "fail" and "nobody listens" in found.seen and "--host" in found.todo


async def test_a_name_that_is_none() -> None:
    """Nobody can know it."""
    found = await reached(Place("a..b", 80), None)
    assert found.status == "fail" and "is not known" in found.seen and "spelling" in found.todo


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("here", "ok", ("TLSv1.3", "more days")),
        ("soon", "warn", ("lasts for 3 more days", "Renew it")),
        ("expired", "fail", ("no TLS", "has expired", "Renew it")),
    ],
)
async def test_certificates(name: str, status: str, words: tuple[str, ...], lab: Path) -> None:
    """One that lasts, one that had better be renewed, one that has ended."""
    async with listening(Tls(str(lab / f"{name}.crt"), str(lab / f"{name}.key")).listening()) as port:
        found = await reached(Place("127.0.0.1", port, secure=True), shown(lab).dialling())
    assert found.status == status, found
    assert all(word in f"{found.seen} {found.todo}" for word in words), found


async def test_a_ca_that_nobody_knows_and_another_name(lab: Path) -> None:
    """Each has a reason of its own."""
    async with listening(shown(lab, "here").listening()) as port:
        unknown = await reached(Place("127.0.0.1", port, secure=True), Tls().dialling())
    async with listening(shown(lab, "here").listening(), "127.0.0.2") as port:
        other = await reached(Place("127.0.0.2", port, secure=True), shown(lab).dialling())
    assert "nobody trusted here" in unknown.seen and "--tls-ca" in unknown.todo
    assert "for another address" in other.seen and other.todo


async def test_tls_with_what_speaks_none(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never finishes the handshake."""
    monkeypatch.setattr(reach, "WITHIN_S", 0.5)
    async with listening(None) as port:
        found = await reached(Place("127.0.0.1", port, secure=True), shown(lab).dialling())
    assert found.status == "fail" and "no TLS" in found.seen and found.todo


def test_how_long_certificates_last() -> None:
    """Of one that does not say nothing is known."""
    assert days_left({"notAfter": "Jan  5 00:00:00 1970 GMT"}, 0.0) == 4.0
    assert days_left({}, 0.0) is None
