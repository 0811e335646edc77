"""The cloud server behind its doors: the devices that are connected, and the engine they share."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections import Counter
from contextlib import suppress
from time import monotonic, perf_counter

import structlog
from fastapi import WebSocket
from msgspec.structs import replace

from cloud_server.config import CloudConfig
from cloud_server.device_link import TURN_S, DeviceLink
from cloud_server.engine.engine import Engine
from cloud_server.engine.entries import SessionState
from cloud_server.engine.shares import Holding, may_open, tenant_of
from cloud_server.errands import Errands
from cloud_server.figures import figures_of
from service.secret_files import current
from service.sparing_log import SparingLog
from service.tls_server import certified
from service.traces import NO_TRACES, Traces
from service.version import VERSION
from wire.connection import Role
from wire.doorstep import Doorstep
from wire.errors import Code, ConnectionFailed
from wire.hello import check_device
from wire.limits import CLOUD_LINK
from wire.message import Drain
from wire.session_messages import UNNAMED, CloudWelcome, DeviceHello

log = structlog.get_logger()

MAX_DEVICES = 1024
"""Devices connected at once."""

RETRY_AFTER_S = 5.0
"""When a device that found no place should come back."""

LOOK_EVERY_S = 1.0
"""How often every device's advice is looked at again."""


class CloudServer:
    """The state behind the doors: connected devices and the engine they share.

    Args:
        about: what /state says of the layers beside their identity.
        traces: where the spans of sessions begin.
    """

    def __init__(
        self, config: CloudConfig, engine: Engine, about: dict[str, object], traces: Traces = NO_TRACES
    ) -> None:
        self.config = config
        self.engine = engine
        self.about = about
        self._traces = traces
        self.links: dict[int, DeviceLink] = {}
        self.began = monotonic()
        self._id = secrets.token_hex(4)
        self._doorstep = Doorstep(Role.CLOUD, CLOUD_LINK)
        self._connections = 0
        self._tokens: dict[str, int] = {}
        self._often = SparingLog()

    async def serve_device(self, websocket: WebSocket) -> None:
        """One device, from its hello to the end of its connection."""
        if "origin" in websocket.headers:
            await websocket.close(1008)  # A browser page has no business here.
            return
        self._connections += 1
        connection = self._connections
        link: DeviceLink | None = None
        try:
            async with self._doorstep.greeted(websocket) as (stream, hello):
                assert isinstance(hello, DeviceHello)
                certificate = certified(websocket)
                if (refusal := self._refusal(hello, certificate)) is not None:
                    raise refusal
                if certificate is not None:  # Who has shown who it is takes no other name, and so no other's share.
                    hello = replace(hello, name=certificate, credential="")
                token = secrets.token_urlsafe(16)
                self._tokens[token] = connection
                stream.post(self._welcome(token, hello.pads))
                errands = Errands(self._traces)
                link = DeviceLink(connection, hello, stream, self.engine, self._tokens, errands)
                self.links[connection] = link
                self._often.info("device connected", device=hello.name, connection=connection)
                try:
                    await link.serve()
                finally:
                    del self.links[connection]
        except ConnectionFailed as failure:
            self.engine.metrics.refused.labels(failure.code.value).inc()
            # The code alone: the text may be the device's own. Who never was a device could flood the log.
            if link is not None:
                self._often.info("device gone", connection=connection, code=failure.code.value)
            else:
                log.debug("device gone", connection=connection, code=failure.code.value)

    async def drain(self) -> int:
        """Refuse new sessions, tell the devices, wait for the open ones; returns how many were left at the limit."""
        sessions, ledger = self.engine.sessions, self.engine.ledger
        ledger.draining = True
        for link in list(self.links.values()):
            with suppress(ConnectionFailed):
                link.stream.post(Drain(self.config.drain_within_s, self.config.drain_to))
        sessions.end_kept()
        await sessions.emptied(self.config.drain_within_s)
        return ledger.count(SessionState.OPEN)

    def _refusal(self, hello: DeviceHello, certificate: str | None) -> ConnectionFailed | None:
        if self.engine.ledger.draining:
            return ConnectionFailed(Code.DRAINING, "the server is stopping", retry_after_s=1.0)
        identity = self.engine.identity
        served = dataclasses.replace(identity, credential=current(identity.credential))
        if (refusal := check_device(served, hello, certificate)) is not None:
            return refusal
        if not self.engine.alive:
            # Who is let in now would tell its gateway that it can answer, and then be refused its sessions.
            return ConnectionFailed(Code.OVERLOADED, "the layers are being started", retry_after_s=1.0)
        name, secret = (hello.name, hello.credential) if certificate is None else (certificate, "")
        connected = Counter(link.tenant for link in self.links.values())
        mine = Holding(connected.pop(tenant_of(secret, name), 0))
        if not may_open(MAX_DEVICES, mine, [Holding(count) for count in connected.values()]):
            text = f"{len(self.links)} devices are connected already, {mine.sessions} of them of this name"
            return ConnectionFailed(Code.OVERLOADED, text, retry_after_s=RETRY_AFTER_S)
        return None

    def _welcome(self, token: str, pads: bool) -> CloudWelcome:
        limits = self.engine.ledger.limits
        return CloudWelcome(
            name=f"{UNNAMED}-{self._id}",
            window_rows=limits.window_rows,
            max_rows=limits.rows,
            max_positions=limits.positions,
            max_sessions=limits.device_sessions,
            resume_token=token,
            resume_s=limits.resume_s,
            version=VERSION,
            pads=pads,
        )

    async def keep_looking(self) -> None:
        """``look_again`` every second, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look_again()

    async def look_again(self) -> None:
        """Tell every device the load and advise it anew, a little at a time; forget the tokens of connections that left
        nothing."""
        left = {connection for connection, _ in self.engine.ledger.entries} | set(self.links)
        for token in [token for token, connection in self._tokens.items() if connection not in left]:
            del self._tokens[token]
        if listeners := [link for link in self.links.values() if link.takes_state]:
            figures = figures_of(self.engine, len(self.links), self._id)
            for link in listeners:
                link.tell(figures)
        conditions, began = self.engine.conditions(), perf_counter()
        for link in list(self.links.values()):
            for _ in link.look_again(conditions):
                if perf_counter() - began > TURN_S:
                    await asyncio.sleep(0)
                    began = perf_counter()
