"""A whole model as a chain of submodels: input here, middle anywhere, output here.

Prefill goes chunk by chunk: while one chunk is on its way or in the cloud, the next is computed here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import torch

from device_agent.chunking import DEFAULT_CHUNK, Chunker
from device_agent.local import Compute, LocalSession, LocalSubmodel
from device_agent.parts import DeviceParts
from split_model.submodel import Submodel, SubmodelSession

Value = TypeVar("Value")

MAX_AHEAD = 4
"""Chunks computed here and not yet answered: enough to keep link and cloud busy, and no more memory than that."""


class Chain:
    """Input, middle and output submodel of one model.

    Args:
        middle: None when the device's own layers are the whole model.
        chunk: prompt tokens in one chunk; 0: as the cloud advises.
    """

    def __init__(self, parts: DeviceParts, middle: Submodel | None, compute: Compute, chunk: int) -> None:
        self.parts = parts
        self.middle = middle
        self.compute = compute
        self.chunk = chunk
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

    def open(self, positions: int, prompt: int = 0, expected: int = 0) -> ChainSession:
        """Begin a session with room for ``positions`` positions, of which ``prompt`` come at once and ``expected`` will
        probably be reached. Raises what the middle submodel's ``open`` does."""
        middle = self.middle.open(positions, prompt, expected) if self.middle is not None else None
        back = self.back.open(positions) if self.back is not None else None
        return ChainSession(self, self.front.open(positions), middle, back, positions)


class ChainSession:
    """One generation, or the turns of one conversation, on a chain.

    Attributes:
        positions: most it may reach.
    """

    def __init__(
        self,
        chain: Chain,
        front: LocalSession,
        middle: SubmodelSession | None,
        back: LocalSession | None,
        positions: int,
    ) -> None:
        self.positions = positions
        self._chain = chain
        self._front = front
        self._middle = middle
        self._back = back
        self._ahead: tuple[int, torch.Tensor] | None = None

    @property
    def position(self) -> int:
        """Where the next token goes."""
        return self._front.position - (self._ahead is not None)

    @property
    def nbytes(self) -> int:
        """Bytes that it holds on this device: keys, values, and the rows to replay."""
        return sum(session.nbytes for session in self._sessions)

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
        limit = self._chain.front.max_rows
        if self._chain.middle is not None:
            limit = min(limit, self._chain.middle.max_rows)
        chunker = Chunker(len(ids), self._chain.default_chunk, limit)
        start = self.position
        if self._middle is not None and len(ids) > 1 and not self._chain.chunk:
            self._middle.advised = lambda begin, sizes: chunker.advise(begin - start, sizes)
        on_the_way: deque[tuple[Awaitable[torch.Tensor], int]] = deque()
        outputs: list[Awaitable[torch.Tensor]] = []
        begin = 0
        while size := chunker.next():
            wanted = max(0, min(size, want - (len(ids) - begin - size)))
            shallow = await self._shallow(ids[begin : begin + size])
            on_the_way.append((self._to_middle(shallow, wanted), wanted))
            begin += size
            if len(on_the_way) > MAX_AHEAD:
                outputs.append(await self._to_back(*on_the_way.popleft()))
        while on_the_way:
            outputs.append(await self._to_back(*on_the_way.popleft()))
        rows = [await output for output in outputs]  # All of them: a failure anywhere is a hole in a cache.
        deep = rows[0] if len(rows) == 1 else torch.cat(rows)

        def finish() -> Value:
            value = then(self._chain.parts.head.forward(deep))
            token = follow(value)
            if token is not None:
                self._ahead = (token, self._front.forward_now(self._chain.parts.embedding.forward([token])))
            return value

        return await self._chain.compute.submit(finish)

    def truncate(self, position: int) -> None:
        """Forget every token from ``position`` on, in every submodel."""
        self._ahead = None
        for session in self._sessions:
            session.truncate(position)

    def park(self) -> None:
        """The answer is complete and a next turn may follow; ``truncate`` or ``forward`` takes the session up again."""
        if self._ahead is not None:
            self._ahead = None
            self._front.truncate(self._front.position - 1)
        for session in self._sessions:
            session.park()

    def close(self) -> None:
        """End the session in every submodel. Safe to call twice."""
        for session in self._sessions:
            session.close()

    @property
    def _sessions(self) -> list[SubmodelSession]:
        return [session for session in (self._front, self._middle, self._back) if session is not None]

    def _shallow(self, ids: Sequence[int]) -> Awaitable[torch.Tensor]:
        """The input submodel's rows of new tokens, which may have been begun with already."""
        if self._ahead is not None:
            (token, rows), self._ahead = self._ahead, None
            if list(ids) == [token]:
                return _done(rows)
            self._front.truncate(self._front.position - 1)
        embedding = self._chain.parts.embedding
        return self._front.forward_from(lambda: embedding.forward(ids), len(ids))

    def _to_middle(self, shallow: torch.Tensor, wanted: int) -> Awaitable[torch.Tensor]:
        # Layers behind the cloud need every row; a head alone needs only those whose logits are asked for.
        wanted = shallow.shape[0] if self._back is not None else wanted
        if self._middle is not None:
            return self._middle.forward(shallow, wanted)
        return _done(shallow[shallow.shape[0] - wanted :])

    async def _to_back(self, deep: Awaitable[torch.Tensor], wanted: int) -> Awaitable[torch.Tensor]:
        rows = await deep
        return self._back.forward(rows, wanted) if self._back is not None else _done(rows)


def _done(rows: torch.Tensor) -> asyncio.Future[torch.Tensor]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(rows)
    return future
