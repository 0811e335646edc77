"""A member whose oldest keys and values lie at another where that is faster than to stream more (LIME, Algorithm 2).

Between steps it is decided which rows go or come back, one copy at a time, which goes on beside the steps. What is away
is attended to where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from device_agent.group.holding.held import SessionCaches
from device_agent.group.messages.heads import MAX_ROWS
from device_agent.group.relief.lodging import Lodging, RowSizes
from device_agent.group.relief.row_link import Coming, RowLink
from device_agent.planning.moves import (
    LEAST_ROWS,
    MARGIN,
    Copy,
    Drop,
    Key,
    LinkPace,
    Moved,
    Transfer,
    arrived,
    given_up,
    layers_worth,
    next_copy,
)
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.shape import ModelShape
from device_agent.planning.thresholds import far_apart, thresholds_of
from device_agent.planning.transfers import COPY_BYTES, Room
from peers.collectives import Collectives

log = structlog.get_logger()


@dataclass(frozen=True)
class _Way:
    """A copy that is under way, and what comes of it."""

    key: Key
    session: SessionCaches
    copy: Copy
    coming: Coming


class Moving:
    """Of one member, in one epoch of its group; on the thread that computes.

    Args:
        layers: of this member, numbered as the group has them, in the order in which their rows go.

    Attributes:
        link: to who has the rows.
    """

    def __init__(self, transfer: Transfer, room: Room, layers: Sequence[int], link: RowLink) -> None:
        self.link = link
        self._transfer, self._room, self._layers = transfer, room, tuple(layers)
        self._most_rows = max(COPY_BYTES // link.sizes.stored(1).nbytes, 1)
        self._sessions: dict[int, SessionCaches] = {}
        self._states: dict[Key, Moved] = {}
        """Of what is away, or under way."""
        self._way: _Way | None = None
        self._home: dict[Key, int] = {}
        """How many rows must come back before the step."""

    @property
    def there(self) -> int:
        """Rows of one layer each that the other has, or gets."""
        return sum(state.there for state in self._states.values())

    @property
    def saved(self) -> int:
        """Rows of one layer each that take no memory here."""
        return self._away - sum(state.returning for state in self._states.values()) - sum(self._home.values())

    @property
    def _away(self) -> int:
        return sum(state.away for state in self._states.values())

    def before(self, tokens: int, sessions: Mapping[int, SessionCaches], leaving: int | None = None) -> int:
        """A step follows with which there are so many tokens: begin what is to be moved.

        leaving: a session of which nothing may be away.

        Returns for how many tokens this member needs memory, ``settle`` included. Raises ``PeerLost``, ``EpochOver``.
        """
        self._sessions = dict(sessions)
        self._take()
        leaves = any(key[1] == leaving for key in self._states)
        if leaves or self.there > self._room.hard(tokens):
            self._finish()
            self._call_home(self.there - self._room.hard(tokens), leaving)
        elif self._way is None:
            self._begin(tokens)
        return self._room.needed(tokens, self.saved, bool(self._states))

    def settle(self) -> None:
        """Have what must come back, now that there is memory for it. Raises as ``before``."""
        for key, rows in list(self._home.items()):
            while rows:
                state, count = self._states[key], min(rows, self._most_rows)
                rows -= count
                self._home[key] = rows
                back = Copy("back", range(state.away - count, state.away))
                self._start(key, replace(state, returning=count), back)
                self._finish()
        self._home.clear()

    def truncate(self, session: SessionCaches, position: int) -> None:
        """A session is about to forget its rows from there on. Raises as ``before``."""
        if any(key[1] == session.number and state.there > position for key, state in self._states.items()):
            self._finish()
            for key in [key for key in self._states if key[1] == session.number]:
                self.link.cut(session.number, self._layers[key[0]], position)
                self._know(key, replace(self._states[key], away=min(self._states[key].away, position)))

    def close(self, session: int) -> None:
        """A session has ended. Raises as ``before``."""
        if any(key[1] == session for key in self._states):
            self._finish()
            self.link.free(session)
            self._states = {key: state for key, state in self._states.items() if key[1] != session}

    def _begin(self, tokens: int) -> None:
        """One copy, if any."""
        until = self._room.until(self._room.needed(tokens, self.saved, moves=True))
        if not self._states and until > LEAST_ROWS:
            return
        layer_s = self.link.layer_s([session.position for session in self._sessions.values()])
        uncovered_s = self._transfer.uncovered(self._room.own.level(tokens + LEAST_ROWS))
        of = len(self._layers)
        worth = layers_worth(uncovered_s, layer_s, of), layers_worth(uncovered_s, MARGIN * layer_s, of)
        states = {
            (turn, number): replace(self._states.get((turn, number), Moved(0)), rows=session.position)
            for turn in range(len(self._layers))
            for number, session in self._sessions.items()
        }
        there = (self._room.soft(tokens) - self.there) // 2  # What comes is there twice, until it is stored.
        found = next_copy(states, worth, self._most_rows, min(there, self._room.copied), until)
        if found is not None:
            self._start(*found)

    def _start(self, key: Key, state: Moved, copy: Copy) -> None:
        (turn, number), rows = key, copy.rows
        session, layer = self._sessions[number], self._layers[turn]
        if copy.way == "out":
            coming = self.link.store(number, layer, rows.start, session.oldest(layer, len(rows)))
        else:
            coming = self.link.fetch(number, layer, rows)
        self._way, self._states[key] = _Way(key, session, copy, coming), state

    def _take(self) -> None:
        """What has arrived meanwhile."""
        if self._way is None or not self._way.coming.there:
            return
        way, self._way = self._way, None
        layer = self._layers[way.key[0]]
        if way.copy.way == "out" and not way.coming.tensor.item():
            self._know(way.key, given_up(self._states[way.key]))
            return
        state, drop = arrived(self._states[way.key])
        if drop == Drop("here", way.copy.rows):
            way.session.send_away(layer, len(way.copy.rows))
        else:
            way.session.take_back(layer, way.coming.tensor)
            self.link.cut(way.key[1], layer, drop.rows.start)
        self._know(way.key, state)

    def _finish(self) -> None:
        """Wait for what is under way."""
        if self._way is not None:
            self._way.coming.wait()
            self._take()

    def _call_home(self, rows: int, leaving: int | None) -> None:
        """So many rows at least must come back, and all of a session that is leaving."""
        for key in sorted(self._states, reverse=True):
            away = self._states[key].away
            count = away if key[1] == leaving else min(away, max(rows, 0))
            if count:
                self._home[key] = count
                rows -= count

    def _know(self, key: Key, state: Moved) -> None:
        before = bool(self._away)
        if state.there:
            self._states[key] = state
        else:
            self._states.pop(key, None)
        if bool(self._away) != before:
            where = "here again" if before else "at another member too"
            log.info(f"keys and values are {where}", rows=self._away, layers=len(self._layers))


def ends_of(
    plan: GroupPlan,
    place: int,
    ranks: Sequence[int],
    shape: ModelShape,
    sizes: RowSizes,
    collectives: Collectives,
    lose: Callable[[str], object],
) -> tuple[Moving | None, Lodging | None]:
    """What a member has of a plan's transfers: its own rows elsewhere, another's here.

    Args:
        shape: of the group's layers.
        lose: see ``Lodging``.
    """
    thresholds = [thresholds_of(shape, plan, member) for member in range(len(plan.members))]
    # Answers come behind rows of stages that this member has not come to, and questions behind rows that the other has
    # not: no more than are under way.
    most = MAX_ROWS * shape.hidden * shape.dtype_bytes
    moving: Moving | None = None
    lodging: Lodging | None = None
    for owner, transfer in enumerate(plan.transfers):
        if transfer is None:
            continue
        if owner == place:
            pace = LinkPace(transfer.bytes_s, transfer.rtt_s)
            link = RowLink(collectives, ranks[transfer.target], sizes, pace, transfer.fetches)
            own = [number for number, layer in enumerate(plan.layers) if layer == Whole(place)]
            collectives.keep_ahead(ranks[transfer.target], most)
            moving = Moving(transfer, Room.of(plan, thresholds, owner, transfer.target), far_apart(own), link)
        elif transfer.target == place:
            collectives.keep_ahead(ranks[owner], most)
            lodging = Lodging(collectives, ranks[owner], sizes, lose)
    return moving, lodging
