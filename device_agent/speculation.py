"""Generation with drafting, on the event loop: a round goes out, and while it is verified the device drafts on.

It knows token ids and a chain of submodels, and nothing of text or of who runs the middle layers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter

import torch

from device_agent.chain import ChainSession
from device_agent.choosing import Chooser
from device_agent.drafting_round import Draft, DraftingRounds
from device_agent.drafting_way import DraftingWay, Tally
from device_agent.generation import Step
from device_agent.local import quiet


class Speculation:
    """One answer's generation with the drafter that ``session`` was opened with."""

    def __init__(
        self,
        session: ChainSession,
        prompt: Sequence[int],
        chooser: Chooser,
        way: DraftingWay,
        end_ids: Collection[int],
        max_tokens: int,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._session = session
        self._prompt = prompt
        self._way = way
        self._rounds = DraftingRounds(
            session, chooser, way, end_ids, max_tokens, lambda row: _later(loop, self._stream, row)
        )
        self._in_flight: list[asyncio.Future[torch.Tensor]] = []
        self._rows = 0
        """Rows in flight."""
        self._broken: Exception | None = None
        """Why rows of this round could not be sent."""
        self._posted_at = self._answered_at = 0.0

    @property
    def tally(self) -> Tally:
        """What drafting has brought in this answer so far."""
        return self._rounds.tally

    async def run(self) -> AsyncGenerator[Step, None]:
        """Prefill what the session does not hold of the prompt, then one round after the other.

        Raises:
            SessionFailed: a submodel failed; the session must be closed.
        """
        session, compute = self._session, self._session.chain.compute
        deep = await session.run(self._prompt[session.position :], 1)
        turn = await compute.submit(partial(self._rounds.turn, deep, None))
        while True:
            if turn.kept is not None:
                session.keep_deep(turn.kept)
            else:
                session.cut_deep(turn.begin)
            drafting = compute.submit(self._rounds.draft) if turn.drafts else None
            if turn.row is not None and drafting is None:
                self._send(turn.row)
            try:
                for number, step in enumerate(turn.steps):
                    if number < turn.accepted:
                        self._rounds.tally.accepted += 1
                        self._way.tally.accepted += 1
                    yield step
            except GeneratorExit:  # Enough was read: back to where the last chosen token would go.
                await self._go_back(drafting)
                raise
            if turn.row is None:
                return
            if drafting is not None:
                draft = await drafting
                if draft.streamed < len(draft.rows):
                    self._send(draft.rows[draft.streamed :], draft.parents)
            rows = await self._verified()
            turn = await compute.submit(partial(self._rounds.turn, rows, self._answered_at - self._posted_at))

    def _send(self, rows: torch.Tensor, parents: Sequence[int] | None = None) -> None:
        answer = self._timed(self._session.deepen(rows, len(rows), parents))
        self._in_flight.append(quiet(asyncio.ensure_future(answer)))
        self._rows += len(rows)
        self._posted_at = perf_counter()

    def _stream(self, row: torch.Tensor) -> None:
        """One row of a draft that is still being made."""
        if self._broken is None:
            try:
                self._send(row)
            except Exception as error:  # Nobody hears of it in a callback: whoever waits for the rows will.
                self._broken = error

    async def _timed(self, answer: Awaitable[torch.Tensor]) -> torch.Tensor:
        rows = await answer
        self._answered_at = perf_counter()
        return rows

    async def _verified(self) -> torch.Tensor:
        """The rows in flight; what the device has time for meanwhile is prepared."""
        if self._broken is not None:
            raise self._broken
        if self._way.settings.prepare != "none" and self._session.waits and not self._way.drafter.tree_nodes:
            steps = self._way.costs.steps_while_waiting(self._rows)
            compute = self._session.chain.compute
            if steps > 0 and compute.idle and not self._in_flight[-1].done():
                await compute.submit_while_idle(self._rounds.prepare, steps, self._in_flight[-1].done)
        rows = [await answer for answer in self._in_flight]
        self._in_flight, self._rows = [], 0
        self._way.measured(self._session.chain.middle, rows[0].shape[1] * rows[0].itemsize)
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    async def _go_back(self, drafting: asyncio.Future[Draft] | None) -> None:
        """Leave the session before the token that was chosen last, with nothing in flight or left to compute."""
        with suppress(Exception):  # What is broken shows when the session is used next.
            if drafting is not None:
                await drafting
            for answer in self._in_flight:
                await answer
            # Behind the answers: an output submodel of several layers has its rows only now.
            self._session.truncate(self._rounds.begin)
            await self._session.chain.compute.submit(lambda: None)


def _later(loop: asyncio.AbstractEventLoop, stream: Callable[[torch.Tensor], None], row: torch.Tensor) -> None:
    """From the compute thread: have a row sent as soon as the event loop comes to it."""
    loop.call_soon_threadsafe(stream, row)
