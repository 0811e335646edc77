"""Where a server is that is dialled, from what people write. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from service.addresses import host_port

_SECURE: Final = {"ws": False, "http": False, "wss": True, "https": True}
_USUAL_PORTS: Final = {False: 80, True: 443}
_API: Final = "/v1"


@dataclass(frozen=True)
class Place:
    """A gateway or a cloud server.

    Attributes:
        host: a name or an address, without brackets.
        secure: whether it is dialled with TLS.
        path: what its own paths are put behind, where a proxy has it; else empty.
    """

    host: str
    port: int
    secure: bool = False
    path: str = ""

    @property
    def websocket(self) -> str:
        """Where devices dial it, as it is shown."""
        return f"{'wss' if self.secure else 'ws'}://{host_port(self.host, self.port)}{self.path}"

    @property
    def http(self) -> str:
        """The same for HTTP."""
        return self.websocket.replace("ws", "http", 1)


def place_of(flag: str, url: str) -> Place:
    """What was given to ``flag``: ``ws://HOST:PORT`` or ``wss://HOST:PORT``; ``http``, ``https`` and the API's ``/v1``
    mean the same server. Raises ValueError for anything else; who is named in a URL is not repeated."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"{flag} is ws://HOST:PORT or wss://HOST:PORT, and what was given is no URL") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{flag} has a name or a password in it: give secrets by their own settings")
    if parts.scheme not in _SECURE or not parts.hostname:
        raise ValueError(f"{flag} is ws://HOST:PORT or wss://HOST:PORT, and {url!r} is not")
    secure = _SECURE[parts.scheme]
    path = parts.path.rstrip("/").removesuffix(_API)
    return Place(parts.hostname, _USUAL_PORTS[secure] if port is None else port, secure, path)
