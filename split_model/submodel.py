"""What a part of a model looks like to whoever uses it, the same for local layers, the cloud or a group of devices.

    session = submodel.open(positions=600)
    deep = await session.forward(shallow, want=1)
    session.truncate(590)
    session.close()

Three more are owed by all and cost nothing where they mean nothing: ``expect`` before a turn, ``park`` after it, and
``fork``, by which several go on from where one has come to, and no row is run again.

    other = session.fork(590)

All begin at once and in the order they are called; only ``forward`` has a result to wait for, so the next chunk
can be handed over while the last one is still on its way.

What not every submodel can do is asked for by what it offers, never by its class. ``branching``: rows that branch, to
be judged side by side, of which ``keep`` says which go on; a submodel without it serves everything but drafts that are
trees. ``hints``: where the layers run elsewhere, what is known of them and how they want their rows.

    if (branching := session.branching) is not None:
        deep = await branching.forward_nodes(nodes, want=3, parents=[-1, 0, 0])
        branching.keep([0, 2])

A model that reads whole texts or images at once has no positions to go on from, and so no sessions: its layers are a
`ReadingSubmodel`, which has one verb. So may those of a model that writes be: ``reading`` offers it.

    rows = await reading.read(embedded, lengths=[12, 7])
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

import torch

from split_model.hints import RemoteHints, SessionHints


class Branching(Protocol):
    """What a session offers whose rows may branch."""

    def forward_nodes(self, hidden: torch.Tensor, want: int, parents: Sequence[int]) -> Awaitable[torch.Tensor]:
        """Run rows as nodes behind the present position, each behind its parent.

        Nodes are numbered from 0 in this forward and count for nothing, so the position stays: only ``keep``, or the
        session's ``truncate``, which forgets them all, may follow.

        Args:
            hidden, want: as of ``SubmodelSession.forward``.
            parents: of each row the node that it follows, which comes before it; -1: the last position.

        Returns:
            the outputs of the last ``want`` rows, ``[want, hidden_size]``. Of nodes that are more than who runs the
            layers takes at once by then, the last ones are left out, and their outputs are missing.

        Raises:
            ValueError: as ``forward``; a parent is wrong, or more nodes come than may at once (64). Nothing was begun.
            Exception: (from the awaited result) as ``forward``.
        """

    def keep(self, nodes: Sequence[int]) -> None:
        """Those of ``nodes``, a path from the last position on, become the next positions; the others are forgotten.

        Raises ``ValueError`` where the last forward's rows do not branch, or the nodes are no such path.
        """


class SubmodelSession(Protocol):
    """One generation on one submodel."""

    @property
    def position(self) -> int:
        """Where the next row goes, once everything asked for so far is done."""

    @property
    def nbytes(self) -> int:
        """Bytes that the session holds in this process."""

    @property
    def branching(self) -> Branching | None:
        """How rows may branch; None where they cannot."""

    @property
    def hints(self) -> SessionHints | None:
        """What is known of layers that run elsewhere; None for layers in this process."""

    def expect(self, prompt: int, expected: int) -> None:
        """A turn begins: ``prompt`` rows will come at once, and it will probably reach position ``expected``."""

    def forward(self, hidden: torch.Tensor, want: int) -> Awaitable[torch.Tensor]:
        """Run new positions.

        Args:
            hidden: ``[rows, hidden_size]`` in the submodel's dtype, rows at most what its ``max_rows`` is now or was
                when the session was opened.
            want: how many of the last rows are needed, 0 to rows.

        Returns:
            the outputs of the last ``want`` rows, ``[want, hidden_size]``.

        Raises:
            ValueError: the shape or ``want`` is wrong, or nodes are neither kept nor forgotten yet. Nothing was begun.
            Exception: (from the awaited result) what ended the session; it must then be closed.
        """

    def truncate(self, position: int) -> None:
        """Forget every position from ``position`` on, and all nodes.

        Raises ``ValueError`` beyond the present position.
        """

    def fork(self, position: int) -> SubmodelSession:
        """A session that holds the first ``position`` rows, all of them answered, and may reach as far; from then on
        neither knows of the other.

        Raises ``ValueError`` beyond them.
        """

    def park(self) -> None:
        """The answer is complete, and a next turn may follow: keep what is held while there is room.

        The next forward or truncate takes it up again, whether it was kept or not. Raises ``ValueError`` while rows
        are not answered, or branch.
        """

    def close(self) -> None:
        """End the session and free what it holds, here and elsewhere. Safe to call twice."""


class Submodel(Protocol):
    """A part of a model that sessions can be opened on."""

    @property
    def connected(self) -> bool:
        """Whether sessions can be opened, and go on, now."""

    @property
    def max_rows(self) -> int:
        """Most rows in one forward, as it is now."""

    @property
    def max_positions(self) -> int:
        """Most positions of one session."""

    @property
    def hints(self) -> RemoteHints | None:
        """What is known of layers that run elsewhere; None for layers in this process."""

    @property
    def reading(self) -> ReadingSubmodel | None:
        """How whole texts are read without a session for each; None where there are sessions alone."""

    def open(self, positions: int, prompt: int = 0, expected: int = 0) -> SubmodelSession:
        """Begin a session with room for ``positions`` positions; see ``expect`` for ``prompt`` and ``expected``.

        May raise what ``forward`` may.
        """


class AttendingSubmodel(Protocol):
    """The layers of a decoder whose rows also attend to what an encoder has read, on other devices."""

    def open_about(self, positions: int, read: torch.Tensor) -> SubmodelSession:
        """Begin a session with room for ``positions`` positions, about one text; forks of it are about the same.

        Args:
            read: the encoder's rows of the text, ``[rows, hidden_size]`` in the submodel's dtype, behind its final
                norm. Nobody may write to them afterwards.

        Raises ``ValueError`` for other rows, or more than are read at once, and what ``Submodel.open`` may.
        """


class ReadingSubmodel(Protocol):
    """Layers that read whole texts or images at once, here or in a group. Nothing is kept of them."""

    @property
    def connected(self) -> bool:
        """Whether anything can be read now."""

    @property
    def max_rows(self) -> int:
        """Most rows in one call, all texts together, as it is now."""

    def read(self, hidden: torch.Tensor, lengths: Sequence[int]) -> Awaitable[torch.Tensor]:
        """Run whole texts, each from position 0 on; rows of one text see one another and no other text.

        Args:
            hidden: ``[sum(lengths), hidden_size]`` in the submodel's dtype, one text after the other, as embedded with
                token types: what ``Stack.run`` takes. What the entry does (learned positions, a norm) is done here.
            lengths: rows of each text, 1 at least.

        Returns:
            all rows behind the last layer, in the same shape; a final norm is not applied.

        Raises:
            ValueError: the shape or the lengths are wrong, or there are more than ``max_rows`` rows. Nothing was begun.
            Exception: (from the awaited result) what ended it; the next call may succeed.
        """
