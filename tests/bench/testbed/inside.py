"""Work done in a host's network namespace by a thread of this process, without starting a program."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from typing import TypeVar
from urllib.parse import urlsplit

CLONE_NEWNET = 0x40000000
ANSWER_WITHIN_S = 2.0

Result = TypeVar("Result")


def inside(namespace: str, call: Callable[[], Result]) -> Result:
    """What ``call()`` returns or raises in the namespace; sockets it makes stay there, wherever they are used later."""

    def entered() -> Result:
        _enter(namespace)
        return call()

    with ThreadPoolExecutor(1) as thread:  # A thread stays where it has entered, so each has its own and leaves it.
        return thread.submit(entered).result()


def get(namespace: str, url: str, within_s: float = ANSWER_WITHIN_S) -> tuple[int, str]:
    """Status and body of an ``http://`` address asked from the namespace. Raises OSError and HTTPException."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def ask() -> tuple[int, str]:
        connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=within_s)
        try:
            connection.request("GET", path)
            reply = connection.getresponse()
            return reply.status, reply.read().decode(errors="replace")
        finally:
            connection.close()

    return inside(namespace, ask)


def is_ready(namespace: str, url: str, text: str) -> bool:
    """Whether it answers 200 with ``text``, a regular expression, in the body."""
    try:
        status, body = get(namespace, url)
    except (OSError, HTTPException):
        return False
    return status == 200 and re.search(text, body) is not None


def _enter(namespace: str) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    namespace_file = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if library.setns(namespace_file, CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter {namespace}: {os.strerror(number)}")
    finally:
        os.close(namespace_file)
