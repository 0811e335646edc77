"""The link to one cloud server: what goes there and comes back, for the sessions that are attached there, and how fast.

``keeping`` dials it, and again whenever its connection ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import torch

from device_agent.cloud.asked import Attached
from device_agent.cloud.bandwidth import ALPHA, SHORT_BYTES, THRESHOLD, LinkMonitor
from service.sparing_log import SparingLog
from split_model.hints import Pace
from split_model.packed_rows import shortest
from wire.errors import Code, ConnectionFailed, SessionFailed, code_of
from wire.frames import Frame, Tensor
from wire.limits import CLOUD_LINK, ITEM_BYTES, MAX_QUEUED_BYTES, PACK_BELOW_BYTES_S, PACK_BYTES
from wire.message import Drain, Failed
from wire.messages import AnyMessage
from wire.observed_messages import CloudFigures, CloudState
from wire.outbox import Outgoing
from wire.session_messages import Advice, CloudWelcome, DeviceHello, Forward, LinkState, Result, Timing
from wire.stream import Stream

often = SparingLog()

UNPACK_ABOVE = 2.0
"""Rows go unpacked again where the link seems so many times as fast as where packing begins."""

SHORT_FRAMES = 64
"""The shortest round trip of so many short frames is one of the link, or little more: some of them waited for none."""

CROWDED_BYTES = MAX_QUEUED_BYTES // 16
"""Bytes waiting to be sent at which long frames wait with their sessions: enough to keep a fast link busy, and far from
where they are refused."""


def socket_of(url: str) -> str:
    """Where the socket for devices of a cloud server is, ``ws://host:port``."""
    return url.rstrip("/") + "/device"


class LinkPace:
    """How fast one connection and the server behind it are; the next connection begins with nothing known.

    Short frames measure the round trip and the step, long ones the bandwidth: nobody computes for a round of a few rows
    what only a prompt can change.

    Args:
        row_bytes: of one row; a frame of one is short, however long.
        may_pack: whether rows may be packed.

    Attributes:
        pace: what is known; of steps a moving mean, of those that had short frames of ours.
        changed: whether a bandwidth is news since ``news`` was asked last.
    """

    def __init__(self, row_bytes: int, may_pack: bool) -> None:
        self.pace = Pace()
        self.changed = False
        self._short_bytes = max(SHORT_BYTES, row_bytes)
        self._bandwidth = LinkMonitor(self._short_bytes)
        self._round_trips: deque[float] = deque(maxlen=SHORT_FRAMES)
        self._rtt_s: float | None = None
        self._may_pack = may_pack
        self._packing = True
        self._told_draft_us = 0

    def packs(self, length: int) -> bool:
        """Whether rows of so many bytes had better be packed: where the link is slower than packing and unpacking are.

        What the bandwidth is measured by are the rows' own bytes, so it seems higher where they are packed: that is no
        reason to stop. While it is not known, those are packed that measure it.
        """
        if not self._may_pack or length < PACK_BYTES:
            return False
        up_bytes_s = self.pace.up_bytes_s
        if up_bytes_s is None:
            return length > self._short_bytes
        self._packing = up_bytes_s < (UNPACK_ABOVE if self._packing else 1.0) * PACK_BELOW_BYTES_S
        return self._packing

    def sent(self, posted: float, up_bytes: int) -> None:
        """A frame of ``up_bytes`` was given to the link at ``posted``; call it in the order the link sends them."""
        if up_bytes > self._short_bytes:
            self._bandwidth.sent(posted, up_bytes)

    def abandoned(self, posted: float, up_bytes: int) -> None:
        """Nobody waits for the answer to this frame any more."""
        self._bandwidth.abandoned(posted, up_bytes)

    def answered(
        self,
        posted: float,
        now: float,
        up_bytes: int,
        down_bytes: int,
        queue_s: float,
        step_s: float,
        rtt_s: float | None,
    ) -> None:
        """A frame that was posted at ``posted`` has been answered ``now``; the rest is as of ``LinkMonitor.answered``.

        rtt_s: round trip of a frame without length as it was measured last, None where it never was. What short frames
            take is no less, and after enough of them known better.
        """
        if rtt_s != self._rtt_s:  # It is newer than all that short frames took so far.
            self._rtt_s = rtt_s
            self._round_trips.clear()
        if up_bytes <= self._short_bytes:
            mean_s = step_s if self.pace.step_s is None else ALPHA * self.pace.step_s + (1 - ALPHA) * step_s
            self.pace = replace(self.pace, step_s=mean_s)
            round_trip_s = now - posted - queue_s - step_s
            if round_trip_s >= 0:
                self._round_trips.append(round_trip_s)
            if down_bytes <= self._short_bytes:
                return
        known = list(self._round_trips)
        if rtt_s is not None and len(known) < SHORT_FRAMES:
            known.append(rtt_s)
        self._bandwidth.answered(posted, now, up_bytes, down_bytes, queue_s, step_s, min(known, default=None))
        self.pace = Pace(self.pace.step_s, self._bandwidth.up_bytes_s, self._bandwidth.down_bytes_s)
        self.changed = self._bandwidth.changed()

    def news(self, draft_us: int) -> LinkState | None:
        """What the cloud server is to be told, where enough has changed; it counts as told from now on. ``draft_us`` is
        what a step of drafting takes here."""
        if not (self.changed or abs(draft_us - self._told_draft_us) > THRESHOLD * self._told_draft_us):
            return None
        self.changed, self._told_draft_us = False, draft_us
        return LinkState(*self._bandwidth.report(), draft_us)


class CloudLink:
    """One cloud server.

    Args:
        url: the cloud server, ``ws://host:port``.
        place: which of the cloud servers that were named.
        hello: who this device is and what it expects; the cloud refuses a mismatch.
        may_pack: whether rows may be packed.

    Attributes:
        url: where its socket is.
        drains: set once the cloud server stops taking sessions; then another link takes this one's place.
        drains_within_s: for how long it then goes on with those that it has.
        leads_to: the socket where it says that its sessions had better go; empty where it does not say.
        news: set when the connection comes, goes, or begins to drain.
        stream, welcome: the connection as it is now, and what the cloud server said when it last welcomed us.
        refusal: why it does not want us, where that is so.
        chunk, first_chunk: rows of a chunk as it advises them for any prompt, and most of a first one; None before it
            has.
        short_rows: rows of a frame that is short enough to be sent always.
        took: times to first token and between tokens since the last report, no more than one message has room for.
        pace: how fast it is, since it was last connected.
        attached: the sessions here, by their number.
        held, holding: those that wait for room, in the order in which they get it; whether there are any.
        draft_us: microseconds of a step of drafting here, which the cloud server is told; 0: nothing is drafted.
        figures: its load as it said last; None before it has.
    """

    def __init__(
        self, url: str, hello: DeviceHello, news: asyncio.Event, may_pack: bool = True, place: int = 0
    ) -> None:
        self.hello = hello
        self.place = place
        self.stream: Stream | None = None
        self.welcome: CloudWelcome | None = None
        self.refusal: ConnectionFailed | None = None
        self.drains = asyncio.Event()
        self.drains_within_s = 0.0
        self.leads_to = ""
        self.chunk: int | None = None
        self.first_chunk: int | None = None
        row_bytes = hello.hidden_size * ITEM_BYTES[hello.dtype]
        self.short_rows = max(1, SHORT_BYTES // row_bytes)
        self.took = Timing([], [])
        self._new_pace = partial(LinkPace, row_bytes, may_pack)
        self.pace = self._new_pace()
        self.draft_us = 0
        self.figures: CloudFigures | None = None
        self.url = socket_of(url)
        self.news = news
        self.attached: dict[int, Attached] = {}
        self._numbers = 0
        self.held: dict[int, None] = {}
        self.holding = asyncio.Event()

    @property
    def draining(self) -> bool:
        """Whether the cloud server takes no sessions any more."""
        return self.drains.is_set()

    @property
    def ready(self) -> bool:
        """Whether sessions can be opened now."""
        return self.stream is not None and self.stream.failure is None and not self.draining

    @property
    def sessions(self) -> list[Attached]:
        """The sessions attached here."""
        return list(self.attached.values())

    @property
    def max_rows(self) -> int:
        """Most rows in one forward, as the cloud server said; 1 before it did."""
        welcome = self.welcome
        if welcome is None:
            return 1
        return min(welcome.max_rows, welcome.window_rows, CLOUD_LINK.rows_of(self.hello.hidden_size, self.hello.dtype))

    @property
    def rtt_s(self) -> float | None:
        """Round trip of a frame without length as it was measured last; None where it never was."""
        return self.stream.rtt_s if self.stream is not None else None

    @property
    def crowded(self) -> bool:
        """Whether so much waits to be sent that long frames had better wait where they are."""
        return self.stream is not None and self.stream.queued_bytes >= CROWDED_BYTES

    def takes(self, position: int) -> bool:
        """Whether a session that has come to ``position`` can be attached here now."""
        welcome = self.welcome
        return self.ready and welcome is not None and welcome.max_positions >= position

    def hold(self, number: int) -> None:
        """Tell session ``number`` when there is room again."""
        self.held[number] = None
        self.holding.set()

    def attach(self, session: Attached) -> int:
        """A number for ``session`` here, never used before: what still comes for older ones concerns nobody."""
        self._numbers += 1
        self.attached[self._numbers] = session
        return self._numbers

    def detach(self, number: int) -> bool:
        """Nothing that comes for ``number`` matters any more; False when it was so already."""
        return self.attached.pop(number, None) is not None

    def post(
        self, message: AnyMessage, tensors: Sequence[Tensor] = (), left: Callable[[], None] | None = None
    ) -> Outgoing:
        """Send a message, see ``Stream.post``. Raises ``ConnectionFailed`` when the connection has ended."""
        if self.stream is None:
            raise ConnectionFailed(Code.LOST, "the connection to the cloud server was lost")
        return self.stream.post(message, tensors, left=left)

    def forward(self, message: Forward, hidden: torch.Tensor, now: float) -> Outgoing:
        """Send rows ``hidden``, packed where that is better. Raises like ``post``."""
        length, pace = hidden.nbytes, self.pace

        def left() -> None:
            # Frames of several sessions take turns: the link was free for the next when the last of this one had left.
            if message.session in self.attached:
                pace.sent(now, length)

        return self.post(message, [Tensor(*shortest(hidden, pace.packs(length)))], left)

    def withdraw(self, number: int) -> None:
        """Take back what has not left of a session that is given up."""
        if self.stream is not None:
            self.stream.withdraw(number)

    def tell(self) -> None:
        """Tell the cloud server how fast it is, where that has changed."""
        news = self.pace.news(self.draft_us)
        if news is not None:
            with suppress(ConnectionFailed):  # Its reader sees to that.
                self.post(news)

    def begin(self, stream: Stream, welcome: CloudWelcome) -> None:
        """There is a new connection."""
        self.stream, self.welcome, self.refusal = stream, welcome, None
        self.chunk, self.first_chunk, self.pace = None, None, self._new_pace()
        self.figures = None
        self.news.set()

    def end(self) -> None:
        """It is gone, and all sessions with it."""
        self.stream = None
        self.held.clear()
        for session in self.sessions:
            session.lost()
        self.news.set()

    async def read(self, stream: Stream) -> None:
        """Hand on what comes, until the connection ends."""
        while True:
            self._handle(await stream.receive())

    def _handle(self, frame: Frame) -> None:
        message = frame.message
        if isinstance(message, Result):
            session = self.attached.get(message.session)
            if session is not None:  # Else it was closed or moved while the answer was on its way.
                session.answered(message, frame.tensors)
                if self.pace.changed:
                    self.tell()
        elif isinstance(message, Failed):
            session = self.attached.pop(message.subject, None) if message.subject is not None else None
            if session is not None:
                code = code_of(message.code)
                session.ended(SessionFailed(code, message.message, retry_after_s=message.retry_after_s))
        elif isinstance(message, Advice):
            if message.session is None:
                self.chunk = max(1, message.sizes[0])
                self.first_chunk = max(1, message.sizes[1]) if len(message.sizes) > 1 else None
            elif message.session in self.attached:
                self.attached[message.session].advised(message.begin, message.sizes)
        elif isinstance(message, CloudState):
            self.figures = message.figures
        elif isinstance(message, Drain):
            self.drains_within_s = message.within_s
            self.leads_to = socket_of(message.to) if message.to else ""
            self.drains.set()
            often.info("cloud drains", url=self.url, within_s=message.within_s)
            self.news.set()
