"""A whole model as a chain of submodels: input here, middle anywhere, output here.

Prefill goes chunk by chunk: while one chunk is on its way or in the cloud, the next is computed here.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import torch

from device_agent.chunking import DEFAULT_CHUNK, Chunker, begins_small
from device_agent.local import Compute, LocalSession, LocalSubmodel
from device_agent.parts import DeviceParts
from device_agent.remote_session import RemoteSession
from drafting.drafter import Drafter, DraftSession
from split_model.submodel import Submodel, SubmodelSession
from wire.messages import Timings

Value = TypeVar("Value")

WHOLE_PROMPT = sys.maxsize
"""The chunk of a prompt that is not cut: as many rows as the cloud takes in one forward."""

MAX_AHEAD = 16
"""Chunks computed here and not yet answered. While the cloud is busy with others, the link goes on with ours; so many
of a common size are as many rows as a cloud takes ahead of its answers."""


class Chain:
    """Input, middle and output submodel of one model.

    Args:
        middle: None when the device's own layers are the whole model.
        chunk: prompt tokens in one chunk, ``WHOLE_PROMPT`` for no chunks; 0: as the cloud advises.
        download_all: whether every deep hidden state of a prompt comes back, as in a plain U-shape, though none but
            those whose logits are wanted is used; for what that costs.
    """

    def __init__(
        self, parts: DeviceParts, middle: Submodel | None, compute: Compute, chunk: int, *, download_all: bool = False
    ) -> None:
        self.parts = parts
        self.middle = middle
        self.compute = compute
        self.chunk = chunk
        self.download_all = download_all
        self.front = LocalSubmodel(parts.front, compute)
        self.back = LocalSubmodel(parts.back, compute) if parts.back.blocks else None

    @property
    def connected(self) -> bool:
        """Whether sessions can be opened, and go on, now."""
        return self.middle is None or self.middle.connected

    @property
    def max_positions(self) -> int:
        """Most positions of one session, as far as is known now."""
        return self.middle.max_positions if self.middle is not None else self.front.max_positions

    @property
    def default_chunk(self) -> int:
        """Tokens in a chunk of a prompt for which nobody advises otherwise."""
        return self.chunk or (self.middle.chunk if self.middle is not None else None) or DEFAULT_CHUNK

    def open(self, positions: int, prompt: int = 0, expected: int = 0, drafter: Drafter | None = None) -> ChainSession:
        """Begin a session with room for ``positions`` positions, of which ``prompt`` come at once and ``expected`` will
        probably be reached; ``drafter`` follows its text. Raises what the middle submodel's ``open`` does."""
        middle = self.middle.open(positions, prompt, expected) if self.middle is not None else None
        back = self.back.open(positions) if self.back is not None else None
        drafts = drafter.open(positions) if drafter is not None else None
        return ChainSession(self, self.front.open(positions), middle, back, positions, drafts)


class ChainSession:
    """One generation, or the turns of one conversation, on a chain.

    Attributes:
        positions: most it may reach.
        front: the input submodel's session.
        drafts: what follows the text to draft, where somebody does; of use on the compute thread only.
    """

    def __init__(
        self,
        chain: Chain,
        front: LocalSession,
        middle: SubmodelSession | None,
        back: LocalSession | None,
        positions: int,
        drafts: DraftSession | None = None,
    ) -> None:
        self.positions = positions
        self.front = front
        self.drafts = drafts
        self.chain = chain
        self._middle = middle
        self._back = back
        self._ahead: tuple[int, torch.Tensor] | None = None

    @property
    def position(self) -> int:
        """Where the next token goes."""
        return self.front.position - (self._ahead is not None)

    @property
    def nbytes(self) -> int:
        """Bytes that it holds on this device: keys, values, and the rows to replay."""
        drafts = self.drafts.nbytes if self.drafts is not None else 0
        return drafts + sum(session.nbytes for session in self._sessions)

    @property
    def waits(self) -> bool:
        """Whether the device has time while its rows are in the middle submodel: that runs elsewhere."""
        return self._middle is not None and not isinstance(self._middle, LocalSession)

    @property
    def timings(self) -> Timings | None:
        """Where the time of this turn went so far, each answer of the cloud counted as a round; None until its prompt
        is answered, where no cloud has part in it, and where that has all layers: who holds the rest is no device."""
        parts = self.chain.parts
        if not (isinstance(self._middle, RemoteSession) and (parts.front.blocks or parts.back.blocks)):
            return None
        return self._middle.timings

    def expect(self, prompt: int, expected: int) -> None:
        """A turn begins: ``prompt`` tokens come at once, and it will probably reach position ``expected``."""
        for session in self._sessions:
            session.expect(prompt, expected)

    async def forward(
        self,
        ids: Sequence[int],
        want: int,
        then: Callable[[torch.Tensor], Value],
        follow: Callable[[Value], int | None] = lambda value: None,
    ) -> Value:
        """Run new tokens and hand the logits ``[want, vocab]`` (float32) of the last ``want`` of them to ``then``.

        ``then`` runs on the compute thread, and so does the input submodel on the token that ``follow`` makes of its
        value: choosing a token and beginning with it cost no hop between threads of their own. ``want`` is at least 1.

        Raises:
            SessionFailed: the cloud refused, failed or is gone; the session must be closed.
        """
        deep = await self.run(ids, want)

        def finish() -> Value:
            value = then(self.chain.parts.head.forward(deep))
            token = follow(value)
            if token is not None:
                self._ahead = (token, self.front.forward_now(self.chain.parts.embedding.forward([token])))
            return value

        return await self.chain.compute.submit(finish)

    async def run(self, ids: Sequence[int], want: int) -> torch.Tensor:
        """Run new tokens; the deep hidden states ``[want, hidden_size]`` of the last ``want`` of them. Raises like
        ``forward``."""
        limit = self.chain.front.max_rows
        if self.chain.middle is not None:
            limit = min(limit, self.chain.middle.max_rows)
        follows = self.waits and not self.chain.chunk
        chunker = Chunker(len(ids), self.chain.default_chunk, limit, growing=follows and self._begins_small(len(ids)))
        start = self.position
        if self._middle is not None and follows and len(ids) > 1:
            self._middle.advised = lambda begin, sizes: chunker.advise(begin - start, sizes)
        on_the_way: deque[tuple[Awaitable[torch.Tensor], int]] = deque()
        outputs: list[Awaitable[torch.Tensor]] = []
        begin = 0
        while size := chunker.next():
            wanted = max(0, min(size, want - (len(ids) - begin - size)))
            shallow = await self._shallow(ids[begin : begin + size])
            asked = size if self.chain.download_all else wanted
            on_the_way.append((self._to_middle(shallow, asked), wanted))
            self._observe(ids[begin : begin + size], shallow)
            begin += size
            if len(on_the_way) > MAX_AHEAD:
                outputs.append(await self._to_back(*on_the_way.popleft()))
        while on_the_way:
            outputs.append(await self._to_back(*on_the_way.popleft()))
        rows = [await output for output in outputs]  # All of them: a failure anywhere is a hole in a cache.
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _begins_small(self, rows: int) -> bool:
        pace = self.chain.middle.pace if self.chain.middle is not None else None
        front = self.chain.parts.front
        row_bytes = front.spec.hidden_size * front.dtype.itemsize
        return pace is None or begins_small(rows, row_bytes, pace.up_bytes_s, pace.step_s)

    def deepen(
        self, shallow: torch.Tensor, wanted: int, parents: Sequence[int] | None = None
    ) -> Awaitable[torch.Tensor]:
        """The deep hidden states ``[wanted, hidden_size]`` of the last ``wanted`` of these rows of the input submodel.

        They are the next of middle and output submodel. ``parents``: of rows that branch; ``keep_deep`` or ``cut_deep``
        must follow then.

        The order of calls is the order of rows; each result must be awaited, or the session closed.
        """
        if parents is None:
            return asyncio.ensure_future(self._deepen(self._to_middle(shallow, wanted), wanted))
        # Begun now: what is called next must come behind it.
        rows = shallow.shape[0] if self._back is not None else wanted
        deep = self._middle.forward(shallow, rows, parents) if self._middle is not None else _done(shallow)
        return asyncio.ensure_future(self._deepen_branching(deep, wanted, parents))

    def keep_deep(self, nodes: Sequence[int]) -> None:
        """Of the rows that branched, these nodes become positions of middle and output submodel; no other stays."""
        for session in (self._middle, self._back):
            if session is not None:
                session.keep(nodes)

    def cut_deep(self, position: int) -> None:
        """Forget every row from ``position`` on in the middle and output submodel; the input submodel cuts itself."""
        for session in (self._middle, self._back):
            if session is not None and session.position > position:
                session.truncate(position)

    def truncate(self, position: int) -> None:
        """Forget every token from ``position`` on, in every submodel."""
        self._ahead = None
        for session in self._sessions:
            session.truncate(position)
        if (drafts := self.drafts) is not None:
            self.chain.compute.submit(lambda: drafts.truncate(min(position, drafts.position)))

    def park(self) -> None:
        """The answer is complete and a next turn may follow; ``truncate`` or ``forward`` takes the session up again."""
        if self._ahead is not None:
            self._ahead = None
            self.front.truncate(self.front.position - 1)
        for session in self._sessions:
            session.park()

    def close(self) -> None:
        """End the session in every submodel. Safe to call twice."""
        for session in self._sessions:
            session.close()
        if (drafts := self.drafts) is not None:
            self.drafts = None
            self.chain.compute.submit(drafts.close)

    @property
    def _sessions(self) -> list[SubmodelSession]:
        return [session for session in (self.front, self._middle, self._back) if session is not None]

    def _shallow(self, ids: Sequence[int]) -> Awaitable[torch.Tensor]:
        """The input submodel's rows of new tokens, which may have been begun with already."""
        if self._ahead is not None:
            (token, rows), self._ahead = self._ahead, None
            if list(ids) == [token]:
                return _done(rows)
            self.front.truncate(self.front.position - 1)
        embedding = self.chain.parts.embedding
        return self.front.forward_from(lambda: embedding.forward(ids), len(ids))

    def _to_middle(self, shallow: torch.Tensor, wanted: int) -> Awaitable[torch.Tensor]:
        # Layers behind the cloud need every row; a head alone needs only those whose logits are asked for.
        wanted = shallow.shape[0] if self._back is not None else wanted
        if self._middle is not None:
            return self._middle.forward(shallow, wanted)
        return _done(shallow[shallow.shape[0] - wanted :])

    def _observe(self, ids: Sequence[int], shallow: torch.Tensor) -> None:
        if (drafts := self.drafts) is not None:
            self.chain.compute.submit(lambda: drafts.observe(ids, shallow, None))

    async def _deepen(self, deep: Awaitable[torch.Tensor], wanted: int) -> torch.Tensor:
        return await (await self._to_back(deep, wanted))

    async def _deepen_branching(
        self, deep: Awaitable[torch.Tensor], wanted: int, parents: Sequence[int]
    ) -> torch.Tensor:
        rows = await deep
        if self._back is not None:
            return await self._back.forward(rows, wanted, parents)
        return rows[rows.shape[0] - wanted :]

    async def _to_back(self, deep: Awaitable[torch.Tensor], wanted: int) -> Awaitable[torch.Tensor]:
        rows = await deep
        return self._back.forward(rows, wanted) if self._back is not None else _done(rows[rows.shape[0] - wanted :])


def _done(rows: torch.Tensor) -> asyncio.Future[torch.Tensor]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(rows)
    return future
