"""Web pages must not use a gateway they were not meant for. Pure.

A browser lets any page open a websocket, or send a simple POST, to any address its user can reach, this machine
included. It says so in ``Origin``: a page from elsewhere is refused unless its origin is configured. One that has
renamed its own server to 127.0.0.1 is of the same origin: ``service/addresses.py`` refuses it by the name.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from service.addresses import is_foreign


def refusal(
    host: str | None,
    origin: str | None,
    *,
    on_loopback: bool,
    allowed_hosts: Collection[str] = (),
    allowed_origins: Collection[str] = (),
) -> str | None:
    """Why a request with these headers is refused, None when it is not.

    Args:
        host, origin: the headers as received, None when missing.
        on_loopback: the gateway listens on loopback only.
        allowed_hosts: names it answers to beside loopback's; beyond loopback none means any.
    """
    if is_foreign(host, on_loopback=on_loopback, allowed=allowed_hosts):
        return "this gateway does not answer to the name in the Host header; see --allowed-hosts"
    if origin is None or origin in allowed_origins:
        return None
    try:
        same = host is not None and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        same = False
    return None if same else "pages of this origin may not use this gateway; see --allowed-origins"
