"""``trilby certs``."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from service.certs import Authority, command


def made(folder: Path, *words: str) -> tuple[int, str]:
    """What it says, and its exit status."""
    result = CliRunner().invoke(command, [str(folder), *words])
    return result.exit_code, result.output


def test_nothing_is_written_over(tmp_path: Path) -> None:
    """A second call adds to the CA that is there; keys are their owner's alone."""
    assert made(tmp_path, "--server", "gateway.local,10.0.0.1")[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    status, output = made(tmp_path, "--server", "gateway.local")
    assert status == 1 and "gateway.local.crt is there already" in output
    assert made(tmp_path, "--device", "kitchen", "--days", "3")[0] == 0
    assert {path: path.read_bytes() for path in before} == before
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"{name}.{ending}" for name in ("ca", "gateway.local", "kitchen") for ending in ("crt", "key")}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.key")} == {0o600}


def test_addresses_of_both_families(tmp_path: Path) -> None:
    """They are names that a certificate may have; a folder that cannot be made is said."""
    assert made(tmp_path, "--server", "::1,10.0.0.1")[0] == 0
    (tmp_path / "file").write_text("")
    status, output = made(tmp_path / "file" / "lab", "--device", "kitchen")
    assert status == 1 and "cannot be made" in output


@pytest.mark.parametrize("name", ["", "../up", "a b", "x\nDNS:evil", "ca", "gateway.local:8000", "fe80::1%eth0"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    """They are refused, and the CA's own is taken."""
    assert made(tmp_path, "--device", name)[0] == 1
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt", "ca.key"}


def test_without_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    status, output = made(tmp_path / "lab", "--device", "kitchen")
    assert status == 1 and "install it" in output and not (tmp_path / "lab").exists()


def test_where_openssl_fails_nothing_is_left(tmp_path: Path) -> None:
    """No key without its certificate, which would be in the way the next time."""
    Authority(tmp_path)
    crt = (tmp_path / "ca.crt").read_text()
    (tmp_path / "ca.crt").write_text("none")
    code, said = made(tmp_path, "--server", "here")
    assert code and "openssl" in said and not list(tmp_path.glob("here.*"))
    (tmp_path / "ca.crt").write_text(crt)
    assert made(tmp_path, "--server", "here")[0] == 0
