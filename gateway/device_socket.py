"""``/device``: where device agents connect."""

from __future__ import annotations

import itertools
from typing import Final

from starlette.websockets import WebSocket

from gateway.agents import AgentLink
from gateway.delivery import Desk
from service.sparing_log import SparingLog
from wire.connection import Role
from wire.doorstep import Doorstep
from wire.errors import Code, ConnectionFailed
from wire.hello import same_secret
from wire.limits import GATEWAY_LINK
from wire.request_messages import AgentHello, GatewayWelcome

NAME: Final = "gateway"

_numbers: Final = itertools.count(1)


def check_agent(hello: AgentHello, token: str, connected: int, max_agents: int) -> ConnectionFailed | None:
    """Return why an agent is not let in; None when it is. The credential is looked at first: a stranger learns no more.

    Args:
        token: the device token, which may be empty on loopback: then only an empty credential fits.
        connected: agents connected already.
    """
    if not same_secret(hello.credential, token):
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
                refused = check_agent(hello, config.device_token, len(roster.links), config.max_agents)
                if refused is not None:
                    raise refused
                if self._desk.dispatcher.draining:
                    raise ConnectionFailed(Code.DRAINING, "this gateway is stopping")
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
