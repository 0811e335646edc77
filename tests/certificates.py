"""Certificates for tests, by ``trilby certs``, and some that it would never make."""

from __future__ import annotations

import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

from service.certs import Authority
from tls.contexts import Tls

NOT_YET = """[ca]
default_ca = own
[own]
database = {folder}/index
new_certs_dir = {folder}
default_md = sha256
policy = any
serial = {folder}/serial
[any]
commonName = supplied
[leaf]
subjectAltName = IP:127.0.0.1
extendedKeyUsage = serverAuth,clientAuth
"""


def shown(folder: Path, name: str = "", ca: Path | None = None) -> Tls:
    """What a side has that shows ``name``'s certificate of a folder, and trusts ``ca``, or the folder's own."""
    cert, key = (str(folder / f"{name}.{ending}") if name else "" for ending in ("crt", "key"))
    return Tls(cert, key, str(ca or folder / "ca.crt"))


def flags(folder: Path, name: str) -> list[str]:
    """The same as flags."""
    words = {"cert": f"{name}.crt", "key": f"{name}.key", "ca": "ca.crt"}
    return [word for kind, file in words.items() for word in (f"--tls-{kind}", str(folder / file))]


def not_yet_valid(authority: Authority, name: str) -> None:
    """A certificate of that CA which begins in the next century."""
    valid_between(authority, name, "21000101000000Z", "21010101000000Z")


def valid_for(authority: Authority, name: str, minutes: float) -> None:
    """A certificate of that CA which began so many minutes ago, and lasts for as long from now on."""
    now, span = datetime.now(timezone.utc), timedelta(minutes=minutes)
    valid_between(authority, name, *(f"{at:%Y%m%d%H%M%SZ}" for at in (now - span, now + span)))


def valid_between(authority: Authority, name: str, begin: str, end: str) -> None:
    """A certificate of that CA which is valid between two moments, as openssl writes them."""
    folder = authority.folder
    authority.issue([name], "member")
    (folder / "index").write_text("")
    (folder / "serial").write_text("01")
    (folder / "config").write_text(NOT_YET.format(folder=folder))
    request: list[str | Path] = ["openssl", "req", "-new", "-key", folder / f"{name}.key", "-subj", f"/CN={name}"]
    request += ["-out", folder / "request"]
    sign: list[str | Path] = ["openssl", "ca", "-batch", "-notext", "-config", folder / "config", "-extensions", "leaf"]
    sign += ["-cert", folder / "ca.crt", "-keyfile", folder / "ca.key", "-in", folder / "request"]
    sign += ["-out", folder / f"{name}.crt", "-startdate", begin, "-enddate", end]
    for command in (request, sign):
        subprocess.run(command, check=True, capture_output=True)
