"""Keeping the link to one cloud server: dialled again whenever it ends, and looked after while it is there."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog
from msgspec.structs import replace

from device_agent.cloud.link import CloudLink
from device_agent.redial import stay_connected
from service.secret_files import current
from service.sparing_log import SparingLog
from tls.contexts import Tls
from wire.connection import Role
from wire.errors import REFUSALS, Code, ConnectionFailed
from wire.hello import check_padding
from wire.limits import CLOUD_LINK
from wire.session_messages import CloudWelcome, Timing
from wire.stream import dial

log = structlog.get_logger()
often = SparingLog()

LOOK_EVERY_S = 1.0
"""How often overdue answers are looked for and times are reported."""

ROOM_EVERY_S = 0.005
"""How often is looked whether there is room again."""


class _Left(Exception):
    """The cloud server has drained and is gone."""


async def keep(link: CloudLink, tls: Tls | None, after_s: float = 0.0) -> None:
    """Stay connected until the cloud server has drained and is gone.

    Args:
        tls: of ``wss://``; None: the system's CAs are trusted.
        after_s: when it is dialled first.
    """

    async def once() -> None:
        try:
            await connection(link, tls)
        except ConnectionFailed as failure:
            if link.draining:
                raise _Left from failure
            link.refusal = failure if failure.code in REFUSALS else None
            raise

    await asyncio.sleep(after_s)
    with suppress(_Left):
        await stay_connected("cloud", lambda: link.url, once)


async def connection(link: CloudLink, tls: Tls | None = None) -> None:
    """One connection, until it ends. Raises ``ConnectionFailed``."""
    context = None if tls is None else tls.dialling()
    async with dial(link.url, Role.DEVICE, CLOUD_LINK, context) as stream:
        stream.post(replace(link.hello, credential=current(link.hello.credential)))
        welcome = (await stream.receive()).message
        assert isinstance(welcome, CloudWelcome)
        if not (welcome.max_rows and welcome.window_rows):
            raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, "the cloud server says that it takes no rows at all")
        check_padding(link.hello.pads, welcome.pads)
        link.begin(stream, welcome)
        tasks = [asyncio.create_task(work) for work in (link.read(stream), _look(link), _make_room(link))]
        try:
            often.info("cloud connected", url=link.url)
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            link.end()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _look(link: CloudLink) -> None:
    clock = asyncio.get_running_loop().time
    try:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for session in link.sessions:
                session.look(clock())
            link.tell()
            took, link.took = link.took, Timing([], [])
            if took.ttft_us or took.tbt_us:
                with suppress(ConnectionFailed):
                    link.post(took)
    except Exception as error:  # Whoever would wait for ever without it must learn of it.
        log.exception("bug in looking after the sessions of a connection")
        raise ConnectionFailed(Code.INTERNAL, "the device cannot look after its sessions") from error


async def _make_room(link: CloudLink) -> None:
    while True:
        await link.holding.wait()
        while link.held:
            await asyncio.sleep(ROOM_EVERY_S)
            while link.held and not link.crowded:
                number = next(iter(link.held))
                del link.held[number]
                if number in link.attached:
                    link.attached[number].pump()
        link.holding.clear()
