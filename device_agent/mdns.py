"""Groups on the local network, by mDNS: who listens says so, who looks hears it. Needs the extra ``lan``.

Anybody on the network may say anything here: it is a hint where to ask, and the key proves the rest.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

MOST_ASKED: Final = 64
"""Entries that are looked into: others on the network may make up as many as they like."""

KIND: Final = "_trilby-group._tcp.local."
MISSING: Final = "looking on the local network needs zeroconf: pip install '.[lan]' in Trilby's folder"


class NoMdns(ValueError):
    """zeroconf is not installed; the message says how it would be."""


def check_mdns() -> None:
    """Raises ``NoMdns`` where there is none here."""
    try:
        import zeroconf  # noqa: F401
    except ImportError as error:
        raise NoMdns(MISSING) from error


@asynccontextmanager
async def announced(group: str, address: str, port: int) -> AsyncIterator[None]:
    """Within the block the network is told where the devices of a group join it. Raises ``NoMdns``, and ``ValueError``
    where the address is no IP address."""
    with_ip = ipaddress.ip_address(address)
    async with _mdns() as mdns:
        from zeroconf import ServiceInfo

        # Several portals may serve groups of one name: the address tells their entries apart.
        entry = f"{with_ip.packed.hex()}-{port}.{KIND}"
        about = ServiceInfo(KIND, entry, port, addresses=[with_ip.packed], properties={"group": group})
        await mdns.async_register_service(about)
        try:
            yield
        finally:
            await mdns.async_unregister_service(about)


async def heard(group: str, within_s: float, useless: Collection[str] = ()) -> str | None:
    """HOST:PORT where the devices of a group join it, as the network says; one of the ``useless`` where it says no
    other in time, None where it says none. Raises ``NoMdns``."""
    found: asyncio.Queue[str] = asyncio.Queue()
    again: list[str] = []
    async with _mdns() as mdns:
        from zeroconf import IPVersion, ServiceStateChange
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo

        async def ask(name: str) -> None:
            about = AsyncServiceInfo(KIND, name)
            if not await about.async_request(mdns.zeroconf, within_s * 1000):
                return
            if about.decoded_properties.get("group") == group:
                for address in about.parsed_addresses(IPVersion.All):
                    where = f"[{address}]:{about.port}" if ":" in address else f"{address}:{about.port}"
                    (again.append if where in useless else found.put_nowait)(where)

        asking: set[asyncio.Task[None]] = set()

        def changed(zeroconf: Any, service_type: str, name: str, state_change: ServiceStateChange) -> None:
            if state_change is ServiceStateChange.Added and len(asking) < MOST_ASKED:
                asking.add(asyncio.ensure_future(ask(name)))

        browser = AsyncServiceBrowser(mdns.zeroconf, KIND, handlers=[changed])
        try:
            return await asyncio.wait_for(found.get(), within_s)
        except (TimeoutError, asyncio.TimeoutError):
            return again[0] if again else None
        finally:
            await browser.async_cancel()
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


@asynccontextmanager
async def _mdns() -> AsyncIterator[AsyncZeroconf]:
    check_mdns()
    from zeroconf.asyncio import AsyncZeroconf

    mdns = AsyncZeroconf()
    try:
        yield mdns
    finally:
        await mdns.async_close()
