"""A whole model as a chain of submodels: input here, middle anywhere, output here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import torch

from device_agent.chain.local import LocalSession, LocalSubmodel
from device_agent.chain.model_ends import DeviceParts
from device_agent.chain.pruning import PrunedLayers
from device_agent.chain.source import Source, Sources
from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.sharing.compute import Compute, quiet
from device_agent.sharing.prompt_turns import PromptTurns
from drafting.drafter import Drafter, DraftSession
from split_model.cross import ReadSource
from split_model.device import fetched
from split_model.hints import TurnSpent
from split_model.submodel import Submodel, SubmodelSession


class Chain:
    """Input, middle and output submodel of one model.

    Args:
        middle: None when the device's own layers are the whole model.
        chunk: prompt tokens in one chunk, ``WHOLE_PROMPT`` for no chunks; 0: as the cloud advises.
        download_all: whether every deep hidden state of a prompt comes back, as in a plain U-shape, though none but
            those whose logits are wanted is used; for what that costs.
        sources: what reads the prompts of a model that reads one text and writes another.
    """

    def __init__(
        self,
        parts: DeviceParts,
        middle: Submodel | None,
        compute: Compute,
        chunk: int,
        *,
        download_all: bool = False,
        sources: Sources | None = None,
    ) -> None:
        self.parts = parts
        self.middle = middle
        self.compute = compute
        self.chunk = chunk
        self.download_all = download_all
        self.sources = sources
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

    def open(
        self,
        positions: int,
        prompt: int = 0,
        expected: int = 0,
        drafter: Drafter | None = None,
        source: Source | None = None,
        pruned: PrunedLayers | None = None,
        earlier: Sequence[int] = (),
    ) -> ChainSession:
        """Begin a session with room for ``positions`` positions, of which ``prompt`` come at once and ``expected`` will
        probably be reached; ``drafter`` follows its text, which is about ``source`` where the model has ``sources``.
        ``pruned``: its layers, of this device or of its group, where heads are left out. ``earlier``: see
        ``Drafter.open``.

        Raises what the middle submodel's ``open`` does."""
        here = source if isinstance(source, ReadSource) else None
        middle: SubmodelSession | None = None
        if self.sources is not None and isinstance(source, torch.Tensor):
            middle = self.sources.open(positions, source)
        elif pruned is not None and pruned.middle is not None:
            assert isinstance(self.middle, LocalSubmodel)
            middle = self.middle.open_with(positions, None, pruned.middle)
        elif pruned is not None and pruned.rest:
            assert isinstance(self.middle, GroupSubmodel)
            middle = self.middle.open(positions, prompt, expected, pruned.rest, pruned.placing)
        elif self.middle is not None:
            middle = self.middle.open(positions, prompt, expected)
        fronts, backs = (None, None) if pruned is None else (pruned.front, pruned.back)
        back = self.back.open_with(positions, None, backs) if self.back is not None else None
        drafts = drafter.open(positions, earlier) if drafter is not None else None
        session = ChainSession(self, self.front.open_with(positions, here, fronts), middle, back, positions, drafts)
        session.prompt_end = prompt
        return session


class ChainSession:
    """One generation, or the turns of one conversation, on a chain.

    What comes behind the input submodel is called *deep*: the middle and the output submodel, as far as they are there.
    With neither, deep rows are the shallow ones.

    Attributes:
        positions: most it may reach.
        front, middle, back: the submodels' sessions.
        compute: the thread on which all of this session's work runs, in order.
        drafts: what follows the text to draft, where somebody does; of use on the compute thread only.
        branches: whether rows may branch in the deep submodels.
        hints: what is known of the middle submodel where it runs elsewhere, else None.
        waits: whether it does, so that the device has time while its rows are there.
        prompt_end: where this turn's prompt ends.
        prompt_deep: the deep hidden state ``[1, hidden_size]`` of the prompt's last token, once it is there.
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
        self.middle = middle
        self.back = back
        self.drafts = drafts
        self.chain = chain
        self.compute = chain.compute.lane()
        self._deep: list[SubmodelSession] = [session for session in (middle, back) if session is not None]
        self.branches = all(session.branching is not None for session in self._deep)
        self.hints = middle.hints if middle is not None else None
        self.waits = self.hints is not None
        self.prompt_end = 0
        self.prompt_deep: torch.Tensor | None = None

    @property
    def position(self) -> int:
        """Where the next token goes."""
        return self.front.position

    @property
    def nbytes(self) -> int:
        """Bytes that it holds on this device: keys, values, and the rows to replay."""
        drafts = self.drafts.nbytes if self.drafts is not None else 0
        return drafts + sum(session.nbytes for session in (self.front, *self._deep))

    @property
    def spent(self) -> TurnSpent | None:
        """Where the time of this turn went so far, each answer of the cloud counted as a round. None until the prompt
        is answered, and unless both the device and the cloud have layers: else there is nothing to tell apart."""
        here = self.chain.parts.front.blocks or self.back is not None
        return self.hints.spent if self.hints is not None and here else None

    def expect(self, prompt: int, expected: int) -> None:
        """A turn begins: ``prompt`` tokens come at once, and it will probably reach position ``expected``."""
        self.prompt_end, self.prompt_deep = self.position + prompt, None
        for session in (self.front, *self._deep):
            session.expect(prompt, expected)

    def outward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of the input submodel as they go to the middle one: in the host's memory where that runs elsewhere. On
        the compute thread, since the device is waited for."""
        return fetched(rows)[0] if self.waits else rows

    def deepen(
        self, shallow: torch.Tensor, wanted: int, download: int = 0, parents: Sequence[int] | None = None
    ) -> asyncio.Future[torch.Tensor]:
        """The deep hidden states ``[wanted, hidden_size]`` of the last ``wanted`` of these rows of the input submodel.

        Begun now: what is called next comes behind it. Nobody has to wait where the session is closed instead.

        Args:
            download: so many of the middle submodel's rows come back at least, used or not.
            parents: of rows that branch, as ``Branching.forward_nodes`` has them; ``keep`` or ``cut`` must follow then.
                Of these the first ones alone may come back, as many as the middle submodel takes at once.
        """
        # Layers behind the cloud need every row; a head alone needs only those whose logits are asked for.
        rows = shallow.shape[0] if self.back is not None else max(wanted, download)
        if self.middle is None:
            there = asyncio.get_running_loop().create_future()
            there.set_result(shallow[shallow.shape[0] - rows :])
            deep: Awaitable[torch.Tensor] = there
        elif parents is None:
            deep = self.middle.forward(shallow, rows)
        else:
            assert self.middle.branching is not None, "without branching there is no draft that is a tree"
            deep = self.middle.branching.forward_nodes(shallow, rows, parents)
        if self.back is not None or rows > wanted:
            deep = self._through_back(deep, wanted, parents)
        return quiet(asyncio.ensure_future(deep))

    def keep(self, nodes: Sequence[int]) -> None:
        """See ``Branching.keep``, of each deep submodel."""
        for session in self._deep:
            assert session.branching is not None
            session.branching.keep(nodes)

    def cut(self, position: int) -> None:
        """Forget every deep row from ``position`` on."""
        for session in self._deep:
            if session.position > position:
                session.truncate(position)

    async def fork(self) -> ChainSession:
        """A session that goes on where this turn's prompt ended, which is in, and may reach as far; whatever this one
        has chosen since. No row of the prompt is run again, and none is sent.

        Raises:
            SessionFailed: this session has failed.
        """
        end, deep, drafts = self.prompt_end, self.prompt_deep, self.drafts
        assert deep is not None
        forked_drafts = await self.compute.submit(lambda: drafts.fork(end)) if drafts is not None else None
        middle = self.middle.fork(end) if self.middle is not None else None
        back = self.back.fork(end) if self.back is not None else None
        forked = ChainSession(self.chain, self.front.fork(end), middle, back, self.positions, forked_drafts)
        forked.compute, forked.prompt_end, forked.prompt_deep = self.compute, end, deep
        return forked

    def truncate(self, position: int) -> None:
        """Forget every token from ``position`` on, in every submodel."""
        for session in (self.front, *self._deep):
            session.truncate(position)
        if (drafts := self.drafts) is not None:
            self.compute.submit(lambda: drafts.truncate(min(position, drafts.position)))

    def park(self) -> None:
        """The answer is complete and a next turn may follow; ``truncate`` or ``prefill`` takes the session up again."""
        for session in (self.front, *self._deep):
            session.park()

    def close(self) -> None:
        """End the session in every submodel. Safe to call twice."""
        for session in (self.front, *self._deep):
            session.close()
        if (drafts := self.drafts) is not None:
            self.drafts = None
            self.compute.submit(drafts.close)

    async def _through_back(
        self, deep: Awaitable[torch.Tensor], wanted: int, parents: Sequence[int] | None
    ) -> torch.Tensor:
        rows = await deep
        if self.back is None:
            return rows[rows.shape[0] - wanted :]
        if parents is None:
            return await self.back.forward(rows, wanted)
        return await self.back.forward_nodes(rows, min(wanted, len(rows)), parents[: len(rows)])
