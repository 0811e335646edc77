"""The agent: connected to a gateway, serving its requests with one model, several at once."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Union

import structlog
from msgspec.structs import replace

from device_agent.answering.answer import ServedChain, answer
from device_agent.answering.deciding import decide
from device_agent.answering.reading import ServedReader, read
from device_agent.answering.tokenizing import tokenize
from device_agent.redial import stay_connected
from device_agent.sharing.observing import Observing
from device_agent.sharing.progress import Progress
from device_agent.sharing.served_request import ServedRequest, served_request
from service.errands import plain_id
from service.secret_files import current
from service.traces import NO_TRACES, Span, Traces
from tls.contexts import Tls
from wire.connection import Role
from wire.decision_messages import QUESTIONS_AT_ONCE, Decide, Decided
from wire.errors import Code, ConnectionFailed, SessionFailed
from wire.group_messages import GroupReport
from wire.hello import check_padding
from wire.limits import GATEWAY_LINK, SHORT_FRAME_BYTES
from wire.message import Drain, Failed
from wire.messages import AnyMessage
from wire.observed_messages import Observe, Wire
from wire.reading_messages import Read
from wire.request_messages import AgentHello, AgentState, Cancel, Finished, GatewayWelcome, Generate
from wire.stream import Stream, dial
from wire.text_messages import Tokenize

log = structlog.get_logger()

Asked = Union[Generate, Read, Tokenize, Decide]


@dataclass(eq=False)
class _Open:
    """A request that is being answered: its task, the choices that may be generated at once, and those unfinished."""

    task: asyncio.Task[None]
    at_once: int
    unfinished: int
    cancelled: bool = False

    @property
    def load(self) -> int:
        """Answers to generate at once; none where nobody waits any more: the gateway counts it so."""
        return 0 if self.cancelled else min(self.at_once, self.unfinished)


class Agent:
    """Serves one gateway at a time.

    Args:
        urls: gateways, each ``ws://host:port``; where one is lost or refuses, the next is dialled, in turns.
        hello: who this agent is and what it serves.
        cloud_connected: whether the cloud can be reached now; None when the model needs none.
        group: what there is to say of the group that this agent is the portal of; None where there is none.
        tls: of ``wss://``; None: the system's CAs are trusted.
        mode: how the model is divided, for people.
        wires: the connections that this device has beside this one, now.
        restored: how often sessions had to be brought to a cloud again so far.

    Attributes:
        traces: where the spans of its requests begin.
    """

    def __init__(
        self,
        urls: Sequence[str],
        hello: AgentHello,
        model: ServedChain | ServedReader,
        cloud_connected: Callable[[], bool | None],
        group: Callable[[], GroupReport | None] = lambda: None,
        tls: Tls | None = None,
        mode: str = "",
        wires: Callable[[], list[Wire]] = list,
        restored: Callable[[], int] = int,
    ) -> None:
        self._urls = [url.rstrip("/") + "/device" for url in urls]
        self._dialled = 0
        self._hello = hello
        self._model = model
        self._cloud_connected = cloud_connected
        self._group = group
        self._restored = restored
        self._observing = Observing(mode, wires, self._post, self._is_behind)
        self._tls = tls
        self._stream: Stream | None = None
        self.traces: Traces = NO_TRACES
        self._requests: dict[int, _Open] = {}
        self._draining = False

    async def run(self) -> None:
        """Stay connected and serve, for ever."""
        await stay_connected("gateway", lambda: self._url, self._connection)

    async def drain(self, within_s: float) -> None:
        """Tell the gateway, let the requests that run finish, cancel what is left after ``within_s`` seconds."""
        self._draining = True
        self._post(Drain(within_s))
        if self._requests:
            await asyncio.wait([each.task for each in self._requests.values()], timeout=within_s)
        await self._cancel_all()

    def report(self) -> None:
        """Tell the gateway this agent's load and state."""
        self._post(AgentState(self._running, self._cloud_connected(), self._group(), self._restored()))

    @property
    def _running(self) -> int:
        """Answers that somebody waits for, of each request as many as may be generated at once."""
        return sum(each.load for each in self._requests.values())

    @property
    def _url(self) -> str:
        """The gateway dialled last."""
        return self._urls[(self._dialled - 1) % len(self._urls)]

    async def _connection(self) -> None:
        self._dialled += 1
        context = None if self._tls is None else self._tls.dialling()
        async with dial(self._url, Role.AGENT, GATEWAY_LINK, context) as stream:
            credential = current(self._hello.credential)
            connected = self._cloud_connected()
            stream.post(replace(self._hello, credential=credential, cloud_connected=connected, observable=True))
            welcome = (await stream.receive()).message
            assert isinstance(welcome, GatewayWelcome)
            check_padding(self._hello.pads, welcome.pads)
            self._stream = stream
            log.info("gateway connected", url=self._url)
            self.report()
            try:
                while True:
                    self._handle((await stream.receive()).message)
            finally:
                self._observing.stop()
                self._stream = None
                await self._cancel_all()

    def _handle(self, message: AnyMessage) -> None:
        if isinstance(message, (Generate, Read, Tokenize, Decide)):
            self._begin(message)
        elif isinstance(message, Cancel):
            request = self._requests.get(message.request)
            if request is not None:
                request.cancelled = True
                request.task.cancel()
                if self._stream is not None:
                    self._stream.withdraw(message.request)
        elif isinstance(message, Observe):
            self._observing.asked(message.every_ms)
        elif isinstance(message, Drain):
            log.info("gateway drains", within_s=message.within_s)

    def _begin(self, request: Asked) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            self._fail(request.request, refusal)
            return
        task = asyncio.create_task(self._serve(request, self._observing.begin(request.request)))
        at_once = choices = 1
        if isinstance(request, Generate):
            at_once, choices = request.at_once or request.n, request.n
        elif isinstance(request, Decide):
            at_once, choices = request.at_once or QUESTIONS_AT_ONCE, len(request.questions)
        self._requests[request.request] = _Open(task, min(at_once, choices), choices)
        task.add_done_callback(lambda _: self._ended(request.request))
        self.report()

    def _refusal(self, request: Asked) -> SessionFailed | None:
        if self._draining:
            return SessionFailed(Code.DRAINING, "this device is stopping", retry_after_s=1.0)
        if request.request in self._requests:
            return SessionFailed(Code.DUPLICATE_SESSION, "this request number is in use")
        if self._running >= self._hello.capacity:
            return SessionFailed(Code.OVERLOADED, "this device generates as many answers as it can", retry_after_s=1.0)
        names = [served.id for served in self._hello.models]
        if request.model not in names:
            return SessionFailed(Code.MODEL_NOT_FOUND, f"this device serves {', '.join(names)}", param="model")
        return None

    async def _serve(self, request: Asked, progress: Progress) -> None:
        span = self.traces.span("answer", request.traceparent)
        known = {"trace_id": span.trace_id} if span.trace_id else {}
        structlog.contextvars.bind_contextvars(request_id=request.request_id, **known)
        served_request.set(ServedRequest(request.request_id, span, progress))
        try:
            await self._answer(request, lambda message: self._tell(request.request, message))
            log.debug("request done")
            self._say_of(span, request, "done")
        except (SessionFailed, ConnectionFailed) as failure:
            log.info("request failed", code=failure.code.value)
            self._say_of(span, request, "failed")
            span.fail(failure.code.value)
            if isinstance(failure, SessionFailed):  # Else nobody is there to be told.
                self._fail(request.request, failure)
        except asyncio.CancelledError:
            log.info("request cancelled")
            self._say_of(span, request, "cancelled")
            raise
        except Exception as error:  # Nothing that one request does may end the agent.
            # The places, not the message: it might quote the request.
            places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
            log.error("request crashed", error=type(error).__name__, places=places)
            self._say_of(span, request, "crashed")
            span.fail(Code.INTERNAL.value)
            self._fail(request.request, SessionFailed(Code.INTERNAL, "the device failed on this request"))
        finally:
            span.end()

    def _say_of(self, span: Span, request: Asked, outcome: str) -> None:
        """What a request was and how it ended, and how fast the members of the group are, where there is one."""
        if not span.trace_id:
            return
        span.note(request_id=plain_id(request.request_id), how=type(request).__name__.lower(), outcome=outcome)
        span.note(model=request.model)
        if (group := self._group()) is not None:
            times = [each.step_ms for each in group.members]
            span.note(mode=group.mode, members=len(times), member_step_ms=times)

    async def _answer(self, request: Asked, post: Callable[[AnyMessage], None]) -> None:
        model = self._model
        if isinstance(request, Read) and (reader := _reader_of(model)) is not None:
            await read(reader, request, post)
        elif isinstance(request, Generate) and not isinstance(model, ServedReader):
            await answer(model, request, post)
        elif isinstance(request, Tokenize) and not isinstance(model, ServedReader):
            await tokenize(model, request, post)
        elif isinstance(request, Decide) and not isinstance(model, ServedReader):
            await decide(model, request, post)
        else:
            raise SessionFailed(Code.INVALID_REQUEST, "this model does something else", param="model")

    def _ended(self, number: int) -> None:
        self._requests.pop(number, None)
        self._observing.end(number)
        self.report()

    def _tell(self, number: int, message: AnyMessage) -> None:
        self._post(message)
        request = self._requests.get(number)
        if isinstance(message, (Finished, Decided)) and request is not None:
            request.unfinished -= 1
            if 0 < request.unfinished < request.at_once:  # The end of the last is the end of the request.
                self.report()

    def _fail(self, number: int, failure: SessionFailed) -> None:
        self._post(Failed(failure.code.value, failure.message[:512], number, failure.param, failure.retry_after_s))

    def _post(self, message: AnyMessage) -> None:
        if self._stream is not None:
            with suppress(ConnectionFailed):  # The reader of this stream cancels what runs for it.
                self._stream.post(message)

    def _is_behind(self) -> bool:
        """Whether so much is on its way to the gateway that what people are told of it has to wait."""
        return self._stream is None or self._stream.queued_bytes > SHORT_FRAME_BYTES

    async def _cancel_all(self) -> None:
        tasks = [each.task for each in self._requests.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reader_of(model: ServedChain | ServedReader) -> ServedReader | None:
    """What reads texts or images; None where it only writes."""
    return model if isinstance(model, ServedReader) else model.reader
