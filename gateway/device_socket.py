"""``/device``: where device agents connect."""

from __future__ import annotations

import itertools
from typing import Final

from starlette.websockets import WebSocket

from gateway.agents import AgentLink
from gateway.delivery import Desk
from gateway.keys import KeyRing
from service.sparing_log import SparingLog
from wire.connection import Role
from wire.doorstep import Doorstep
from wire.errors import Code, ConnectionFailed
from wire.limits import GATEWAY_LINK
from wire.request_messages import AgentHello, GatewayWelcome

NAME: Final = "gateway"

_numbers: Final = itertools.count(1)


def check_agent(hello: AgentHello, token: KeyRing, connected: int, max_agents: int) -> ConnectionFailed | None:
    """Return why an agent is not let in; None when it is. The credential is looked at first: a stranger learns no more.

    Args:
        token: a ring with the device token, which may be the empty text on loopback: then only the empty one fits.
        connected: agents connected already.
    """
    if not token.admits(hello.credential):
        return ConnectionFailed(
            Code.UNAUTHORIZED, "the credential is missing or wrong: start the agent with the gateway's --device-token"
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
    """The door for agents, and who stands in it.

    Args:
        token: a ring with the device token.
    """

    def __init__(self, desk: Desk, token: KeyRing) -> None:
        self._desk = desk
        self._token = token
        self._doorstep = Doorstep(Role.GATEWAY, GATEWAY_LINK)
        self._often = SparingLog()

    async def serve(self, websocket: WebSocket) -> None:
        """One agent's connection from its hello to its end."""
        roster = self._desk.roster
        name = ""
        try:
            async with self._doorstep.greeted(websocket) as (stream, hello):
                if not isinstance(hello, AgentHello):
                    raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, "an agent begins with its hello")
                name = hello.name
                refused = check_agent(hello, self._token, len(roster.links), self._desk.config.max_agents)
                if refused is None and self._desk.dispatcher.draining:
                    refused = ConnectionFailed(Code.DRAINING, "this gateway is stopping")
                if refused is not None:
                    raise refused
                stream.post(GatewayWelcome(NAME))
                link = AgentLink(f"{name}#{next(_numbers)}", hello, stream, roster.changed)
                roster.join(link)
                self._often.info("agent connected", agent=name, models=[model.id for model in hello.models],
                                 capacity=hello.capacity)  # fmt: skip
                try:
                    await link.listen()
                finally:
                    roster.leave(link)
        except ConnectionFailed as failure:
            self._often.info("agent disconnected", failure.code.value, agent=name, code=failure.code.value,
                             reason=failure.message)  # fmt: skip
