"""Where a group can be joined, for a device that was told its name only: the gateway may know, or the local network.

A hint in either case. Who listens there proves to know the group's key before anything else is said.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
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


async def group_address(config: DeviceConfig) -> str:
    """HOST:PORT of the group's portal: ``--join`` itself, or what is found; asks on until somebody knows.

    Where several portals say this name, the one that came last is taken.
    """
    if config.join != AUTO:
        return config.join
    said = ""
    while True:
        reasons = []
        for ask in (_by_gateway, _by_network):
            try:
                found = await ask(config)
            except (httpx.HTTPError, httpx.InvalidURL, NoMdns, OSError, ValueError) as error:
                broken = cause(error)
                reasons.append(why(broken, dialled=True) if broken else str(error) or type(error).__name__)
            else:
                if found is not None:
                    log.info("group found", group=config.group, address=found)
                    return found
        if said != (said := "; ".join(reasons)):
            log.warning("nobody knows where the group can be joined; asking on", group=config.group, why=said)
        await asyncio.sleep(ASK_EVERY_S)


async def _by_gateway(config: DeviceConfig) -> str | None:
    """Raises ``httpx.HTTPError`` or ``ValueError`` where no gateway answers as one."""
    for gateway in config.gateways[:-1]:
        with suppress(httpx.HTTPError, ValueError):
            if (found := await _asked(gateway, config)) is not None:
                return found
    return await _asked(config.gateways[-1], config)


async def _asked(gateway: str, config: DeviceConfig) -> str | None:
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
    addresses = [each.address for each in groups if each.name == config.group]
    if not addresses:
        return None
    host_and_port(f"the address of group {config.group!r}", addresses[-1])
    return addresses[-1]


async def _by_network(config: DeviceConfig) -> str | None:
    return await heard(config.group, HEAR_WITHIN_S)
