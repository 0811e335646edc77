"""The one connection to redis: whatever asks at the same time goes in one round trip, and nobody waits for long.

Where redis is gone, slow or answers nonsense, ``ask`` gives None at once and whoever asked goes on from memory. The
connection is made anew in the background, and counts as healed once redis takes what is written.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import redis.asyncio as redis_asyncio
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, OutOfMemoryError, ReadOnlyError

from service.secret_files import current
from service.sparing_log import SparingLog
from tls.why import cause
from tls.why import why as why_no_tls
from wire.backoff import delay_s

ANSWER_WITHIN_S: Final = 0.3
"""Of a round trip; redis takes a fraction of a millisecond. Who asks waits for the one under way and its own."""

LOOK_EVERY_S: Final = 0.03
"""A round trip is counted in waits of so long: that this process was too busy to look is not redis' fault."""

AT_LONGEST_S: Final = 1.5
"""By the clock, however busy this process is."""

OWN_DELAY_S: Final = 0.1
"""What giving up may take."""

BATCH: Final = 512
"""Commands in one round trip."""

CONNECT_WITHIN_S: Final = 2.0

CANCEL_AGAIN_S: Final = 0.1

MOST_WAITING: Final = 4096
"""Commands that wait for their turn; what comes beyond them is not sent."""

PROBE: Final = ("SET", "trilby:probe", "1", "PX", "1000")
"""A redis that cannot take this (a replica, one that is full) is none."""

NO_REDIS: Final = (ReadOnlyError, OutOfMemoryError, BusyLoadingError)
"""Refusals that are about redis and not about one command."""

log = structlog.get_logger()
often = SparingLog()

_Asked = tuple[tuple[Any, ...], "asyncio.Future[Any] | None"]


class BadReply(Exception):
    """What redis has answered is not what was asked for."""


class RedisLine:
    """A connection that is kept.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``; it may hold a password and is never shown. Where it came from
            a file, what is in that when it dials.
        changed: called with ``up`` whenever that has changed.
        options: further ones of redis' client: those of ``redis_tls.py``.
        within_s: how long a round trip may take.
        batch: commands in one.
        of: what this one is for, for people, where there are several.

    Attributes:
        up: whether redis answers.
        losses: how often it was lost, or could not be reached at first.
    """

    def __init__(
        self,
        url: str,
        changed: Callable[[bool], None] = lambda up: None,
        options: Mapping[str, Any] = MappingProxyType({}),
        within_s: float | None = None,
        batch: int = BATCH,
        of: str = "",
    ) -> None:
        self._url = url
        self._within_s = ANSWER_WITHIN_S if within_s is None else within_s
        self._batch = batch
        self._of = {"of": of} if of else {}
        self._options = options
        self._changed = changed
        self._waiting: list[_Asked] = []
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._hanging_up: asyncio.Task[None] | None = None
        """Of its own, since ``_run`` may be cancelled again meanwhile, and would leave the connection open."""
        self.up = False
        self.losses = 0
        self._told: bool | None = None

    async def open(self) -> None:
        """Begin; waits once, and not for long, for redis to be there."""
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(first))
        await asyncio.wait((first,), timeout=CONNECT_WITHIN_S)

    async def close(self) -> None:
        """End; what waits is not sent."""
        await ended(self._task)
        if self._hanging_up is not None:
            await asyncio.wait((self._hanging_up,), timeout=CONNECT_WITHIN_S)

    async def ask(self, *command: Any) -> Any:
        """Send a command; returns the answer, or None where there is none in time."""
        if not self.up or len(self._waiting) >= MOST_WAITING:
            return None
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, answer))
        self._some.set()
        return await answer

    def post(self, *command: Any) -> None:
        """Send a command whose answer nobody needs; nothing where redis is gone."""
        if self.up and len(self._waiting) < MOST_WAITING:
            self._waiting.append((command, None))
            self._some.set()

    async def _run(self, first: asyncio.Future[None]) -> None:
        attempt = 0
        while True:
            client: Any = None
            try:
                client = redis_asyncio.Redis.from_url(  # It may be none: what is in its file may be half written.
                    current(self._url),
                    single_connection_client=True,
                    retry=Retry(NoBackoff(), 0),
                    socket_timeout=max(CONNECT_WITHIN_S, self._within_s),
                    socket_connect_timeout=CONNECT_WITHIN_S,
                    protocol=2,
                    **self._options,
                )
                await _in_time(client.execute_command(*PROBE), CONNECT_WITHIN_S)
                attempt = 0
                self._now(True, "")
                _settle(first, None)
                await self._serve(client)
            except Exception as error:  # Whatever a parser makes of nonsense: there is no redis, and it may come back.
                # A message may quote the URL, which may hold a password; one of TLS is in words of ours.
                no_tls = cause(error)
                self._now(False, type(error).__name__ if no_tls is None else why_no_tls(no_tls, dialled=True))
            finally:
                self.up = False
                waiting, self._waiting = self._waiting, []
                for _, answer in waiting:
                    _settle(answer, None)
                if client is not None:
                    self._hanging_up = asyncio.create_task(_hang_up(client))
                    await asyncio.wait((self._hanging_up,), timeout=ANSWER_WITHIN_S)
            _settle(first, None)
            attempt += 1
            await asyncio.sleep(delay_s(min(attempt, 3), random.random()))

    async def _serve(self, client: Any) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            batch, self._waiting = self._waiting[: self._batch], self._waiting[self._batch :]
            if self._waiting:
                self._some.set()
            try:
                pipeline = client.pipeline(transaction=False)
                for command, _ in batch:
                    pipeline.execute_command(*command)
                answers = await _in_time(pipeline.execute(raise_on_error=False), self._within_s)
                if len(answers) != len(batch):
                    raise BadReply
                for (_, asked), answer in zip(batch, answers, strict=True):
                    _settle(asked, None if isinstance(answer, Exception) else answer)
                for answer in answers:
                    if isinstance(answer, NO_REDIS):
                        raise answer
                    if isinstance(answer, Exception):
                        often.warning("redis refuses a command", why=type(answer).__name__)
            finally:
                for _, asked in batch:
                    _settle(asked, None)

    def _now(self, up: bool, why: str) -> None:
        self.up = up
        if up == self._told:
            return
        self._told = up
        host, port = _where(current(self._url))
        if up:
            log.info("redis connected", host=host, port=port, **self._of)
        else:
            self.losses += 1
            log.warning("redis is gone: going on from memory", host=host, port=port, why=why, **self._of)
        self._changed(up)


def _where(url: str) -> tuple[str | None, int | None]:
    try:
        return urlsplit(url).hostname, urlsplit(url).port
    except ValueError:  # It is no URL.
        return None, None


async def _hang_up(client: Any) -> None:
    with suppress(Exception):  # Nobody is there, or nobody whom it interests.
        await client.aclose()


async def _in_time(work: Coroutine[Any, Any, Any], within_s: float) -> Any:
    """Raises ``asyncio.TimeoutError`` where redis does not answer in time; only what was waited here counts."""
    task, clock = asyncio.ensure_future(work), asyncio.get_running_loop().time
    left_s, until = within_s, clock() + max(within_s, AT_LONGEST_S)
    try:
        while left_s > 0 and clock() < until:
            wait_s = min(LOOK_EVERY_S, left_s)
            left_s -= wait_s
            await asyncio.wait((task,), timeout=wait_s)
            if task.done():
                return task.result()
        raise asyncio.TimeoutError
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # Marks it as seen.
            await asyncio.wait((task,), timeout=OWN_DELAY_S)


async def ended(task: asyncio.Task[None] | None) -> None:
    """Cancel a task until it has ended: before Python 3.12 ``wait_for`` may swallow a cancellation that comes as its
    time is up."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=CANCEL_AGAIN_S)


def _settle(future: asyncio.Future[Any] | None, value: Any) -> None:
    if future is not None and not future.done():
        future.set_result(value)
