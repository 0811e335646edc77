"""Addresses as people, URLs and Host headers write them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Final

ANY = ("0.0.0.0", "::", "")
"""What a server listens on to be reached by every address of its machine."""


_IN_BRACKETS: Final = re.compile(r"\[(\d{1,3}(?:\.\d{1,3}){3})\]")


def host_port(host: str, port: int) -> str:
    """``host:port`` as it stands in a URL: an IPv6 address has brackets there."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(flag: str, text: str) -> tuple[str, int]:
    """The two parts of what was given to ``flag``. Raises ValueError where it is not HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{flag} is HOST:PORT, and {text!r} is not")
    return host.removeprefix("[").removesuffix("]"), int(port)


def unbracketed(url: str) -> str:
    """A URL whose address was put into brackets without looking: those of an IPv4 address are taken away."""
    return _IN_BRACKETS.sub(r"\1", url)


def reachable(host: str) -> str:
    """An address under which this machine itself reaches a server that listens on ``host``."""
    return "127.0.0.1" if host in ANY else host


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_foreign(host: str | None, *, on_loopback: bool, allowed: Collection[str] = ()) -> bool:
    """Whether a server must not answer to this Host header, None where there is none. Pure.

    A web page may rename its own server to 127.0.0.1 (DNS rebinding) and is then of the same origin as whatever listens
    there. So a server that listens on loopback answers only to loopback's names and those it was told. Beyond loopback
    any name is answered, until some are told.

    Args:
        on_loopback: the server listens on loopback only.
        allowed: names it answers to beside loopback's; beyond loopback none means any.
    """
    if host is None or not (on_loopback or allowed):
        return False
    name = _name(host)
    return not is_loopback(name) and name not in allowed


def _name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
