"""Web pages must not use a gateway they were not meant for. Pure.

A browser lets any page open a websocket, or send a simple POST, to any address its user can reach, this machine
included. It says so in ``Origin``: a page from elsewhere is refused unless its origin is configured. A page may also
rename its own server to 127.0.0.1 (DNS rebinding) and is then of the same origin: so a gateway that listens on loopback
answers only to loopback's names and those configured. Beyond loopback any name is answered, until some are configured.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from service.lifecycle import is_loopback


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
    if host is not None and (on_loopback or allowed_hosts):
        name = _name(host)
        if not is_loopback(name) and name not in allowed_hosts:
            return "this gateway does not answer to the name in the Host header; see --allowed-hosts"
    if origin is None or origin in allowed_origins:
        return None
    try:
        same = host is not None and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        same = False
    return None if same else "pages of this origin may not use this gateway; see --allowed-origins"


def _name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
