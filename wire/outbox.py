"""What waits to leave on one connection, and what goes next. Pure.

Short frames go first, in the order in which they were put. Between them long ones get a turn after every ``PART_BYTES``
of short ones, and whenever there are no short ones: a part each, and the next turn is another party's. So a heartbeat,
a token, a cancel waits for one part at most, however much lies here.

What is said of one *subject* (a session, a request) stays in order: behind a long frame of its own also a short one
waits. A *party* is whose long frames share one turn, two of them at a time; where none is named each subject is one of
its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from wire.limits import MAX_HALF_BYTES, MAX_HALF_FRAMES, MAX_QUEUED_BYTES, PART_BYTES, PARTY_BYTES, SHORT_FRAME_BYTES
from wire.parts import cut_off, first_part, further_part, goes_in_parts

UNDER_WAY_OF_PARTY: Final = 2
"""Long frames of one party that take turns: one that is longest does not hold up all others of its party."""

_NOTHING: Final = bytearray()


class Outgoing:
    """A frame that waits.

    Args:
        left: called when the last of it leaves.

    Attributes:
        has_left: whether all of it has.
    """

    __slots__ = ("after", "data", "has_left", "left", "number", "party", "sent", "size", "subject", "withdrawn")

    def __init__(
        self, data: bytearray, subject: int | None, party: Hashable = None, left: Callable[[], None] | None = None
    ) -> None:
        self.data = data
        self.size = len(data)
        self.subject = subject
        self.party: Hashable = party if party is not None else subject if subject is not None else ""
        self.left = left
        self.has_left = False
        self.sent = 0
        """Bytes of it that have left in parts."""
        self.number = 0
        """Which of the frames under way it is."""
        self.after = 0
        """How many short frames go before it begins."""
        self.withdrawn = False

    def release(self) -> bytearray:
        """Return its bytes and forget them: ``has_left`` may be asked for long after they have been sent."""
        data, self.data = self.data, _NOTHING
        return data

    @property
    def is_short(self) -> bool:
        """Whether it goes ahead of long ones."""
        return self.size <= SHORT_FRAME_BYTES


class _Lane:
    """The long frames of one party: those that are under way, the next to go on first, and those that are not."""

    __slots__ = ("begun", "fresh", "fresh_next")

    def __init__(self) -> None:
        self.begun: deque[Outgoing] = deque()
        self.fresh: deque[Outgoing] = deque()
        self.fresh_next = True

    def __bool__(self) -> bool:
        return bool(self.begun or self.fresh)


class Outbox:
    """Frames by subject and party.

    Attributes:
        short_bytes, long_bytes: what waits, of short and of long frames.
    """

    def __init__(self) -> None:
        self.short_bytes = 0
        self.long_bytes = 0
        self._short: deque[Outgoing] = deque()
        self._put = self._taken = 0
        """Short frames so far."""
        self._ahead = 0
        """Bytes of short frames since the last turn of a long one."""
        self._behind: dict[int, deque[Outgoing]] = {}
        """For every subject of which a long frame waits, what has been put after it."""
        self._long: dict[Hashable, _Lane] = {}
        """Of every party that has long frames, those; the keys are in the order of the next turns."""
        self._party_bytes: dict[Hashable, int] = {}
        self._under_way: dict[int, Outgoing] = {}
        self._under_way_bytes = 0
        self._numbers = 0

    def __bool__(self) -> bool:
        return bool(self._short or self._long)

    def takes(self, size: int, party: Hashable) -> bool:
        """Whether a frame of so many bytes may be put now. A short one always may; a long one of a ``party`` only where
        no other of it waits, or its share has room left."""
        if size <= SHORT_FRAME_BYTES:
            return True
        waiting = self._party_bytes.get(party, 0) if party is not None else 0
        return self.long_bytes + size <= MAX_QUEUED_BYTES and (not waiting or waiting + size <= PARTY_BYTES)

    def put(self, entry: Outgoing) -> None:
        """Queue a frame; ``take`` says when it is its turn."""
        if entry.is_short:
            self.short_bytes += entry.size
        else:
            self.long_bytes += entry.size
            self._party_bytes[entry.party] = self._party_bytes.get(entry.party, 0) + entry.size
        behind = self._behind.get(entry.subject) if entry.subject is not None and self._behind else None
        if behind is not None:
            behind.append(entry)
        else:
            self._line_up(entry)

    def take(self) -> tuple[bytearray, Outgoing | None] | None:
        """The next websocket message, not yet numbered, with the frame of which it is the last one, if it is; None when
        nothing waits."""
        if self._short and (not self._long or self._ahead < PART_BYTES or self._ready() is None):
            short = self._short.popleft()
            self._taken += 1
            self._ahead += short.size
            self.short_bytes -= short.size
            return short.release(), short
        entry = self._ready()
        if entry is None:
            return None
        self._ahead = 0
        return self._turn(entry)

    def withdraw(self, subject: int) -> bool:
        """Remove what waits of a subject that has a long frame here: that frame, and what was put behind it.

        Where parts of the long frame have left already, the peer is told that no more will come. Returns whether a
        frame was removed that the peer will now never get."""
        behind = self._behind.pop(subject, None)
        if behind is None:
            return False
        for each in behind:
            self._forget(each, each.size)
        for party, lane in self._long.items():
            mine = (each for each in (*lane.begun, *lane.fresh) if each.subject == subject and not each.withdrawn)
            entry = next(mine, None)
            if entry is None:
                continue
            self._forget(entry, entry.size - entry.sent)
            if not entry.sent:
                lane.fresh.remove(entry)
                if not lane:
                    del self._long[party]
            return True
        return False

    def _line_up(self, entry: Outgoing) -> None:
        if entry.is_short:
            self._put += 1
            self._short.append(entry)
            return
        entry.after = self._put
        if entry.subject is not None:
            self._behind[entry.subject] = deque()
        if entry.party not in self._long:
            self._long[entry.party] = _Lane()
        self._long[entry.party].fresh.append(entry)

    def _ready(self) -> Outgoing | None:
        """Whose turn it is among the long ones; None where all must wait for short ones that were put before."""
        for lane in self._long.values():
            if lane.fresh and (lane.fresh_next or not lane.begun) and self._may_begin(lane):
                return lane.fresh[0]
            if lane.begun:
                return lane.begun[0]
        return None

    def _may_begin(self, lane: _Lane) -> bool:
        entry, under_way = lane.fresh[0], len(self._under_way)
        if entry.after > self._taken:
            return False
        if not goes_in_parts(entry.size):
            return True
        if lane.begun and (len(lane.begun) >= UNDER_WAY_OF_PARTY or under_way >= MAX_HALF_FRAMES // 2):
            return False  # Other parties find room to begin.
        return under_way < MAX_HALF_FRAMES and self._under_way_bytes + entry.size <= MAX_HALF_BYTES

    def _turn(self, entry: Outgoing) -> tuple[bytearray, Outgoing | None]:
        lane = self._long.pop(entry.party)
        lane.fresh_next = bool(entry.sent)
        (lane.begun if entry.sent else lane.fresh).popleft()
        if entry.withdrawn:
            message, last = cut_off(entry.number), True
        elif not goes_in_parts(entry.size):
            message, last = entry.data, True
            self._less(entry, entry.size)
        else:
            message = self._part(entry)
            last = entry.sent == entry.size
        if not last:
            lane.begun.append(entry)
        elif self._under_way.pop(entry.number, None) is not None:
            self._under_way_bytes -= entry.size
        if lane:
            self._long[entry.party] = lane  # Behind all other parties.
        if not last or entry.withdrawn:
            return message, None
        entry.release()
        self._go_on(entry)
        return message, entry

    def _part(self, entry: Outgoing) -> bytearray:
        data = memoryview(entry.data)
        if not entry.sent:
            self._numbers = entry.number = self._numbers % (2**32 - 1) + 1
            self._under_way[entry.number] = entry
            self._under_way_bytes += entry.size
            message = first_part(entry.number, data)
        else:
            message = further_part(entry.number, data, entry.sent)
        size = min(PART_BYTES, entry.size - entry.sent)
        entry.sent += size
        self._less(entry, size)
        return message

    def _go_on(self, entry: Outgoing) -> None:
        """Let what was put behind a long frame that has left follow it, up to the next long one."""
        if entry.subject is None:
            return
        behind = self._behind.pop(entry.subject)
        while behind:
            each = behind.popleft()
            self._line_up(each)
            if not each.is_short:
                self._behind[entry.subject] = behind
                return

    def _forget(self, entry: Outgoing, size: int) -> None:
        """``size`` bytes of it wait no more, and none of it is kept."""
        entry.withdrawn = True
        entry.release()
        self._less(entry, size)

    def _less(self, entry: Outgoing, size: int) -> None:
        if entry.is_short:
            self.short_bytes -= size
            return
        self.long_bytes -= size
        left = self._party_bytes[entry.party] - size
        if left:
            self._party_bytes[entry.party] = left
        else:
            del self._party_bytes[entry.party]
