"""The ports that Trilby takes where nobody says otherwise: free, its own servers', or somebody else's."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Final

from service.doctor.ask import Asker, NoAnswer
from service.doctor.finding import Finding, Say, Status
from service.doctor.listeners import program_on
from service.doctor.place import Place
from service.doctor.served import GATEWAY, looked_at, who_answers

CONNECT_WITHIN_S: Final = 2.0
LOOPBACK: Final = "127.0.0.1"


def port_of(who: str, port: int, api_key: str, say: Say) -> None:
    """Look at a port of this machine, and at the gateway or cloud server on it.

    Args:
        who: which of them would listen there.
        api_key: shown to a server of Trilby's there; empty: none.
    """
    if not _listens(port):
        say(_free(who, port))
        return
    asyncio.run(_asked(who, port, api_key, say))


async def _asked(who: str, port: int, api_key: str, say: Say) -> None:
    try:
        found, health = await who_answers(Asker(Place(LOOPBACK, port)))
        seen = f"something that is not Trilby's answers HTTP there (status {health.status})"
    except NoAnswer as error:
        found, seen = "", error.seen
    if not found:
        say(_taken(who, port, seen))
        return
    say(Finding(f"port {port}", "ok", f"a {found} of Trilby's listens there{_by(port)}"))
    # To nobody else the key is shown.
    await looked_at(Asker(Place(LOOPBACK, port), None, api_key if found == GATEWAY else ""), found, say)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), CONNECT_WITHIN_S):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:  # It takes nobody in, and somebody has it.
        return True


def _free(who: str, port: int) -> Finding:
    """Of a port where nobody listens: another socket may have it all the same."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return _taken(who, port, "a socket that takes no connections has it")
            return _taken(who, port, f"it cannot be taken: {error.strerror}")
    return Finding(f"port {port}", "ok", f"free; a {who} would listen there")


def _taken(who: str, port: int, seen: str) -> Finding:
    """Where the gateway's is taken ``trilby serve`` cannot start; a cloud server is only started there by itself."""
    status: Status = "fail" if who == GATEWAY else "warn"
    command = "trilby serve (or gateway)" if who == GATEWAY else "trilby cloud"
    todo = f"End that program, or take another port: {command} --port {port + 10}; where it is Trilby's and wants TLS, "
    todo += f"name it: --{'gateway' if who == GATEWAY else 'cloud'} wss://HOST:{port}."
    return Finding(f"port {port}", status, f"taken{_by(port)}: {seen}", todo, figures={"port": port})


def _by(port: int) -> str:
    program = program_on(port)
    return f" ({program})" if program else ""
