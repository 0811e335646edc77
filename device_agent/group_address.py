"""Where a group can be joined, for a device that was told its name only: the gateway may know, or the local network.

A hint in either case. Who listens there proves to know the group's key before anything else is said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

import httpx
import msgspec
import structlog

from device_agent.config import DeviceConfig
from device_agent.mdns import NoMdns, heard
from service.addresses import host_and_port
from service.secret_files import current
from tls.contexts import Tls
from tls.why import cause, why

AUTO: Final = "auto"
"""What ``--join`` says where the address is to be found."""

ASK_EVERY_S: Final = 2.0
ANSWER_WITHIN_S: Final = 5.0
HEAR_WITHIN_S: Final = 3.0
MAX_ANSWER_BYTES: Final = 256 * 2**10
"""Of a gateway: names and addresses of as many groups as it has agents."""

log = structlog.get_logger()


class _Group(msgspec.Struct):
    name: str
    address: str


class _Groups(msgspec.Struct):
    groups: list[_Group]


async def group_address(config: DeviceConfig, useless: Collection[str] = ()) -> str:
    """HOST:PORT of the group's portal, as somebody says; asks on until somebody does.

    Where several portals say this name, the one that came last is taken, and one that is not among the ``useless``
    before one that is.
    """
    said = ""
    while True:
        reasons, again = [], ""
        for ask in (_by_gateway, _by_network):
            try:
                found = await ask(config, useless)
            except (httpx.HTTPError, httpx.InvalidURL, NoMdns, OSError, ValueError) as error:
                broken = cause(error)
                reasons.append(why(broken, dialled=True) if broken else str(error) or type(error).__name__)
            else:
                if found is not None and found not in useless:
                    log.info("group found", group=config.group, address=found)
                    return found
                again = again or found or ""
        if again:
            return again
        if said != (said := "; ".join(reasons)):
            log.warning("nobody knows where the group can be joined; asking on", group=config.group, why=said)
        await asyncio.sleep(ASK_EVERY_S)


async def _by_gateway(config: DeviceConfig, useless: Collection[str]) -> str | None:
    """Raises ``httpx.HTTPError`` or ``ValueError`` where no gateway answers as one."""
    found, failure = None, None
    for gateway in config.gateways:
        try:
            said = await _asked(gateway, config, useless)
        except (httpx.HTTPError, ValueError) as error:
            failure = error
            continue
        if said is not None and said not in useless:
            return said
        found, failure = found or said, None
    if failure is not None and found is None:
        raise failure
    return found


async def _asked(gateway: str, config: DeviceConfig, useless: Collection[str]) -> str | None:
    url = gateway.replace("ws", "http", 1).rstrip("/") + "/groups"
    token = current(config.device_token)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    verify = (config.tls() or Tls()).dialling() if url.startswith("https") else True
    answer = bytearray()
    async with (
        httpx.AsyncClient(timeout=ANSWER_WITHIN_S, trust_env=False, verify=verify) as client,
        client.stream("GET", url, headers=headers) as reply,
    ):
        if reply.status_code != 200:
            raise ValueError(f"{url} answers with status {reply.status_code}")
        async for part in reply.aiter_bytes():
            answer += part
            if len(answer) > MAX_ANSWER_BYTES:
                raise ValueError(f"{url} answers with more than {MAX_ANSWER_BYTES} bytes")
    try:
        groups = msgspec.json.decode(answer, type=_Groups).groups
    except msgspec.MsgspecError as error:
        raise ValueError(f"{url} does not answer as a gateway: {error}") from None
    said = [each.address for each in reversed(groups) if each.name == config.group]
    addresses = list(filter(_is_address, said))
    if said and not addresses:
        raise ValueError(f"the address of group {config.group!r} is no HOST:PORT: {said[0]!r}")
    return next((each for each in addresses if each not in useless), addresses[0] if addresses else None)


def _is_address(said: str) -> bool:
    try:
        host_and_port("the address of a group", said)
    except ValueError:
        return False
    return True


async def _by_network(config: DeviceConfig, useless: Collection[str]) -> str | None:
    return await heard(config.group, HEAR_WITHIN_S, useless)
