"""The one generation loop, on the event loop: a round goes out, and while it is verified the device drafts on.

It knows token ids and a chain of submodels, and nothing of text or of who runs the middle layers. Plain decoding is the
same loop with drafts that are empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from time import perf_counter

import torch

from device_agent.chain.chain import ChainSession
from device_agent.sharing.compute import Outputs
from device_agent.speculative.choosing import Chooser, Chosen
from device_agent.speculative.round import Out, Rounds
from device_agent.speculative.way import DraftingWay, Tally


class Generation:
    """One answer, drafted the way that ``session`` was opened for.

    Attributes:
        tally: what drafting has brought in this answer so far.
    """

    def __init__(self, session: ChainSession, chooser: Chooser, way: DraftingWay) -> None:
        self._session = session
        self._prompt = chooser.prompt
        self._way = way
        self._rounds = Rounds(session, chooser, way)
        self.tally: Tally = self._rounds.tally
        self._in_flight: list[asyncio.Future[torch.Tensor]] = []
        self._rows = 0
        """Rows in flight."""
        self._posted_at = self._answered_at = 0.0

    async def run(self) -> AsyncGenerator[Chosen, None]:
        """Prefill what the session does not hold of the prompt, then one round after the other until the answer ends.

        Raises:
            SessionFailed: a submodel failed; the session must be closed.
        """
        session, waited_s = self._session, None
        deep: torch.Tensor | None = await session.run_in_turn(self._prompt[session.position :], 1)
        while deep is not None:
            round = session.compute.stream(partial(self._rounds.round, deep, waited_s))
            try:
                async for out in round:
                    self._post(out)
                    for number, chosen in enumerate(out.chosen, 1):
                        self._count(accepted=number < len(out.chosen))
                        yield chosen
            except GeneratorExit:  # Enough was read: back to where the last chosen token would go.
                await self._go_back(round)
                raise
            deep = await self._verified() if self._in_flight else None
            waited_s = max(0.0, self._answered_at - self._posted_at)

    def _post(self, out: Out) -> None:
        """Settle in the submodels behind the first what was judged, and send rows on."""
        if out.kept is not None:
            self._session.deep.keep(out.kept)
        elif out.chosen:
            self._session.deep.cut(self._rounds.begin)
        if out.rows is not None:
            answer = self._session.deep.deepen(out.rows, len(out.rows), parents=out.parents)
            answer.add_done_callback(self._answered)
            self._in_flight.append(answer)
            self._rows += len(out.rows)
            self._posted_at = perf_counter()

    def _answered(self, answer: asyncio.Future[torch.Tensor]) -> None:
        self._answered_at = perf_counter()

    def _count(self, accepted: bool) -> None:
        self.tally.accepted += accepted
        self._way.tally.accepted += accepted

    async def _verified(self) -> torch.Tensor:
        """The rows in flight; what the device has time for meanwhile is prepared."""
        compute, last = self._session.compute, self._in_flight[-1]
        if self._way.prepares and self._session.waits:
            steps = self._way.costs.steps_while_waiting(self._rows)
            if steps > 0 and compute.idle and not last.done():
                await compute.submit_while_idle(self._rounds.prepare, steps, last.done)
        rows = [await answer for answer in self._in_flight]
        self._in_flight, self._rows = [], 0
        if self._way.drafter is not None:
            self._way.measured(self._session.chain.middle, rows[0].shape[1] * rows[0].itemsize)
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    async def _go_back(self, round: Outputs[Out]) -> None:
        """Leave the session before the token that was chosen last, with nothing in flight or left to compute."""
        with suppress(Exception):  # What is broken shows when the session is used next.
            async for _ in round:
                pass
            for answer in self._in_flight:
                await answer
            # Behind the answers: an output submodel of several layers has its rows only now.
            self._session.truncate(self._rounds.begin)
            await self._session.compute.submit(lambda: None)
