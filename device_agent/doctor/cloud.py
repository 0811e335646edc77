"""The link to a cloud server: a real hello with this machine's model, round trips, and how fast rows go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from device_agent.doctor.bandwidth import WITHIN_S, NotMeasured, Speeds, measured
from device_agent.doctor.link import NAME, dialling, looked_into, round_trip, unlike
from service.doctor.config import DoctorConfig
from service.doctor.finding import Finding, Say, sentence
from service.doctor.place import Place
from service.doctor.served import same_release
from service.secret_files import current
from wire.connection import Role
from wire.errors import Code, ConnectionFailed
from wire.limits import CLOUD_LINK, ITEM_BYTES
from wire.session_messages import CloudWelcome, DeviceHello
from wire.stream import Stream

PROMPT: Final = 1000
"""Tokens of a prompt that a bandwidth is explained by."""

LONG_S: Final = 10.0
"""Such a prompt had better not take longer."""

_MODELS: Final = (Code.MODEL_MISMATCH, Code.DIGEST_MISMATCH, Code.SPLIT_MISMATCH, Code.DTYPE_MISMATCH)
"""Refusals behind the token: the two sides do not fit."""


async def look_at_cloud(place: Place, config: DoctorConfig, hello: DeviceHello | None, say: Say) -> None:
    """Tell whether the token is right there, whether its model is this machine's, and how fast the link is.

    hello: what a device with this machine's model says, without its token; None: there is no model to compare.
    """
    about, token = place.websocket, current(config.cloud_token)
    said = replace(hello or DeviceHello(NAME, "", "", "", 0, 0, 0, config.dtype), name=NAME, credential=token)
    times: list[float] = []
    try:
        context = dialling(config, place)
        async with looked_into(f"{about}/device", Role.DEVICE, CLOUD_LINK, context) as (stream, times):
            stream.post(said)
            welcome = (await stream.receive()).message
            assert isinstance(welcome, CloudWelcome)
            say(_accepted(about, token))
            say(same_release(about, welcome.version))
            say(_same_model(about, said, welcome))
            say(round_trip(about, times))
            if config.bandwidth:
                say(await _bandwidth(about, stream, welcome, said, times))
    except ConnectionFailed as failure:
        for finding in _refused(about, token, failure, compared=hello is not None):
            say(finding)
        if times and failure.code in (Code.UNAUTHORIZED, *_MODELS):
            say(round_trip(about, times))


async def _bandwidth(
    about: str, stream: Stream, welcome: CloudWelcome, hello: DeviceHello, times: Sequence[float]
) -> Finding:
    try:
        speeds = await asyncio.wait_for(measured(stream, welcome, hello, times), WITHIN_S)
    except NotMeasured as error:
        todo = "Try again when it has less to do."
        return Finding("bandwidth", "warn", f"not measured: {error}", todo, about)
    except (TimeoutError, asyncio.TimeoutError):
        seen = f"some tens of kilobytes and their answer took more than {WITHIN_S:g} s"
        todo = "Look at the link, and at what else uses it; or the cloud server is busy: its /state says so."
        return Finding("bandwidth", "warn", seen, todo, about)
    return bandwidth_of(about, speeds, hello)


def bandwidth_of(about: str, speeds: Speeds, hello: DeviceHello) -> Finding:
    """What is to be said of a bandwidth. Pure."""
    prompt_s = PROMPT * hello.hidden_size * ITEM_BYTES[hello.dtype] / speeds.up_bytes_s
    figures = {"up_bytes_s": speeds.up_bytes_s, "down_bytes_s": speeds.down_bytes_s, "bytes": speeds.length}
    up, down = _rate(speeds.up_bytes_s, speeds.up_is_least), _rate(speeds.down_bytes_s, speeds.down_is_least)
    seen = f"up {up}, down {down}"
    seen += f" ({speeds.length / 1e6:.2g} MB at once); a prompt of {PROMPT} tokens takes {_time(prompt_s)} up"
    if prompt_s <= LONG_S:
        return Finding("bandwidth", "ok", seen, about=about, figures=figures)
    todo = "Say --dtype bfloat16 on both sides where it is float32 (half the bytes), or take a faster link."
    return Finding("bandwidth", "warn", seen, todo, about, figures)


def _rate(bytes_s: float, is_least: bool) -> str:
    rate = f"{bytes_s / 1e6:.1f} MB/s" if bytes_s >= 1e6 else f"{bytes_s / 1e3:.0f} kB/s"
    return f"at least {rate}" if is_least else rate


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _accepted(about: str, token: str) -> Finding:
    seen = "devices' token is accepted" if token else "devices are let in without a token"
    return Finding("token", "ok", seen, about=about)


def _same_model(about: str, hello: DeviceHello, welcome: CloudWelcome) -> Finding:
    seen = f"{hello.model} with the same weights on both sides; layers {hello.first_layer} to {hello.last_layer - 1} "
    seen += f"run there in {hello.dtype}, for up to {welcome.max_positions} positions"
    return Finding("model", "ok", seen, about=about, figures={"positions": welcome.max_positions})


def _refused(about: str, token: str, failure: ConnectionFailed, *, compared: bool) -> list[Finding]:
    if failure.code is Code.UNAUTHORIZED:
        seen = "devices' token is refused" if token else "it asks for devices' token, and none was given"
        todo = "Give the one that the cloud was started with: TRILBY_CLOUD_TOKEN, or --cloud-token-file FILE."
        return [Finding("token", "fail", seen, todo, about)]
    if failure.code not in _MODELS:
        return [unlike(about, failure, "cloud server")]
    if not compared:
        seen = "not compared: no model was given here, or it could not be read; --model DIR names one"
        return [_accepted(about, token), Finding("model", "ok", seen, about=about)]
    seen, _, todo = failure.message.partition(": ")
    todo = sentence(todo) or "Give both sides the same model."
    return [_accepted(about, token), Finding("model", "fail", seen, todo, about)]
