"""The accounting of the paged KV cache: which page belongs to which session, and where a session should grow. Pure.

A page holds a fixed number of positions. Any free page serves any session, so positions are shared to the page; but a
session whose pages are one ascending run is read in place, where scattered pages must be gathered first. So a session
takes the page behind its last one whenever that is free, and begins where it can grow as far as it is expected to
without meeting another. What it is expected to take is a claim, not a reservation: others keep out of it while there is
other room and share it when there is none. Claims are not stored. They follow from where everybody stands.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

Run = tuple[int, int]
"""Consecutive pages: the first, and the one after the last."""


@dataclass
class _Session:
    """``next`` is the page it would take next: the one behind its last, or where it begins."""

    expected: int
    next: int = 0
    held: int = 0
    runs: list[Run] = field(default_factory=list)


class Pages(Generic[Key]):
    """``count`` pages of ``page_positions`` positions each, free or held by one session.

    Asking about a session that is not open is a ``KeyError``.
    """

    def __init__(self, count: int, page_positions: int) -> None:
        assert count > 0 and page_positions > 0
        self.count = count
        self.page_positions = page_positions
        self._taken = bytearray(count)
        self._free = count
        self._sessions: dict[Key, _Session] = {}

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return self._free

    @property
    def used(self) -> int:
        """Pages that sessions hold."""
        return self.count - self._free

    def needed(self, positions: int) -> int:
        """Pages for so many positions."""
        return -(-positions // self.page_positions)

    def open(self, key: Key, hint: int) -> None:
        """Begin a session that may reach ``hint`` positions; it takes no page yet."""
        assert key not in self._sessions
        session = _Session(self.needed(hint))
        if self._free:
            session.next = self._place(session, 1)
        self._sessions[key] = session

    def fork(self, source: Key, key: Key, positions: int) -> bool:
        """Begin a session that may reach as far as ``source`` may, with pages of its own for ``positions``; False, and
        nothing is changed, when there are not pages enough."""
        if self.needed(positions) > self._free:
            return False
        expected = self._sessions[source].expected
        self.open(key, expected * self.page_positions)
        return self.extend(key, positions)

    def expect(self, key: Key, hint: int) -> None:
        """A session may now reach ``hint`` positions instead of what was said at its opening."""
        self._sessions[key].expected = self.needed(hint)

    def extend(self, key: Key, positions: int) -> bool:
        """Make room up to ``positions``; False, and nothing is changed, when there are not pages enough."""
        session = self._sessions[key]
        wanted = self.needed(positions) - session.held
        if wanted <= 0:
            return True
        if wanted > self._free:
            return False
        while wanted:
            begin = session.next
            if begin >= self.count or self._taken[begin]:
                begin = self._place(session, wanted)
            end = self._taken.find(1, begin, begin + wanted)
            if end < 0:
                end = min(begin + wanted, self.count)
            self._take(session, begin, end)
            wanted -= end - begin
        return True

    def truncate(self, key: Key, position: int) -> None:
        """Give back the pages of a session that hold nothing below ``position``."""
        session = self._sessions[key]
        surplus = session.held - self.needed(position)
        while surplus > 0:
            begin, end = session.runs.pop()
            kept = max(begin, end - surplus)
            if kept > begin:
                session.runs.append((begin, kept))
            # With no page left this is where it began: the place it once found is as good as any.
            session.next = session.runs[-1][1] if session.runs else begin
            self._taken[kept:end] = bytes(end - kept)
            self._free += end - kept
            session.held -= end - kept
            surplus -= end - kept

    def close(self, key: Key) -> int:
        """End a session and give back all its pages; how many they were."""
        held = self._sessions[key].held
        self.truncate(key, 0)
        del self._sessions[key]
        return held

    def rename(self, old: Key, new: Key) -> None:
        """The same session goes on under another key."""
        assert new not in self._sessions
        self._sessions[new] = self._sessions.pop(old)

    def table(self, key: Key) -> Sequence[int]:
        """The page numbers of a session in the order of its positions, as they are now."""
        return [page for begin, end in self._sessions[key].runs for page in range(begin, end)]

    def runs(self, key: Key) -> Sequence[Run]:
        """The same in short: its consecutive pages, first and one after the last, as they are now."""
        return tuple(self._sessions[key].runs)

    def held(self, key: Key) -> int:
        """Number of pages a session holds."""
        return self._sessions[key].held

    def check(self) -> None:
        """``AssertionError`` unless every page is either free or in exactly one table."""
        held = bytearray(self.count)
        for session in self._sessions.values():
            for begin, end in session.runs:
                assert not any(held[begin:end]), "a page is in two tables"
                held[begin:end] = b"\x01" * (end - begin)
            assert session.held == sum(end - begin for begin, end in session.runs), "a session's pages are miscounted"
        assert held == self._taken, "a page is lost"
        assert self._free == self._taken.count(0), "the free pages are miscounted"

    def _take(self, session: _Session, begin: int, end: int) -> None:
        self._taken[begin:end] = b"\x01" * (end - begin)
        self._free -= end - begin
        session.held += end - begin
        if session.runs and session.runs[-1][1] == begin:
            session.runs[-1] = (session.runs[-1][0], end)
        else:
            session.runs.append((begin, end))
        session.next = end

    def _place(self, session: _Session, wanted: int) -> int:
        """A free page where ``session`` should take its next ``wanted`` pages and grow on to what is expected of it.

        The tightest room that nobody claims and that holds all of it. Otherwise wherever most pages follow, where a
        claim counts for half the room at most, so that one who may grow very long leaves room to the others.
        """
        assert self._free
        length = max(wanted, session.expected - session.held)
        tight, tight_room = -1, self.count + 1
        wide, wide_room = -1, 0
        for begin, end, claim in self._gaps(session):
            unclaimed = min(begin + claim, end)
            room = end - unclaimed
            if length <= room < tight_room:
                tight, tight_room = unclaimed, room
            shared = min(unclaimed, begin + (end - begin) // 2)
            if end - shared > wide_room:
                wide, wide_room = shared, end - shared
        return tight if tight >= 0 else wide

    def _gaps(self, without: _Session) -> list[tuple[int, int, int]]:
        """All runs of free pages: the first, the one after the last, and how many of the first ones are claimed.

        Only sessions other than ``without`` claim anything.
        """
        marks: list[tuple[int, int, int]] = []
        for session in self._sessions.values():
            marks += [(begin, end, 0) for begin, end in session.runs]
            if session is not without and session.next < self.count and not self._taken[session.next]:
                # Where it stands is a mark of its own, also before it holds any page.
                marks.append((session.next, session.next, session.expected - session.held))
        marks.sort()
        gaps: list[tuple[int, int, int]] = []
        free, claim = 0, 0
        for begin, end, claimed in marks:
            if begin > free:
                gaps.append((free, begin, claim))
                claim = 0
            free, claim = max(free, end), max(claim, claimed, 0) if end == begin else 0
        if free < self.count:
            gaps.append((free, self.count, claim))
        return gaps
