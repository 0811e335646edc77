"""``/device``: where device agents connect."""

from __future__ import annotations

import itertools
import time
from typing import Final

from msgspec.structs import replace
from starlette.websockets import WebSocket

from gateway.agents import AgentLink
from gateway.delivery import Desk
from service.secret_files import current
from service.sparing_log import SparingLog
from service.tls_server import certified
from wire.connection import Role
from wire.doorstep import Doorstep
from wire.errors import Code, ConnectionFailed
from wire.hello import admitted
from wire.limits import GATEWAY_LINK
from wire.request_messages import AgentHello, GatewayWelcome

NAME: Final = "gateway"

LEFT_BUSY: Final = "what it had begun has failed, the rest goes to other devices"
LEFT_IDLE: Final = "it had no requests"
"""What becomes of the requests of an agent that has left."""

_numbers: Final = itertools.count(1)


def check_agent(
    hello: AgentHello,
    token: str,
    connected: int,
    max_agents: int,
    certificate: str | None = None,
    takes_certificates: bool = False,
) -> ConnectionFailed | None:
    """Return why an agent is not let in; None when it is. The credential is looked at first: a stranger learns no more.

    Args:
        token: the device token, which may be empty on loopback: then only an empty credential fits.
        connected: agents connected already.
        certificate: the name in the one that it has shown, which does instead of the token.
        takes_certificates: whether it might have; without a token it must.
    """
    known = admitted(hello.credential, token, certificate, needed=takes_certificates or bool(hello.credential))
    if not known:
        return ConnectionFailed(
            Code.UNAUTHORIZED,
            "the credential is missing or wrong: start the agent with the gateway's --device-token"
            + (", or with a --tls-cert of its CA's" if takes_certificates else ""),
        )
    if not hello.capacity:
        return ConnectionFailed(Code.INVALID_REQUEST, "an agent that takes no request is of no use")
    if len({model.id for model in hello.models}) < len(hello.models):
        return ConnectionFailed(Code.INVALID_REQUEST, "a model is listed twice")
    if any(not model.id or not model.max_positions for model in hello.models):
        return ConnectionFailed(Code.INVALID_REQUEST, "a model needs an id and at least one position")
    if connected >= max_agents:
        return ConnectionFailed(Code.OVERLOADED, f"{max_agents} agents are connected already")
    return None


class DeviceSocket:
    """The door for agents, and who stands in it."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._doorstep = Doorstep(Role.GATEWAY, GATEWAY_LINK)
        self._often = SparingLog()

    async def serve(self, websocket: WebSocket) -> None:
        """One agent's connection from its hello to its end."""
        roster, config = self._desk.roster, self._desk.config
        name = ""
        try:
            async with self._doorstep.greeted(websocket) as (stream, hello):
                assert isinstance(hello, AgentHello)
                name = hello.name
                certificate, known = certified(websocket), len(roster.links)
                refused = check_agent(
                    hello,
                    current(config.device_token),
                    known,
                    config.max_agents,
                    certificate,
                    config.takes_certificates,
                )
                if refused is not None:
                    raise refused
                if certificate is not None:  # Who has shown who it is takes no other name.
                    name, hello = certificate, replace(hello, name=certificate)
                if self._desk.dispatcher.draining:
                    raise ConnectionFailed(Code.DRAINING, "this gateway is stopping")
                stream.post(GatewayWelcome(NAME, hello.pads))
                incidents = self._desk.metrics.incidents
                link = AgentLink(f"{name}#{next(_numbers)}", hello, stream, roster.changed, incidents)
                roster.join(link)
                self._often.info("agent connected", agent=name, models=[model.id for model in hello.models],
                                 capacity=hello.capacity)  # fmt: skip
                try:
                    await link.listen()
                except ConnectionFailed as failure:
                    done = LEFT_BUSY if link.busy else LEFT_IDLE
                    incidents.note(time.time(), f"device_{failure.code.value}", name, done)
                    raise
                finally:
                    roster.leave(link)
        except ConnectionFailed as failure:
            self._often.info("agent disconnected", failure.code.value, agent=name, code=failure.code.value,
                             reason=failure.message)  # fmt: skip
