"""The one generation loop: a round goes out, and while it is verified the device drafts on.

It knows token ids and a chain of submodels, and nothing of text or of who runs the middle layers. ``Generation`` sends
and waits, on the event loop. ``Rounds`` computes, one hop on the compute thread for each: from the deep hidden states
that came back to the rows that go out next. That is HAT's section 3.4, head and verdict, then the next draft, so that
chosen tokens need not wait for it. Plain decoding is a round whose draft is empty.

On a device that is not the CPU a plain round crosses to the host once, with the token and its row. A drafted one
crosses twice: for the verdict, which is not to wait for the draft, and for the draft with its rows. Each level of a
tree crosses too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch

from device_agent.chain.chain import ChainSession
from device_agent.chain.prefill import prefill
from device_agent.sharing.compute import Outputs
from device_agent.sharing.served_request import served_request
from device_agent.speculative.ahead import Ahead, DraftMaker, Preparation
from device_agent.speculative.way import DraftingWay, Tally
from device_agent.speculative.whole_drafts import whole_drafts
from drafting.choosing import Chooser, Chosen, Verdict
from split_model.device import fetched, on_host, put
from split_model.tree import TRUNK


@dataclass(frozen=True)
class Out:
    """What a round gives out: first its verdict, with whatever rows are there by then, and then more rows of the draft.

    Attributes:
        chosen: the tokens that were chosen; all but the last were drafted.
        kept: where the last draft was a tree, those of its rows that were accepted; None where it was a chain.
        rows: to be verified, ``[rows, hidden_size]``: first of all the last chosen token's.
        parents: of the rows, where the draft is a tree.
    """

    chosen: tuple[Chosen, ...] = ()
    kept: tuple[int, ...] | None = None
    rows: torch.Tensor | None = None
    parents: tuple[int, ...] | None = None


class Generation:
    """One answer, drafted the way that ``session`` was opened for.

    Attributes:
        tally: what drafting has brought in this answer so far.
    """

    def __init__(self, session: ChainSession, chooser: Chooser, way: DraftingWay) -> None:
        self._session = session
        self._prompt = chooser.prompt
        self._masks = chooser.masks
        self._way = way
        self._rounds = Rounds(session, chooser, way)
        self._progress = served_request.get().progress
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
        session, waited_s, rows = self._session, None, 0
        self._foresee()
        deep: torch.Tensor | None = await prefill(session, self._prompt[session.position :], 1)
        while deep is not None:
            round = session.compute.stream(partial(self._rounds.round, deep, waited_s))
            try:
                async for out in round:
                    self._post(out)
                    if out.chosen:
                        self._progress.verdict(len(out.chosen), rows, waited_s)
                    for number, chosen in enumerate(out.chosen, 1):
                        for tally in (self.tally, self._way.tally):
                            tally.accepted += number < len(out.chosen)
                        yield chosen
            except GeneratorExit:  # Enough was read: back to where the last chosen token would go.
                await self._go_back(round)
                raise
            rows, deep = self._rows, (await self._verified() if self._in_flight else None)
            waited_s = max(0.0, self._answered_at - self._posted_at)

    def _post(self, out: Out) -> None:
        """Settle in the submodels behind the first what was judged, and send rows on."""
        if out.kept is not None:
            self._session.keep(out.kept)
        elif out.chosen:
            self._session.cut(self._rounds.begin)
        if out.rows is not None:
            answer = self._session.deepen(out.rows, len(out.rows), parents=out.parents)
            answer.add_done_callback(self._answered)
            self._in_flight.append(answer)
            self._rows += len(out.rows)
            self._posted_at = perf_counter()

    def _answered(self, answer: asyncio.Future[torch.Tensor]) -> None:
        self._answered_at = perf_counter()

    def _foresee(self) -> None:
        """Have what may follow looked up beside the work of the other submodels, and not behind it."""
        if self._masks is not None:
            self._masks.foresee(self._rounds.texts())

    async def _verified(self) -> torch.Tensor:
        """The rows in flight; what the device has time for meanwhile is prepared."""
        compute, hints, costs, last = self._session.compute, self._session.hints, self._way.costs, self._in_flight[-1]
        self._foresee()
        if self._way.prepares and hints is not None:
            steps = costs.steps_while_waiting(self._rows)
            if steps > 0 and compute.idle and not last.done():
                await compute.submit_while_idle(self._rounds.prepare, steps, last.done)
        rows = [await answer for answer in self._in_flight]
        self._in_flight, self._rows = [], 0
        if self._way.drafter is not None and hints is not None:
            costs.link(rows[0].shape[1] * rows[0].itemsize, hints.pace)
            hints.drafts_in(costs.draft_s)
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


class Rounds:
    """The rounds of one answer, one after the other.

    Args:
        way: drafter and what is known of drafting with it; ``session`` was opened with its drafter.

    Attributes:
        tally: what drafting brought in this answer; accepted tokens count once they are read.
        begin: where the token that was chosen last goes: all before it is final.
    """

    def __init__(self, session: ChainSession, chooser: Chooser, way: DraftingWay) -> None:
        self.tally = Tally()
        self.begin = 0
        self._session = session
        self._head = session.chain.parts.head
        self._chooser = chooser
        self._way = way
        self._ahead = Ahead(session)
        self._maker = DraftMaker(session, self._ahead, chooser, way)
        self._whole = whole_drafts(session, self._ahead, self._maker, chooser, way)
        self._preparation: Preparation | None = None
        self._drafts = False
        """Whether a draft is made in this round."""
        self._sent: list[int] = []
        """The nodes that are being verified, in the order of their rows."""
        self._outward: torch.Tensor | None = None
        """The row of the token chosen last in the host's memory, where it came with the verdict."""
        self._ended_at: float | None = None

    def round(self, deep: torch.Tensor, waited_s: float | None) -> Generator[Out, None, Out | None]:
        """The verdict on a draft, and then the next.

        Args:
            deep: ``[1 + drafted, hidden_size]``: of the last chosen token and the draft; at first of the prompt's end.
                Of a tree those that come last may be missing: it is as if they had not been drafted.
            waited_s: from when the last row was sent to when the last of these came; None at first.
        """
        deep = put(deep, self._head.device)
        verdict = self._judge(deep)
        self._learn(verdict, waited_s)
        kept, line = self._settle(verdict, deep)
        ends = verdict.chosen[-1].reason is not None
        self._drafts = not ends and self._room > 0 and self._way.length.begins()
        streams = self._drafts and self._streams
        # What a draft is behind goes with it, where rows are not sent one by one.
        last = None if ends or (self._drafts and not streams) else self._ahead.root_row
        if last is not None:
            last = self._outward if self._outward is not None else self._session.outward(last)
        first = Out(verdict.chosen, kept, last)
        if not self._drafts:
            return first
        yield first
        if self._whole is not None:
            self._sent, rows, parents = self._whole.make(line, self._room)
            return Out(rows=rows, parents=parents)
        return (yield from self._chain(line, streams))

    def texts(self) -> list[list[int]]:
        """What was generated, and behind it each node that is being verified: what follows them is chosen next."""
        tree, generated = self._ahead.tree, self._chooser.generated
        return [[*generated, *tree.text_of(node)] for node in (TRUNK, *self._sent)]

    def prepare(self) -> bool:
        """Draft one token further for every verdict that is likely; False when that is enough.

        Nothing where this round was not drafted for. Nor where drafts are drawn: whether a token is prepared for a
        verdict depends on what was sent, and both are drawn with the same noise, so that it would not be drawn
        independently of that verdict, and be verified as if it were.
        """
        if not self._drafts or not self._chooser.follows(self._way.rule, self._sent):
            return False
        if self._preparation is None:
            self._preparation = Preparation(self._ahead, self._maker, self._sent, self._way.settings.prepare)
        return self._preparation.step()

    def _judge(self, deep: torch.Tensor) -> Verdict:
        del self._sent[len(deep) - 1 :]
        drafted = [self._ahead.nodes[node].candidate for node in self._sent]
        logits, tree, rule = self._head.forward(deep), self._ahead.tree, self._way.rule
        picks = () if logits.is_cpu or not self._chooser.follows(rule, self._sent) else self._picks(logits)
        verdict = self._chooser.judge(logits, tree, self._sent, drafted, rule, picks)
        return verdict.named([self._ahead.nodes[node].candidate.source for node in verdict.path])

    def _picks(self, logits: torch.Tensor) -> list[int]:
        """What is chosen on another device than the CPU. Without a drafter the token's row is begun before anybody here
        knows which it is, and both cross together: the device is waited for once in a round."""
        self._outward = None
        picked = self._chooser.picks(logits, self._ahead.tree, self._sent)
        if self._way.drafter is None and self._chooser.left > 1:
            row = self._ahead.begin(picked)
            if self._session.waits:
                picked, self._outward = fetched(picked, row)
        found: list[int] = on_host(picked)[0]
        return found

    def _settle(self, verdict: Verdict, deep: torch.Tensor) -> tuple[tuple[int, ...] | None, list[int]]:
        """What was accepted is final: the rows to keep of a tree, and the nodes that were prepared to follow."""
        branched, proposed, path = bool(self._way.tree_nodes and self._sent), len(self._sent), verdict.path
        kept = (0, *(1 + self._sent.index(node) for node in path))
        last = verdict.chosen[-1]
        self.begin = self._ahead.position + len(path)
        token = last.token if last.reason is None else None
        if branched:
            deep = deep.index_select(0, put(torch.tensor(kept), deep.device))
        line = self._ahead.settle(path, token, deep[: len(kept)])
        now = perf_counter()
        if self._ended_at is not None:  # From verdict to verdict: a draft's own making is part of what it takes.
            self._way.length.seen(proposed, len(path), now - self._ended_at, self._drafts)
        self._ended_at = now
        self._sent, self._preparation = [], None
        return kept if branched else None, line

    def _chain(self, line: Sequence[int], streams: bool) -> Generator[Out, None, Out | None]:
        """The rows of a chain, one by one as they are made, or all together behind the last chosen token's."""
        for node in self._maker.chain(line, self._room):
            self._sent.append(node)
            if streams:
                yield Out(rows=self._session.outward(self._ahead.nodes[node].row))
        return None if streams else Out(rows=self._session.outward(self._ahead.rows(self._sent)))

    def _learn(self, verdict: Verdict, waited_s: float | None) -> None:
        """What a verdict teaches."""
        if waited_s is None:
            return
        way, path, complete = self._way, verdict.path, verdict.chosen[-1].reason is not None
        if way.drafter is not None:
            way.costs.verified(1 + len(self._sent), waited_s)
        if not way.tree_nodes:
            for node in self._sent[: len(path) + (not complete)]:
                candidate, sampled = self._ahead.nodes[node].candidate, not self._chooser.params.is_greedy
                way.calibration.seen(candidate.source, sampled, candidate.weight, node in path)
        prepared = self._preparation is not None and bool(self._preparation.leaves)
        last = self._ahead.tree.child(path[-1] if path else TRUNK, verdict.chosen[-1].token)
        for tally in (self.tally, way.tally):
            tally.rounds += 1
            tally.drafts += bool(self._sent)
            tally.proposed += len(self._sent)
            tally.prepared += prepared
            tally.hits += prepared and not complete and last is not None

    @property
    def _streams(self) -> bool:
        """Whether a round's rows are sent one by one."""
        wanted = self._way.settings.stream_rows
        return self._whole is None and (self._way.costs.one_by_one if wanted == "auto" else wanted == "on")

    @property
    def _room(self) -> int:
        """Tokens that may be drafted: as many as there are positions, and tokens that are still wanted."""
        session, nodes, middle = self._session, self._way.tree_nodes, self._session.chain.middle
        left = session.positions - session.front.position
        # A tree goes whole or not at all, and takes as many slots as it has nodes.
        fits = not nodes or (session.branches and left >= nodes and (middle is None or middle.max_rows > nodes))
        return min(left, self._chooser.left - 1) if self._way.drafter is not None and fits else 0
