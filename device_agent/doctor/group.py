"""The link to a group's portal: the key is proved as a member proves it, and nothing more is said."""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from device_agent.doctor.link import NAME, looked_into, round_trip, unlike
from peers.secret import BY_CERTIFICATE, check_here, check_secret, hello
from service.addresses import host_port
from service.doctor.config import DoctorConfig
from service.doctor.finding import Finding, Say
from service.doctor.place import Place
from service.doctor.reach import reached
from service.secret_files import current
from tls.contexts import BadTlsFile
from wire.connection import Role
from wire.errors import Code, ConnectionFailed
from wire.limits import PEER_LINK
from wire.peer_messages import PeerChallenge

PROVED_WITHIN_S: Final = 5.0
"""Beside some round trips: who knows the key is given the portal's own proof at once, and who does not is told so."""

NO_SEAT: Final = 2**32 - 1
"""A rank that no group has, so that no place is given to who only looks."""


async def look_at_group(place: Place, config: DoctorConfig, say: Say) -> None:
    """Tell whether the portal is reached and takes the key. It stays a guest without a card, which no plan is made for;
    weights are compared when a device joins."""
    about = host_port(place.host, place.port)
    try:
        tls = config.equals_tls
        config.check_equals(current(config.group_key), "the group's key (TRILBY_GROUP_KEY)")
        check_secret(current(config.group_key) or BY_CERTIFICATE)
    except (BadTlsFile, ValueError) as error:
        todo = (
            "Give what the portal has: TRILBY_GROUP_KEY, or --group-key-file FILE, or --tls-cert, --tls-key, --tls-ca."
        )
        say(Finding("key", "fail", str(error), todo, about))
        return
    context = None if tls is None else tls.dialling()
    found = await reached(place, context)
    say(Finding("dialled", found.status, found.seen, found.todo, about, found.figures))
    if found.status == "fail":
        return
    times: list[float] = []
    try:
        async with looked_into(f"{place.websocket}/", Role.MEMBER, PEER_LINK, context) as (stream, times):
            asked = (await stream.receive()).message
            assert isinstance(asked, PeerChallenge)
            key = current(config.group_key) or BY_CERTIFICATE
            said = hello(key, f"{NAME}-{secrets.token_hex(4)}", NO_SEAT, asked)
            stream.post(said)
            heard = await asyncio.wait_for(stream.receive(), PROVED_WITHIN_S + 3 * max(times, default=0.0))
            check_here(key, asked, said, heard.message)
        say(Finding("key", "ok", "the group's key is accepted", about=about))
    except (TimeoutError, asyncio.TimeoutError):
        seen = "whoever listens there has not proved to know the group's key"
        say(Finding("key", "fail", seen, "Look whether a portal of this release listens there.", about))
    except ConnectionFailed as failure:
        if failure.code is Code.UNAUTHORIZED:
            todo = "Give the same to all of a group: TRILBY_GROUP_KEY, or --group-key-file FILE."
            say(Finding("key", "fail", "the group's key is another one there", todo, about))
        else:
            say(unlike(about, failure, "portal of a group"))
    if times:
        say(round_trip(about, times))
