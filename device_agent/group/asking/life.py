"""One life of a group as its portal has it: what it asks, in one order, and the two threads that ask and take answers.

The threads are not the compute thread: they wait for other machines, and meanwhile that has drafts, embeddings and
heads to compute. Where the portal also computes a part, it does so on the thread that asks, since the others wait for
it there.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final

import torch

from device_agent.group.asking.asks import GroupAsk, GroupAsks
from device_agent.group.asking.reached import NOTHING_HANDED, Reached
from device_agent.group.asking.turns import GroupTurns
from device_agent.group.messages.heads import (
    MAX_ROWS,
    BatchHead,
    EndHead,
    HandHead,
    IdleHead,
    MannerHead,
    MeansHead,
    ReadHead,
    RowsHead,
    SourceHead,
    StepHead,
    written,
)
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.group.rows.layout import Everywhere, entry_of, layout_of, overlap, senders
from device_agent.group.rows.sending import PORTAL, Tag, nearest, send_entry
from device_agent.group.steps.handing import as_tensor, await_gifts
from device_agent.group.steps.pipeline import UNCUT, Pipeline
from device_agent.group.steps.worker import Worker
from device_agent.planning.handover import LONGEST_S
from device_agent.planning.plan import ByRows, Layer, as_run
from device_agent.planning.trials import some
from peers.board import PeerLost
from peers.collectives import ONE_SHOT_BYTES, Collectives
from peers.counts import Bytes
from peers.fabric import Fabric
from split_model.errors import ModelError
from split_model.kv_cache import CacheFull
from split_model.pruning.block import CannotPrune

IDLE_EVERY_S: Final = 20.0
"""When nothing is asked, members hear so often that there is nothing: they wait for the portal much longer."""

MAX_STEPS: Final = 65_536
"""That are remembered until somebody looks: at least once a second, where anybody does."""

END_WITHIN_S: Final = 2.0
"""The step under way has so long to end when the life does; then its links are cut."""

HANDED_WITHIN_S: Final = 2 * LONGEST_S
"""The same where members hand sessions over besides; behind it these are replayed."""


class GroupLife:
    """Takes what is asked until a member is lost.

    Args:
        fabric: open, with all members; it ends with this.
        layers: of the plan, from the first that the group computes on.
        ranks: of the members that compute, by place.
        worker: the portal's own part, where it has one.
        pipeline: how its steps pass through the members.
        readers: how many of the layers, the first ones, are an encoder's.
        most_tokens: of all sessions together, that find room in every member; ``easy_tokens``: before one streams more.
        narrows: whether sessions may leave heads out.

    Attributes:
        steps: rows of each step that was asked, and the positions before them; whoever reads them takes them out.
        handed: how many positions members have of each session that the next life can go on with, once this one has
            ended; none where nothing was handed over.
        resumes: what the one before has handed over to this.
    """

    def __init__(
        self,
        fabric: Fabric,
        layers: tuple[Layer, ...],
        ranks: tuple[int, ...],
        worker: Worker | None,
        pipeline: Pipeline = UNCUT,
        readers: int = 0,
        most_tokens: int = sys.maxsize,
        easy_tokens: int = sys.maxsize,
        narrows: bool = False,
    ) -> None:
        assert (PORTAL in ranks) == (worker is not None)
        self._fabric, self._ranks, self._worker = fabric, ranks, worker
        self._layers, self._reading, self._planned = layers[readers:], layers[:readers] or layers, layers
        self._pipeline, self.most_tokens, self.easy_tokens = pipeline, most_tokens, easy_tokens
        self.narrows = narrows
        self._links = Collectives(fabric)
        self.steps: deque[tuple[int, int]] = deque(maxlen=MAX_STEPS)
        self._lost: Callable[[str, int | None], object] = lambda why, rank: None
        self._lock = threading.Lock()
        self._ended = False
        pipeline = self._pipeline
        # Where keys and values may be away, members keep rows of others that come before the answers about them.
        most_rows = MAX_ROWS if pipeline.apart else sys.maxsize
        self._asked = GroupAsks(GroupTurns(pipeline.steps_at_once, _cuts(layers), pipeline.streams, most_rows))
        self._taken: SimpleQueue[tuple[GroupAsk, torch.Tensor | None, Layer] | None] = SimpleQueue()
        self.handed: dict[int, int] = {}
        self.resumes = NOTHING_HANDED
        self._next: JoinedPlan | None = None
        self._reached = Reached()
        self._threads = [
            threading.Thread(target=self._until_lost, args=(work,), name=name, daemon=True)
            for name, work in (("group-asks", self._ask), ("group-takes", self._take))
        ]

    def start(self, lost: Callable[[str, int | None], object]) -> None:
        """Begin. ``lost`` is called once, on a thread, where the group ends and not by ``end``: why, and which rank
        is gone where that is known."""
        self._lost = lost
        for thread in self._threads:
            thread.start()

    @property
    def bytes(self) -> Bytes:
        """Tensors that went out and came in over the portal's links with all members."""
        return self._fabric.counts.total

    def put(self, asked: GroupAsk) -> None:
        """Ask all members; one session's in order. On any thread; nothing where it has ended."""
        self._asked.put(asked)

    @contextmanager
    def alone(self, session: int) -> Iterator[None]:
        """Others wait meanwhile for what a session asks."""
        self._asked.only(session)
        try:
            yield
        finally:
            self._asked.only(None)

    def end(self, following: JoinedPlan | None = None) -> None:
        """Stop behind the step under way, tell the members that it is over, and wait for the threads; blocks for a few
        seconds at most, or ``HANDED_WITHIN_S``. What the step gave is delivered; what was asked behind it is not done.

        following: have members hand their sessions over to the life of this plan, see ``handed``.
        """
        self._next = following
        self._over()
        self._await_threads(END_WITHIN_S if following is None else HANDED_WITHIN_S)
        if any(thread.is_alive() for thread in self._threads):
            self._fabric.lose("the portal has ended it, and a member did not come to an end")
        self._fabric.close()
        self._await_threads(END_WITHIN_S)
        self._worker = None  # Whoever still knows this life, to tell it from the next, keeps no keys and values.

    def _await_threads(self, within_s: float) -> None:
        deadline = monotonic() + within_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - monotonic()))

    def _over(self) -> bool:
        """Whether this was the first to say so."""
        with self._lock:
            if self._ended:
                return False
            self._ended = True
        self._asked.put(None)
        return True

    def _until_lost(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # Whatever it is, nobody would ask or answer any more.
            why, rank = str(error) or type(error).__name__, error.rank if isinstance(error, PeerLost) else None
            self._fabric.lose(why, rank)
            if self._over():
                self._lost(why, rank)
        finally:
            self._taken.put(None)

    def _ask(self) -> None:
        others = [rank for rank in range(self._fabric.size) if rank != PORTAL]
        while True:
            try:
                asked = self._asked.get(timeout=IDLE_EVERY_S)
            except Empty:
                asked = GroupAsk(IdleHead())
            if self._ended:
                asked = None
            if asked is None and self._next is not None:
                plan = as_tensor(self._next)
                self._tell(GroupAsk(HandHead(len(plan), next=True), plan), others)
                await_gifts(self._links, others)
                self.handed = dict(self._reached.sessions)
            if asked is None:
                for rank in others:
                    self._links.send(written(EndHead()), rank, Tag.HEAD)
                if self._worker is not None:
                    self._worker.end()
                return
            self._reached.told(asked.head)
            self._tell(asked, others)

    def _tell(self, asked: GroupAsk, others: list[int]) -> None:
        """All members, the portal's own part among them."""
        head = written(asked.head)
        for rank in others:
            self._links.send(head, rank, Tag.HEAD)
        if isinstance(asked.head, MannerHead):
            manner = asked.head.manner
            self._layers = self._reading = tuple(manner.of(each) for each in some(self._planned, asked.head.layers))
        if isinstance(asked.head, (MeansHead, HandHead)) and asked.hidden is not None:
            tag = Tag.MEANS if isinstance(asked.head, MeansHead) else Tag.PLAN
            for rank in others:
                self._links.send(asked.hidden, rank, tag)
        elif asked.hidden is not None:
            about = isinstance(asked.head, SourceHead)
            first = Everywhere() if about else layout_of(self._runs(asked)[0], len(asked.hidden))
            little = asked.hidden.nbytes <= ONE_SHOT_BYTES
            entry = entry_of(first, len(asked.hidden), len(self._ranks), little)
            batches = [range(len(asked.hidden))] if about else self._pipeline.cut(_step_of(asked))
            for rows in batches:
                send_entry(self._links, asked.hidden[rows.start : rows.stop], entry, self._ranks, PORTAL)
        try:
            mine = None if self._worker is None else self._worker.do(asked.head, asked.hidden)
        except (CacheFull, CannotPrune, MemoryError, ModelError) as error:
            raise PeerLost(f"the portal cannot compute a step: {type(error).__name__}: {error}", PORTAL) from error
        if isinstance(asked.head, (RowsHead, BatchHead, ReadHead)):
            self.steps.append((asked.head.rows, asked.head.position))
        if asked.deliver is not None:
            self._taken.put((asked, mine, self._runs(asked)[-1]))

    def _take(self) -> None:
        while (taken := self._taken.get()) is not None:
            asked, mine, last = taken
            hidden, want = asked.hidden, _step_of(asked).want
            assert hidden is not None and asked.deliver is not None
            rows, size = hidden.shape
            outputs = torch.empty((want, size), dtype=hidden.dtype)
            coming = []
            for place, found in senders(layout_of(last, rows), rows, want, nearest(self._ranks)):
                if self._ranks[place] == PORTAL:
                    assert mine is not None
                    outputs[found.start - (rows - want) : found.stop - (rows - want)] = mine
                    continue
                for batch in self._pipeline.cut(_step_of(asked)):
                    if part := overlap(found, batch):
                        into = outputs[part.start - (rows - want) : part.stop - (rows - want)]
                        coming.append(self._links.receive(into, self._ranks[place], Tag.RESULT))
            for each in coming:
                each.wait()
            asked.deliver(outputs)

    def _runs(self, asked: GroupAsk) -> list[Layer]:
        """How the first and the last layer are run."""
        head = _step_of(asked)
        layers = self._reading if isinstance(head, ReadHead) else self._layers
        return [as_run(each, head.rows, head.position, head.sessions) for each in (layers[0], layers[-1])]


def _step_of(asked: GroupAsk) -> StepHead:
    assert isinstance(asked.head, (RowsHead, BatchHead, ReadHead))
    return asked.head


def _cuts(layers: tuple[Layer, ...]) -> bool:
    """Whether a prompt may be cut into portions."""
    return not any(isinstance(layer, ByRows) and layer.prefix for layer in layers)
