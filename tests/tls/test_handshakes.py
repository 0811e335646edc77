"""TLS between a server of ours and who dials it: each that fails says why and what to do, on both sides."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import structlog
import uvicorn
from certificates import not_yet_valid, shown
from clouds import until
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from service import tls_server
from service.certs import Authority
from service.lifecycle import DrainingServer, listening
from service.tls_server import certified
from tls import contexts
from tls.contexts import BadTlsFile, Tls
from wire.connection import Role
from wire.errors import ConnectionFailed
from wire.limits import GATEWAY_LINK
from wire.stream import dial

WITHIN_S = 60.0


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Certificates of two CAs."""
    folder = tmp_path_factory.mktemp("lab")
    authority, other = Authority(folder), Authority(folder / "other")
    authority.issue(["here"], "server")
    authority.issue(["kitchen"], "device")
    authority.issue(["expired"], "member", days=-1)
    not_yet_valid(authority, "future")
    other.issue(["stranger"], "member")
    yield folder


async def who(websocket: WebSocket) -> None:
    """Says who has dialled, and hangs up."""
    await websocket.accept()
    await websocket.close(4000, f"you are {certified(websocket)}")


@asynccontextmanager
async def served(tls: Tls | None, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """A server, by its port."""
    config = uvicorn.Config(
        Starlette(routes=[WebSocketRoute("/who", who)]),
        log_config=None, log_level="error", http="h11", ws="websockets-sansio", lifespan="off",
    )  # fmt: skip

    async def drain() -> None: ...

    server = DrainingServer(config, drain, tls)
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
    with listening(host, 0) as listener:
        task = asyncio.create_task(server.serve([listener]))
        deadline = monotonic() + WITHIN_S
        while not server.started:
            assert monotonic() < deadline and not task.done()
            await asyncio.sleep(0.001)
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def told(port: int, tls: Tls | None, *, scheme: str = "wss", host: str = "127.0.0.1") -> str:
    """What who dials is told."""
    context = None if tls is None else tls.dialling()
    with pytest.raises(ConnectionFailed) as failure:
        async with dial(f"{scheme}://{host}:{port}/who", Role.AGENT, GATEWAY_LINK, context) as stream:
            await asyncio.wait_for(stream.receive(), WITHIN_S)
    return failure.value.message


async def said(lines: list[structlog.typing.EventDict]) -> str:
    """What the server has said, once it has."""
    deadline = monotonic() + WITHIN_S
    while not (found := [str(each["why"]) for each in lines if "no TLS" in each["event"]]):
        assert monotonic() < deadline
        await asyncio.sleep(0.001)
    return found[0]


async def test_a_name_is_what_the_certificate_says(lab: Path) -> None:
    """With one, and without where none is needed."""
    async with served(shown(lab, "here")) as port:
        assert "you are kitchen" in await told(port, shown(lab, "kitchen"))
        assert "you are None" in await told(port, shown(lab))
        assert "you are None" in await told(port, shown(lab), host="localhost")


@pytest.mark.parametrize(
    ("dialler", "reason"),
    [("expired", "has expired"), ("future", "not valid yet"), ("here", "another purpose"), ("stranger", "has signed")],
)
async def test_certificates_of_who_dials(lab: Path, dialler: str, reason: str) -> None:
    """The server says what is wrong with them, and who dials where to look."""
    folder = lab / "other" if dialler == "stranger" else lab
    with structlog.testing.capture_logs() as lines:
        async with served(shown(lab, "here")) as port:
            assert "its log says" in await told(port, shown(folder, dialler, lab / "ca.crt"))
            assert reason in await said(lines)
            assert "you are kitchen" in await told(port, shown(lab, "kitchen"))


@pytest.mark.parametrize(
    ("server", "reason"),
    [("expired", "has expired"), ("future", "not valid yet"), ("kitchen", "another purpose"), ("stranger", "--tls-ca")],
)
async def test_certificates_of_servers(lab: Path, server: str, reason: str) -> None:
    """Who dials says what is wrong with them, and the server that somebody did not trust it."""
    folder = lab / "other" if server == "stranger" else lab
    with structlog.testing.capture_logs() as lines:
        async with served(shown(folder, server)) as port:
            assert reason in await told(port, shown(lab))
            assert "may not trust the certificate of this side" in await said(lines)


async def test_the_name_is_checked(lab: Path) -> None:
    """A certificate of a trusted CA for another address is none."""
    async with served(shown(lab, "here"), "0.0.0.0") as port:
        assert "for another address" in await told(port, shown(lab), host="127.0.0.2")


async def test_one_side_without_tls(lab: Path) -> None:
    """Whichever it is, both say so."""
    with structlog.testing.capture_logs() as lines:
        async with served(shown(lab, "here")) as port:
            assert "dial wss://" in await told(port, None, scheme="ws")
            assert "does not speak TLS" in await said(lines)
    async with served(None) as port:
        assert "does not speak TLS: dial ws://" in await told(port, shown(lab))


async def test_silence_ends(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who never says a word is let go at the deadline, and not before."""
    monkeypatch.setattr(tls_server, "HANDSHAKE_WITHIN_S", 0.5)
    async with served(shown(lab, "here")) as port:
        began = monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), WITHIN_S) == b"" and monotonic() - began > 0.4
        writer.close()


async def test_silence_keeps_nobody_out(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others come in meanwhile; and where too many say nothing, those who have for longest are let go at once."""
    monkeypatch.setattr(tls_server, "MAX_GREETING", 20)
    async with served(shown(lab, "here")) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        assert "you are kitchen" in await told(port, shown(lab, "kitchen"))
        for reader, _ in silent[:40]:
            assert await asyncio.wait_for(reader.read(), contexts.HANDSHAKE_WITHIN_S / 2) == b""
        for _, writer in silent:
            writer.close()


async def test_a_burst_of_silence_keeps_no_other_address_out(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many come at once there are no more handshakes under way than may be, and those that are given up are of
    the address with most."""
    monkeypatch.setattr(tls_server, "MAX_GREETING", 20)
    acceptors = list[tls_server.TlsAcceptor]()
    begin = tls_server.TlsAcceptor.__init__

    def begun(self: tls_server.TlsAcceptor, *given: Any) -> None:
        begin(self, *given)
        acceptors.append(self)

    monkeypatch.setattr(tls_server.TlsAcceptor, "__init__", begun)
    async with served(shown(lab, "here")) as port:
        other, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        silent = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(100)))
        await until(lambda: len(acceptors[0]._greeting) == 20)
        for reader, _ in silent[:70]:
            assert await asyncio.wait_for(reader.read(), contexts.HANDSHAKE_WITHIN_S / 2) == b""
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(other.read(), 0.3)
        for each in (writer, *(writer for _, writer in silent)):
            each.close()


async def test_files_are_looked_at_again(lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New connections have the new certificate and the new CA, on both sides; what cannot be used changes nothing."""
    monkeypatch.setattr(contexts, "LOOK_EVERY_S", 0.0)
    used = tmp_path / "used"
    Authority(used).issue(["own"], "member")
    server, dialler = shown(used, "own"), shown(used, "own")
    async with served(server) as port:
        assert "you are own" in await told(port, dialler)
        certificate = (used / "own.crt").read_bytes()

        def refused(path: str, *_: object) -> None:
            raise BadTlsFile(f"{path} cannot be read")

        with structlog.testing.capture_logs() as lines:
            (used / "own.crt").write_text("half a fi")
            assert "you are own" in await told(port, dialler)
            assert any("cannot be used" in line["event"] for line in lines)
            (used / "own.crt").write_bytes(certificate)
            with monkeypatch.context() as closed:
                closed.setattr(contexts, "_try", refused)
                assert "you are own" in await told(port, dialler)
            lines.clear()
            assert "you are own" in await told(port, dialler)
            assert [line["event"] for line in lines] == ["TLS files were read again"] * 2, "both sides, as they are now"
        for name in ("ca.crt", "stranger.crt", "stranger.key"):
            (used / name.replace("stranger", "own")).write_bytes((lab / "other" / name).read_bytes())
        assert "you are stranger" in await told(port, dialler)
        assert "--tls-ca" in await told(
            port, shown(lab, "kitchen")
        )  # The CA before is trusted by nobody here any more.
        assert "its log says" in await told(port, shown(lab, "kitchen", used / "ca.crt"))


@pytest.mark.parametrize(("now", "why"), [("", "PEM"), (None, "cannot be read")])
def test_a_file_that_changes_while_it_is_read_is_told(lab: Path, tmp_path: Path, now: str | None, why: str) -> None:
    """Its certificate for the other members is read behind its loading: gone or another by then, it ends no thread."""
    cert = tmp_path / "own.crt"
    shutil.copy(lab / "here.crt", cert)
    tls = Tls(str(cert), str(lab / "here.key"), str(lab / "ca.crt"))
    cert.unlink() if now is None else cert.write_text(now)
    with pytest.raises(BadTlsFile, match=why):
        tls._own()


def test_no_certificate_is_resumed(lab: Path) -> None:
    """Who has shown one goes on with no session of TLS 1.2 in its place; who needs none may."""
    server = shown(lab, "here").listening()
    for dialler in ("kitchen", ""):
        context = shown(lab, dialler).dialling()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        first, kept = _shake(server, context)  # A server forgets the session of who has gone without a word.
        if dialler:
            with pytest.raises(contexts.CertificateResumed):
                _shake(server, context, first.session)
        else:
            assert _shake(server, context, first.session)[0].session_reused
        assert kept.version() == "TLSv1.2"


def _shake(
    server: ssl.SSLContext, dialler: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """A handshake in memory: who dialled, and who listened."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    dials = dialler.wrap_bio(back, there, server_hostname="here", session=session)
    listens, left = server.wrap_bio(there, back, server_side=True), 8
    sides = [dials, listens]
    while sides:
        left -= 1
        assert left
        for side in [*sides]:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
                sides.remove(side)
    return dials, listens


@pytest.mark.parametrize(
    ("cert", "key", "ca", "says"),
    [
        ("gone.crt", "here.key", "ca.crt", "gone.crt cannot be read"),
        ("here.crt", "gone.key", "ca.crt", "gone.key cannot be read"),
        ("here.crt", "kitchen.key", "ca.crt", "kitchen.key is not its key"),
        ("here.key", "here.key", "ca.crt", "holds no certificate"),
        ("here.crt", "here.key", "here.key", "holds no certificates"),
    ],
)
def test_files_that_cannot_be_used(lab: Path, cert: str, key: str, ca: str, says: str) -> None:
    """The message says which."""
    with pytest.raises(BadTlsFile, match=says):
        Tls(str(lab / cert), str(lab / key), str(lab / ca))
