"""``trilby certs``: a small private CA and certificates for one's own machines, made by the ``openssl`` program."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

CA: Final = "ca"
CA_DAYS: Final = 3650
DAYS: Final = 397
"""As long as a certificate may last that browsers take."""

WITHIN_S: Final = 60.0

HERE: Final = ("localhost", "127.0.0.1", "::1")
"""In each certificate of who listens, so that probes on its own machine may dial it."""

PURPOSES: Final = {"server": "serverAuth", "device": "clientAuth", "member": "serverAuth,clientAuth"}

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.\-]{0,62})")

_REQUEST: Final = "[req]\ndistinguished_name = of\nprompt = no\n[of]\nCN = {name}\n"
_AUTHORITY: Final = """[ca]
basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
"""
_LEAF: Final = """[leaf]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = {purposes}
subjectAltName = {names}
authorityKeyIdentifier = keyid
"""


class CannotMake(click.ClickException):
    """The message says what is in the way."""


class Authority:
    """The CA of a folder, made where there is none; its own key never leaves it."""

    def __init__(self, folder: Path) -> None:
        """Raises ``CannotMake``."""
        program = shutil.which("openssl")
        if program is None:
            raise CannotMake("this needs the openssl program: install it (apt install openssl, brew install openssl)")
        self._openssl = program
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotMake(f"{folder} cannot be made: {error.strerror or error}") from error
        if not self._path(CA, "key").exists():
            self._begin()

    def _begin(self) -> None:
        self._refuse_existing(CA)
        with tempfile.TemporaryDirectory() as scratch:
            config = Path(scratch, "config")
            config.write_text(_REQUEST.format(name=f"Trilby private CA {secrets.token_hex(4)}") + _AUTHORITY)
            with self._key(CA):
                self._run("req", "-x509", "-new", "-sha256", "-key", self._path(CA, "key"), "-config", config,
                          "-extensions", "ca", "-days", CA_DAYS, "-out", self._path(CA, "crt"))  # fmt: skip

    def issue(self, names: Sequence[str], purpose: str, days: int = DAYS) -> Path:
        """A certificate and its key, called by the first of ``names``, which are host names and addresses.

        Raises ``CannotMake``, also where one of that name is there already.
        """
        for each in names:
            if not (_is_address(each) or _NAME.fullmatch(each)):
                raise CannotMake(f"{each!r} is no name or address of a machine, without a port")
        name = names[0]
        self._refuse_existing(name)
        known = list(dict.fromkeys([*names, *(HERE if purpose != "device" else ())]))
        leaf = _LEAF.format(purposes=PURPOSES[purpose], names=",".join(_alternative(each) for each in known))
        with tempfile.TemporaryDirectory() as scratch:
            config, request = Path(scratch, "config"), Path(scratch, "request")
            config.write_text(_REQUEST.format(name=name) + leaf)
            with self._key(name):
                self._run("req", "-new", "-sha256", "-key", self._path(name, "key"), "-config", config, "-out", request)
                self._run("x509", "-req", "-sha256", "-in", request, "-CA", self._path(CA, "crt"),
                          "-CAkey", self._path(CA, "key"), "-set_serial", f"0x{secrets.token_hex(16)}", "-days", days,
                          "-extfile", config, "-extensions", "leaf", "-out", self._path(name, "crt"))  # fmt: skip
        return self._path(name, "crt")

    def _path(self, name: str, ending: str) -> Path:
        return self.folder / f"{name.replace(':', '-')}.{ending}"

    def _refuse_existing(self, name: str) -> None:
        for ending in ("crt", "key"):
            if self._path(name, ending).exists():
                raise CannotMake(f"{self._path(name, ending)} is there already: take it away first, or choose a name")

    @contextmanager
    def _key(self, name: str) -> Iterator[None]:
        """A new key, which nobody else can read at any moment; gone again where its certificate cannot be made."""
        made = self._run("ecparam", "-name", "prime256v1", "-genkey", "-noout")
        try:
            with open(os.open(self._path(name, "key"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(made)
        except OSError as error:
            raise CannotMake(f"{self._path(name, 'key')} cannot be written: {error.strerror or error}") from error
        try:
            yield
        except BaseException:
            for ending in ("key", "crt"):
                self._path(name, ending).unlink(missing_ok=True)
            raise

    def _run(self, *words: object) -> bytes:
        command = [self._openssl, *map(str, words)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=WITHIN_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotMake(f"openssl does not run: {error}") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise CannotMake(f"openssl {words[0]} has failed: {said[0] if said else done.returncode}")
        return done.stdout


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return "%" not in name


def _alternative(name: str) -> str:
    return f"IP:{ipaddress.ip_address(name)}" if _is_address(name) else f"DNS:{name}"


@click.command(
    epilog="""\b
Examples:
  trilby certs lab --server gateway.local,10.0.0.1 --device kitchen
  trilby certs cloud --server cloud.local --device kitchen --days 90
  trilby certs home --member study,10.0.0.3 --member attic,10.0.0.4
"""
)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--server", multiple=True, help="who listens, a gateway or cloud server: NAME[,NAME or ADDRESS …]")
@click.option("--device", multiple=True, help="who only dials: NAME, which is its identity")
@click.option("--member", multiple=True, help="who does both, in a group or a pipeline: NAME[,NAME or ADDRESS …]")
@click.option("--days", default=DAYS, show_default=True, type=click.IntRange(1, CA_DAYS), help="how long they last")
def command(folder: Path, server: tuple[str, ...], device: tuple[str, ...], member: tuple[str, ...], days: int) -> None:
    """Make certificates in FOLDER for one's own machines, and the private CA that signs them where there is none yet.

    NAME.crt and NAME.key are for --tls-cert and --tls-key of that machine, ca.crt for --tls-ca of all. ca.key stays
    where it was made: whoever has it can be anybody. Nothing is written over.
    """
    authority = Authority(folder)
    for purpose, given in (("server", server), ("device", device), ("member", member)):
        for each in given:
            made = authority.issue([name.strip() for name in each.split(",")], purpose, days)
            click.echo(f"{made} and its key: {purpose}, for {days} days")
    click.echo(f"{folder / CA}.crt: what the others trust (--tls-ca)")
