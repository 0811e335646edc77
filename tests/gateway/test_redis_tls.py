"""redis behind TLS, a real one: checked by the CA that was named, shown what it asks for, and told why not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog
from click.testing import CliRunner
from processes import free_port
from redis_here import RedisServer

from gateway.keys_command import main as keys
from gateway.registry import line as line_module
from gateway.registry.line import RedisLine
from gateway.registry.redis_tls import tls_options
from service import secret_files
from service.certs import Authority
from service.secret_files import FileSecret

TOKEN = "what-gateways-share"
SOON_S = 30.0


class Behind(NamedTuple):
    """Where it listens, and the files of certificates: redis' own CA is the lab's."""

    url: str
    lab: Path

    def options(self, name: str = "gateway", ca: str = "ca.crt") -> dict[str, str]:
        """What a gateway has that shows this certificate, and trusts this CA."""
        cert, key = (str(self.lab / f"{name}.{ending}") if name else "" for ending in ("crt", "key"))
        return tls_options(self.url, cert, key, str(self.lab / ca))


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    """A redis that asks who dials for a certificate, as it does by default."""
    lab, port = tmp_path_factory.mktemp("lab"), free_port()
    authority = Authority(lab)
    authority.issue(["redis"], "server")
    authority.issue(["gateway"], "member")
    Authority(lab / "other").issue(["stranger"], "member")
    files = {"cert-file": "redis.crt", "key-file": "redis.key", "ca-cert-file": "ca.crt"}
    words = [word for name, file in files.items() for word in (f"--tls-{name}", str(lab / file))]
    with RedisServer("--tls-port", str(port), "--bind", "127.0.0.1", *words):
        yield Behind(f"rediss://127.0.0.1:{port}", lab)


async def until(line: RedisLine, up: bool) -> None:
    """Until redis answers, or is known not to."""
    end = asyncio.get_running_loop().time() + SOON_S
    while line.up is not up:
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is not taken for a redis that has gone."""
    monkeypatch.setattr(line_module, "ANSWER_WITHIN_S", SOON_S)


async def test_a_private_ca_and_a_certificate_of_ones_own(behind: Behind) -> None:
    """What is in the files lets a gateway in, and what it asks is answered."""
    line = RedisLine(behind.url, options=behind.options())
    await line.open()
    try:
        await until(line, True)
        assert await line.ask("ECHO", "here") == b"here"
    finally:
        await line.close()


@pytest.mark.parametrize(
    ("name", "ca", "says"),
    [("gateway", "other/ca.crt", "--tls-ca"), ("", "ca.crt", ""), ("other/stranger", "ca.crt", "")],
    ids=["another CA", "no certificate", "a stranger's"],
)
async def test_why_not_is_said(behind: Behind, name: str, ca: str, says: str) -> None:
    """In words that say what to do, where this side refuses; who is refused by redis may only see that it hangs up."""
    with structlog.testing.capture_logs() as lines:
        line = RedisLine(behind.url, options=behind.options(name, ca))
        await line.open()
        try:
            end = asyncio.get_running_loop().time() + SOON_S
            while not (said := [each for each in lines if "redis is gone" in each["event"]]):
                assert asyncio.get_running_loop().time() < end
                await asyncio.sleep(0.01)
        finally:
            await line.close()
    assert says in said[0]["why"] and not line.up


def test_keys_are_made_through_it(behind: Behind) -> None:
    """`trilby keys` has the same files; without them it says what is missing."""
    words = ["--key-store", "redis", "--redis", behind.url, "--gateway-token", TOKEN]
    shown = [f"--tls-{kind}" for kind in ("cert", "key", "ca")]
    files = [str(behind.lab / name) for name in ("gateway.crt", "gateway.key", "ca.crt")]
    own = [word for pair in zip(shown, files, strict=True) for word in pair]
    made = CliRunner().invoke(keys, [*words, *own, "add", "alice"])
    assert made.exit_code == 0 and made.output.startswith("sk-trilby-"), made.output
    refused = CliRunner().invoke(keys, [*words, "list"])
    assert refused.exit_code and "--tls-ca" in refused.output


async def test_a_url_from_a_file_is_read_again_when_redis_is_dialled_again(
    behind: Behind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its password, or its place, may change without a restart."""
    monkeypatch.setattr(secret_files, "LOOK_EVERY_S", 0.0)
    path = tmp_path / "url"
    path.write_text(f"rediss://127.0.0.1:{free_port()}")
    told: list[Any] = []
    line = RedisLine(FileSecret(str(path), many=False), told.append, behind.options())
    await line.open()
    try:
        assert not line.up
        path.write_text(behind.url)
        await until(line, True)
    finally:
        await line.close()


def test_without_tls_nothing_is_said_of_it() -> None:
    """redis' client knows none of it there."""
    assert tls_options("redis://r:6379", "a.crt", "a.key", "ca.crt") == {}
