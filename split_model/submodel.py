"""What a part of a model looks like to whoever uses it: four verbs, the same for local layers, the cloud or a group.

    session = submodel.open(positions=600)
    deep = await session.forward(shallow, want=1)
    session.truncate(590)
    session.close()

Two more are said once in a turn and cost nothing where they mean nothing: ``expect`` before it, ``park`` after it. And
rows may branch, to be judged side by side: ``keep`` says which of them go on.

    deep = await session.forward(nodes, want=3, parents=[-1, 0, 0])
    session.keep([0, 2])

All begin at once and in the order they are called; only ``forward`` has a result to wait for, so the next chunk
can be handed over while the last one is still on its way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


class SubmodelSession(Protocol):
    """One generation on one submodel.

    Attributes:
        advised: called with a position and chunk sizes from there on when whoever runs the layers knows better how its
            rows should be cut into chunks; never called by local layers.
    """

    advised: Callable[[int, Sequence[int]], None] | None

    @property
    def position(self) -> int:
        """Where the next row goes, once everything asked for so far is done."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that the session holds in this process."""
        ...

    def expect(self, prompt: int, expected: int) -> None:
        """A turn begins: ``prompt`` rows will come at once, and it will probably reach position ``expected``."""
        ...

    def forward(self, hidden: torch.Tensor, want: int, parents: Sequence[int] | None = None) -> Awaitable[torch.Tensor]:
        """Run new positions; or, with ``parents``, nodes behind the present position.

        Nodes are numbered from 0 in this forward and count for nothing, so the position stays: only ``keep``, or
        ``truncate``, which forgets them all, may follow.

        Args:
            hidden: ``[rows, hidden_size]`` in the submodel's dtype, rows at most what its ``max_rows`` is now or was
                when the session was opened.
            want: how many of the last rows are needed, 0 to rows.
            parents: of each row the node that it follows, which comes before it; -1: the last position.

        Returns:
            the outputs of the last ``want`` rows, ``[want, hidden_size]``.

        Raises:
            ValueError: the shape, ``want`` or a parent is wrong, more nodes come than may at once (64), or nodes are
                neither kept nor forgotten yet. Nothing was begun.
            Exception: (from the awaited result) what ended the session; it must then be closed.
        """
        ...

    def truncate(self, position: int) -> None:
        """Forget every position from ``position`` on, and all nodes.

        Raises ``ValueError`` beyond the present position.
        """
        ...

    def keep(self, nodes: Sequence[int]) -> None:
        """Those of ``nodes``, a path from the last position on, become the next positions; the others are forgotten.

        Raises ``ValueError`` where the last forward's rows do not branch, or the nodes are no such path.
        """
        ...

    def park(self) -> None:
        """The answer is complete, and a next turn may follow: keep what is held while there is room.

        The next forward or truncate takes it up again, whether it was kept or not. Raises ``ValueError`` while rows
        are not answered, or branch.
        """
        ...

    def close(self) -> None:
        """End the session and free what it holds, here and elsewhere. Safe to call twice."""
        ...


@dataclass(frozen=True)
class Pace:
    """How fast a submodel that runs elsewhere is; None where nothing has been measured.

    Attributes:
        step_s: seconds of a step there that had few of this device's rows.
        up_bytes_s, down_bytes_s: bandwidth of the link to it, and from it, in bytes a second.
    """

    step_s: float | None = None
    up_bytes_s: float | None = None
    down_bytes_s: float | None = None


class Submodel(Protocol):
    """A part of a model that sessions can be opened on."""

    @property
    def connected(self) -> bool:
        """Whether sessions can be opened, and go on, now."""
        ...

    @property
    def max_rows(self) -> int:
        """Most rows in one forward, as it is now."""
        ...

    @property
    def max_positions(self) -> int:
        """Most positions of one session."""
        ...

    @property
    def chunk(self) -> int | None:
        """Rows in which a prompt is best cut, None where that is all the same."""
        ...

    @property
    def pace(self) -> Pace | None:
        """How fast it is, where it runs elsewhere; None for layers in this process."""
        ...

    def drafts_in(self, seconds: float) -> None:
        """One step of drafting takes this device so long (the paper's gamma); of use to whoever runs the layers."""
        ...

    def open(self, positions: int, prompt: int = 0, expected: int = 0) -> SubmodelSession:
        """Begin a session with room for ``positions`` positions; see ``expect`` for ``prompt`` and ``expected``.

        May raise what ``forward`` may.
        """
        ...
