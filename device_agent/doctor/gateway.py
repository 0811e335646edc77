"""The link to a gateway: a real hello that asks for nothing, and so changes nothing."""

from __future__ import annotations

from typing import Final

from device_agent.doctor.link import NAME, dialling, looked_into, round_trip, unlike
from service.doctor.config import DoctorConfig
from service.doctor.finding import Finding, Say
from service.doctor.place import Place
from service.secret_files import current
from wire.connection import Role
from wire.errors import Code, ConnectionFailed
from wire.limits import GATEWAY_LINK
from wire.request_messages import AgentHello, ServedModel

NO_BANDWIDTH: Final = "not measured: text is all that goes to a gateway, and nothing there would answer with bytes"


async def look_at_gateway(place: Place, config: DoctorConfig, say: Say) -> None:
    """Tell whether devices' token is right there, and how long a round trip is.

    An agent that takes no request is let in by nobody, and told so behind the token: no client ever meets it.
    """
    about, token = place.websocket, current(config.device_token)
    hello = AgentHello(NAME, token, [ServedModel(NAME, 1, 0)], capacity=0)
    times: list[float] = []
    try:
        context = dialling(config, place)
        async with looked_into(f"{about}/device", Role.AGENT, GATEWAY_LINK, context) as (stream, times):
            stream.post(hello)
            await stream.receive()
        say(Finding("token", "ok", _accepted(token), about=about))  # Of another release, which lets it in.
    except ConnectionFailed as failure:
        say(_token(about, token, failure))
        if failure.code not in (Code.INVALID_REQUEST, Code.UNAUTHORIZED):
            return
    say(round_trip(about, times))
    say(Finding("bandwidth", "ok", NO_BANDWIDTH, about=about))


def _token(about: str, token: str, failure: ConnectionFailed) -> Finding:
    if failure.code is Code.INVALID_REQUEST:
        return Finding("token", "ok", _accepted(token), about=about)
    if failure.code is Code.UNAUTHORIZED:
        seen = "devices' token is refused" if token else "it asks for devices' token, and none was given"
        todo = "Give the one that the gateway was started with: TRILBY_DEVICE_TOKEN, or --device-token-file FILE."
        return Finding("token", "fail", seen, todo, about)
    return unlike(about, failure, "gateway")


def _accepted(token: str) -> str:
    return "devices' token is accepted" if token else "devices are let in without a token"
