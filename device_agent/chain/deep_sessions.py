"""The middle and the output submodel of one session, one behind the other: shallow rows in, deep rows out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import torch

from device_agent.chain.local import LocalSession
from device_agent.sharing.compute import quiet
from split_model.submodel import SubmodelSession


class DeepSessions:
    """A session in each of the two, as far as they are there: with neither, deep rows are the shallow ones.

    The order of calls is the order of rows.

    Attributes:
        all: the sessions.
        branches: whether rows may branch in all of them.
    """

    def __init__(self, middle: SubmodelSession | None, back: LocalSession | None) -> None:
        self.middle = middle
        self._back = back
        self.all: list[SubmodelSession] = [session for session in (middle, back) if session is not None]
        self.branches = all(session.branching is not None for session in self.all)

    def fork(self, position: int) -> DeepSessions:
        """Both begun anew where they were at ``position``. Raises what ``SubmodelSession.fork`` does."""
        middle = self.middle.fork(position) if self.middle is not None else None
        return DeepSessions(middle, self._back.fork(position) if self._back is not None else None)

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
        rows = shallow.shape[0] if self._back is not None else max(wanted, download)
        if self.middle is None:
            deep: Awaitable[torch.Tensor] = done(shallow[shallow.shape[0] - rows :])
        elif parents is None:
            deep = self.middle.forward(shallow, rows)
        else:
            assert self.middle.branching is not None, "without branching there is no draft that is a tree"
            deep = self.middle.branching.forward_nodes(shallow, rows, parents)
        if self._back is not None or rows > wanted:
            deep = self._through_back(deep, wanted, parents)
        return quiet(asyncio.ensure_future(deep))

    def keep(self, nodes: Sequence[int]) -> None:
        """See ``Branching.keep``, of each."""
        for session in self.all:
            assert session.branching is not None
            session.branching.keep(nodes)

    def cut(self, position: int) -> None:
        """Forget every row from ``position`` on."""
        for session in self.all:
            if session.position > position:
                session.truncate(position)

    async def _through_back(
        self, deep: Awaitable[torch.Tensor], wanted: int, parents: Sequence[int] | None
    ) -> torch.Tensor:
        rows = await deep
        if self._back is None:
            return rows[rows.shape[0] - wanted :]
        if parents is None:
            return await self._back.forward(rows, wanted)
        return await self._back.forward_nodes(rows, min(wanted, len(rows)), parents[: len(rows)])


def done(rows: torch.Tensor) -> asyncio.Future[torch.Tensor]:
    """Rows that are there already, to be waited for."""
    future = asyncio.get_running_loop().create_future()
    future.set_result(rows)
    return future
