"""One life of a group as its host has it, and the guests at its rendezvous, who have a place in it or wait for one."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from peers.board import STORED, Board
from peers.secret import welcome
from tls.contexts import Tls
from wire.errors import Code, ConnectionFailed
from wire.limits import MAX_TEXT
from wire.peer_messages import PeerChallenge, PeerHello, PeerNote, PeerOver, PeerPost, PeerWelcome
from wire.stream import Stream

MOST_POSTS_OF_ONE: Final = 256
"""Of one member, on one board: it says every now and then that it still loads, and little else."""


class Guest:
    """Somebody who has proved to know the secret, for as long as the visit lasts. Belongs on the event loop.

    Attributes:
        name, seat: what was said in the hello, see ``PeerHello``.
        place: the group and the rank there, until the guest has said that it is over; None: it waits for a place.
        notes: what it has said to the host alone; whoever reads them takes them out.
    """

    def __init__(self, secret: str, asked: PeerChallenge, said: PeerHello, stream: Stream) -> None:
        self.name, self.seat = said.name, said.seat
        self.place: tuple[Group, int] | None = None
        self.notes: deque[bytes] = deque()
        self._secret, self._asked, self._said = secret, asked, said
        self._stream = stream

    @property
    def gone(self) -> bool:
        """Whether the visit has ended."""
        return self._stream.failure is not None

    def take(self, group: Group, rank: int) -> None:
        """Give it a place."""
        self.place = group, rank
        plan = group.plan(rank)
        self.tell(welcome(self._secret, self._asked, self._said, rank, group.size, group.epoch, plan))

    def tell(self, message: PeerWelcome | PeerPost | PeerOver | PeerNote) -> None:
        """Send something, unless it is gone."""
        with suppress(ConnectionFailed):
            self._stream.post(message)

    def dismiss(self, code: Code, why: str) -> None:
        """End the visit, and say why."""
        self._stream.fail(ConnectionFailed(code, why))


class Group:
    """One life of a group, as its host has it. Everything but ``board`` belongs on the event loop.

    Attributes:
        board: what members tell each other.
        ended: why, once it has.
        blamed: the rank of who is the reason, 0: nobody in particular.
        left: what members have said when they left, by rank; also after it has ended.
    """

    def __init__(
        self, epoch: int, plans: Mapping[int, bytes], key: bytes, names: Mapping[int, str], tls: Tls | None = None
    ) -> None:
        self.epoch = epoch
        self.names = names
        self.board = Board(self._tell, key, tls)
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.blamed = 0
        self.left: dict[int, PeerOver] = {}
        self._loop = asyncio.get_running_loop()
        self._plans = dict(plans)
        self._members: dict[int, Guest] = {}
        self._posts: list[PeerPost] = []
        self._said: Counter[int] = Counter()

    @property
    def size(self) -> int:
        """Members, the host included, which has rank 0."""
        return len(self._plans) + 1

    @property
    def missing(self) -> list[int]:
        """Ranks that nobody has taken yet."""
        return [rank for rank in self._plans if rank not in self._members]

    def plan(self, rank: int) -> bytes:
        """What the member of this rank shall do."""
        return self._plans[rank]

    def free_for(self, guest: Guest) -> int | None:
        """The rank that somebody who waits may have; None: there is none.

        Who is made for one seat has it; others take the last, so that they are not in its way.
        """
        free = [rank for rank in self.missing if self.names.get(rank, guest.name) == guest.name]
        if self.ended.done() or not free or guest.seat not in (0, *free):
            return None
        return guest.seat or free[-1]

    def end(self, why: str, blamed: int = 0) -> None:
        """End it for everybody. Only the first call counts."""
        if self.ended.done():
            return
        self.blamed = blamed
        self.board.lose(why)
        self.ended.set_result(why)
        for guest in self._members.values():
            guest.tell(PeerOver(self.epoch, why[:MAX_TEXT], blamed))

    def enter(self, rank: int, guest: Guest) -> None:
        """A member has come, and learns what the others have posted."""
        self._members[rank] = guest
        guest.take(self, rank)
        for post in self._posts:
            guest.tell(post)

    def leaves(self, rank: int, said: PeerOver) -> None:
        """A member takes part no longer."""
        self.left[rank] = said
        name = self._members[rank].name
        self.end(f"member {rank} ({name}) has ended: {said.why}", said.rank if said.rank < self.size else rank)

    def heard(self, rank: int, post: PeerPost) -> None:
        """A member has posted something: the others learn it too.

        Raises ``ValueError`` as ``Board.put`` does, for a key that is another's, whose own post would fail then, and
        for more than one has to say.
        """
        if not self.ended.done():
            if post.key.rpartition("/")[2] != str(rank) and not post.key.startswith(STORED):
                raise ValueError(f"{post.key!r} is not for member {rank} to say")
            self._said[rank] += 1
            if self._said[rank] > MOST_POSTS_OF_ONE:
                raise ValueError(f"member {rank} says more than {MOST_POSTS_OF_ONE} things")
            self.board.put(post.key, post.value)
            self._pass_on(post, but=rank)

    def _tell(self, key: str, value: bytes) -> None:
        self._loop.call_soon_threadsafe(self._pass_on, PeerPost(key, value, self.epoch))

    def _pass_on(self, post: PeerPost, but: int = 0) -> None:
        self._posts.append(post)
        for rank, guest in self._members.items():
            if rank != but:
                guest.tell(post)
