"""TLS to redis (``rediss://``), as redis' client wants it: its certificate and name are checked, a new connection reads
the files anew."""

from __future__ import annotations

from pathlib import Path


def tls_options(url: str, cert: str, key: str, ca: str) -> dict[str, str]:
    """Further arguments for a client of ``url``; none where that says nothing of TLS.

    Args:
        cert, key: files with what this side shows where redis asks for it (``tls-auth-clients``); empty: nothing.
        ca: file with the CAs that are trusted; empty: the system's.
    """
    if not url.startswith("rediss://"):
        return {}
    named = {"ssl_certfile": cert, "ssl_keyfile": key, "ssl_ca_certs": ca}
    return {name: str(Path(path).expanduser()) for name, path in named.items() if path}
