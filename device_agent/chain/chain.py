"""A whole model as a chain of submodels: input here, middle anywhere, output here.

Prefill goes chunk by chunk: while one chunk is on its way or in the cloud, the next is computed here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from functools import partial

import torch

from device_agent.chain.deep_sessions import DeepSessions
from device_agent.chain.local import LocalSession, LocalSubmodel
from device_agent.chain.model_ends import DeviceParts
from device_agent.cloud.chunks import DEFAULT_CHUNK, Chunker
from device_agent.sharing.compute import Compute
from device_agent.sharing.prompt_turns import PromptTurns
from drafting.drafter import Drafter, DraftSession
from split_model.device import fetched
from split_model.hints import RemoteHints, TurnSpent
from split_model.submodel import Submodel, SubmodelSession
from wire.limits import FIRST_CHUNK

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
        self.prompts = PromptTurns()

    @property
    def connected(self) -> bool:
        """Whether sessions can be opened, and go on, now."""
        return self.middle is None or self.middle.connected

    @property
    def max_positions(self) -> int:
        """Most positions of one session, as far as is known now."""
        return self.middle.max_positions if self.middle is not None else self.front.max_positions

    @property
    def hints(self) -> RemoteHints | None:
        """What is known of a middle submodel that runs elsewhere; None where all layers are here."""
        return self.middle.hints if self.middle is not None else None

    @property
    def default_chunk(self) -> int:
        """Tokens in a chunk of a prompt for which nobody advises otherwise."""
        return self.chunk or (self.hints.chunk if self.hints is not None else None) or DEFAULT_CHUNK

    @property
    def first_chunk(self) -> int:
        """Most tokens in a prompt's first chunk, where the cloud advises how it is cut."""
        return (self.hints.first_chunk if self.hints is not None else None) or FIRST_CHUNK

    def open(self, positions: int, prompt: int = 0, expected: int = 0, drafter: Drafter | None = None) -> ChainSession:
        """Begin a session with room for ``positions`` positions, of which ``prompt`` come at once and ``expected`` will
        probably be reached; ``drafter`` follows its text. Raises what the middle submodel's ``open`` does."""
        middle = self.middle.open(positions, prompt, expected) if self.middle is not None else None
        back = self.back.open(positions) if self.back is not None else None
        drafts = drafter.open(positions) if drafter is not None else None
        session = ChainSession(self, self.front.open(positions), DeepSessions(middle, back), positions, drafts)
        session.prompt_end = prompt
        return session


class ChainSession:
    """One generation, or the turns of one conversation, on a chain.

    Attributes:
        positions: most it may reach.
        front: the input submodel's session.
        deep: the sessions of middle and output submodel.
        compute: the thread on which all of this session's work runs, in order.
        drafts: what follows the text to draft, where somebody does; of use on the compute thread only.
        prompt_end: where this turn's prompt ends.
    """

    def __init__(
        self,
        chain: Chain,
        front: LocalSession,
        deep: DeepSessions,
        positions: int,
        drafts: DraftSession | None = None,
    ) -> None:
        self.positions = positions
        self.front = front
        self.drafts = drafts
        self.chain = chain
        self.compute = chain.compute.lane()
        self.prompt_end = 0
        self._prompt_deep: torch.Tensor | None = None
        """The deep hidden state ``[1, hidden_size]`` of the prompt's last token, once it is there."""
        self.deep = deep
        self._hints = deep.middle.hints if deep.middle is not None else None

    @property
    def position(self) -> int:
        """Where the next token goes."""
        return self.front.position

    @property
    def nbytes(self) -> int:
        """Bytes that it holds on this device: keys, values, and the rows to replay."""
        drafts = self.drafts.nbytes if self.drafts is not None else 0
        return drafts + sum(session.nbytes for session in self._sessions)

    @property
    def waits(self) -> bool:
        """Whether the device has time while its rows are in the middle submodel: that runs elsewhere."""
        return self._hints is not None

    @property
    def spent(self) -> TurnSpent | None:
        """Where the time of this turn went so far, each answer of the cloud counted as a round; None until its prompt
        is answered, where no cloud has part in it, and where that has all layers: who holds the rest is no device."""
        parts = self.chain.parts
        return self._hints.spent if self._hints is not None and (parts.front.blocks or parts.back.blocks) else None

    def expect(self, prompt: int, expected: int) -> None:
        """A turn begins: ``prompt`` tokens come at once, and it will probably reach position ``expected``."""
        self.prompt_end, self._prompt_deep = self.position + prompt, None
        for session in self._sessions:
            session.expect(prompt, expected)

    async def run_in_turn(self, ids: Sequence[int], want: int) -> torch.Tensor:
        """``run``, and a long prompt when it is its tenant's turn where the cloud has part in it."""
        if len(ids) < 2 or not self.waits:
            return await self.run(ids, want)
        async with self.chain.prompts.turn(self.compute.tenant, len(ids)):
            return await self.run(ids, want)

    async def run(self, ids: Sequence[int], want: int) -> torch.Tensor:
        """Run new tokens; the deep hidden states ``[want, hidden_size]`` of the last ``want`` of them.

        A fork begins with no new token, ``want`` being 1: that of the prompt's last is there.

        Raises:
            SessionFailed: the cloud refused, failed or is gone; the session must be closed.
        """
        if not ids:
            assert self._prompt_deep is not None and self.position == self.prompt_end and want == 1
            return self._prompt_deep
        limit = self.chain.front.max_rows
        if self.chain.middle is not None:
            limit = min(limit, self.chain.middle.max_rows)
        follows = self.waits and not self.chain.chunk
        first = self.chain.first_chunk if follows else None
        chunker = Chunker(len(ids), self.chain.default_chunk, limit, first)
        start = self.position
        hints = self._hints if follows and len(ids) > 1 else None
        answers: list[asyncio.Future[torch.Tensor]] = []
        begin = 0
        while True:
            if hints is not None and (advice := hints.take_advice()) is not None:
                chunker.advise(advice[0] - start, advice[1])
            size = chunker.next()
            if not size:
                break
            chunk = ids[begin : begin + size]
            begin += size
            shallow = await self.front.forward_from(partial(self.chain.parts.embedding.forward, chunk), size)
            rows = await self.compute.submit(partial(self.outward, shallow)) if not shallow.is_cpu else shallow
            wanted = max(0, min(size, want - (len(ids) - begin)))
            answers.append(self.deep.deepen(rows, wanted, size if self.chain.download_all else 0))
            self._observe(chunk, shallow)
            if len(answers) > MAX_AHEAD:
                await answers[-MAX_AHEAD - 1]
        outputs = [await answer for answer in answers]  # All of them: a failure anywhere is a hole in a cache.
        deep = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        if want and start < self.prompt_end == start + len(ids):
            self._prompt_deep = deep[-1:].clone()
        return deep

    def outward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of the input submodel as they go to the middle one: in the host's memory where that runs elsewhere. On
        the compute thread, since the device is waited for."""
        return fetched(rows)[0] if self.waits else rows

    async def fork(self) -> ChainSession:
        """A session that goes on where this turn's prompt ended, which is in, and may reach as far; whatever this one
        has chosen since. No row of the prompt is run again, and none is sent.

        Raises:
            SessionFailed: this session has failed.
        """
        end, deep, drafts = self.prompt_end, self._prompt_deep, self.drafts
        assert deep is not None
        forked_drafts = await self.compute.submit(lambda: drafts.fork(end)) if drafts is not None else None
        forked = ChainSession(self.chain, self.front.fork(end), self.deep.fork(end), self.positions, forked_drafts)
        forked.compute, forked.prompt_end, forked._prompt_deep = self.compute, end, deep
        return forked

    def truncate(self, position: int) -> None:
        """Forget every token from ``position`` on, in every submodel."""
        for session in self._sessions:
            session.truncate(position)
        if (drafts := self.drafts) is not None:
            self.compute.submit(lambda: drafts.truncate(min(position, drafts.position)))

    def park(self) -> None:
        """The answer is complete and a next turn may follow; ``truncate`` or ``run`` takes the session up again."""
        for session in self._sessions:
            session.park()

    def close(self) -> None:
        """End the session in every submodel. Safe to call twice."""
        for session in self._sessions:
            session.close()
        if (drafts := self.drafts) is not None:
            self.drafts = None
            self.compute.submit(drafts.close)

    @property
    def _sessions(self) -> list[SubmodelSession]:
        return [self.front, *self.deep.all]

    def _observe(self, ids: Sequence[int], shallow: torch.Tensor) -> None:
        if (drafts := self.drafts) is not None:
            self.compute.submit(lambda: drafts.observe(ids, shallow, None))
