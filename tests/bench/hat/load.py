"""A load generator of its own: a plan of requests in, a record of each out.

    PYTHONPATH=tests python -m bench.hat.load PLAN.json RECORDS.jsonl

Open loop: every request is sent when it is due, whatever became of the others; ``closed`` sends so many at once
instead, and the next when one ends. Answers come over the gateway's token socket, whose messages say how many tokens
they bring; each request has a socket of its own, connected before it is due. Standard output has ``began SECONDS`` (of
this machine's monotonic clock, which all times of the records count from), then ``sent ID`` and ``done ID`` as it
happens.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import msgspec
from bench.hat.latency import Record, Timings
from msgspec import Meta, UnsetType
from websockets.asyncio.client import ClientConnection, connect

CONNECT_AHEAD_S: Final = 0.5
"""How long before a request is due its socket is connected."""

MAX_MESSAGE_BYTES: Final = 1 << 20


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request: when it is due, and its body. ``extra`` are members of the body; they win over what is usual here.

    ``prompt_tokens`` is for the record of a request whose prompt the server never counted.
    """

    id: int | str
    due_s: Annotated[float, Meta(ge=0)]
    messages: list[dict[str, str]]
    max_tokens: Annotated[int, Meta(ge=1)]
    prompt_tokens: int = 0
    extra: dict[str, Any] = {}


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to send where; after ``deadline_s`` all that is not answered has failed. ``closed`` 0: open loop."""

    base: Annotated[str, Meta(pattern="^https?://")]
    requests: list[Request]
    deadline_s: Annotated[float, Meta(gt=0)]
    closed: Annotated[int, Meta(ge=0)] = 0

    @property
    def socket_url(self) -> str:
        """The token socket's."""
        return "ws" + self.base.removeprefix("http").rstrip("/") + "/stream"


class _Details(msgspec.Struct):
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    completion_tokens_details: _Details | UnsetType | None = None


class _Problem(msgspec.Struct):
    message: str
    code: str | None = None


class _Message(msgspec.Struct):
    """Any message of the socket, as far as it matters here."""

    type: str
    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    finish_reason: str = ""
    timings: Timings | None = None
    usage: _Usage | None = None
    error: _Problem | None = None


_read: Final = msgspec.json.Decoder(_Message).decode
_write: Final = msgspec.json.Encoder().encode


class Course:
    """One request on its way; ``record`` is what there is to say of it at any time."""

    def __init__(self, request: Request, due_s: float) -> None:
        self.request = request
        self.due_s = due_s
        self.sent_s: float | None = None
        self.error = ""
        self._chunks: list[tuple[float, int]] = []
        self._digest = hashlib.sha256()
        self._finish = ""
        self._timings: Timings | None = None
        self._prompt_tokens = request.prompt_tokens
        self._usage = _Usage(0, 0)

    def heard(self, message: _Message, at_s: float) -> bool:
        """Take in a message; whether it was the last."""
        if message.type == "delta":
            if message.tokens:
                self._chunks.append((at_s, message.tokens))
            self._digest.update(message.text.encode())
        elif message.type == "accepted":
            self._prompt_tokens = message.prompt_tokens
        elif message.type == "finished":
            self._finish, self._timings = message.finish_reason, message.timings
        elif message.type == "usage" and message.usage is not None:
            self._usage = message.usage
        elif message.type == "error" and message.error is not None:
            self.error = f"{message.error.code}: {message.error.message}"
        return message.type in ("done", "error")

    def record(self) -> Record:
        usage = self._usage
        details = usage.completion_tokens_details or _Details()
        accepted = details.accepted_prediction_tokens
        return Record(
            id=self.request.id,
            due_s=self.due_s,
            sent_s=self.sent_s,
            first_s=self._chunks[0][0] if self._chunks else None,
            chunks=self._chunks,
            prompt_tokens=usage.prompt_tokens or self._prompt_tokens,
            tokens=usage.completion_tokens,
            accepted=accepted,
            proposed=accepted + details.rejected_prediction_tokens,
            text_digest=self._digest.hexdigest()[:16],
            finish=self._finish,
            error=self.error,
            timings=self._timings,
        )


class Load:
    """A plan being carried out; ``records`` and ``said`` are written to as it goes."""

    def __init__(self, plan: Plan, records: TextIO, said: TextIO) -> None:
        self._plan = plan
        self._records = records
        self._said = said
        self._began = 0.0

    async def run(self) -> None:
        """Send all requests, and leave a record of every one of them."""
        requests = iter(self._plan.requests)
        self._began = time.perf_counter()
        self._say(f"began {self._began:.6f}")
        if self._plan.closed:
            tasks = [asyncio.create_task(self._one_by_one(requests)) for _ in range(self._plan.closed)]
        else:
            tasks = [asyncio.create_task(self._when_due(Course(each, each.due_s))) for each in requests]
        if tasks:
            await asyncio.wait(tasks, timeout=self._plan.deadline_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for left in requests:  # The closed loop did not come to these.
            self._note(Course(left, left.due_s), "deadline")

    async def _one_by_one(self, requests: Iterator[Request]) -> None:
        for request in requests:
            await self._carry_out(Course(request, self._now()), 0.0)

    async def _when_due(self, course: Course) -> None:
        await self._carry_out(course, course.due_s)

    async def _carry_out(self, course: Course, due_s: float) -> None:
        """From connecting to the record, which is written whatever happens."""
        socket: ClientConnection | None = None
        error = "deadline"  # All that ends it without an error of its own.
        try:
            await asyncio.sleep(due_s - CONNECT_AHEAD_S - self._now())
            socket = await self._connect()
            await asyncio.sleep(due_s - self._now())
            await self._ask(socket, course)
            error = ""
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"
        finally:
            self._note(course, error)
            if socket is not None:
                socket.transport.abort()  # There is nothing left to say, and the next may be due.

    async def _ask(self, socket: ClientConnection, course: Course) -> None:
        request = course.request
        body: dict[str, Any] = {"messages": request.messages, "max_tokens": request.max_tokens, "temperature": 0}
        text = _write(body | request.extra).decode()
        course.sent_s = self._now()
        await socket.send(text)
        self._say(f"sent {request.id}")
        last = False
        while not last:
            data = await socket.recv(decode=False)
            last = course.heard(_read(data), self._now())

    async def _connect(self) -> ClientConnection:
        return await connect(
            self._plan.socket_url,
            compression=None,
            proxy=None,
            ping_interval=None,  # What hangs is found by the deadline.
            open_timeout=None,
            max_size=MAX_MESSAGE_BYTES,
        )

    def _note(self, course: Course, error: str) -> None:
        course.error = course.error or error
        self._records.write(_write(course.record()).decode() + "\n")
        self._records.flush()
        self._say(f"done {course.request.id}")

    def _say(self, line: str) -> None:
        print(line, file=self._said, flush=True)

    def _now(self) -> float:
        return time.perf_counter() - self._began


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the plan, carry it out."""
    parser = argparse.ArgumentParser(prog="python -m bench.hat.load", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("plan", type=Path, help="JSON: " + ", ".join(Plan.__struct_fields__))
    parser.add_argument("records", type=Path, help="written anew: one JSON object a line and request, as they end")
    options = parser.parse_args(arguments)
    try:
        plan = msgspec.json.decode(options.plan.read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError) as error:
        parser.error(f"{options.plan} is no plan: {error}")
    gc.collect()
    gc.freeze()  # Nothing of the program itself is looked at again while times are taken.
    with options.records.open("w", encoding="utf-8") as records:
        asyncio.run(Load(plan, records, sys.stdout).run())


if __name__ == "__main__":
    main()
