"""What a drafter looks like to the loop that asks it for tokens, whichever kind it is.

A drafter follows one text. What is final it *observes*: the prompt, then after each verdict the tokens that were
chosen. What it is asked about beyond that are *nodes* of a tree of tokens behind the last observed one. The tree is the
asker's, and every session of the device that has rows of its nodes is handed the same one; observing anything forgets
it, and the next tree is another. A draft is a path of nodes; branches are only made to prepare for several verdicts,
and never leave the device.

Everything here runs on the device's compute thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from split_model.tree import Tree

NODE_SLOTS = 256
"""Nodes that a text can have at a time, where nodes take room in a cache. One more, and ``extend`` raises CacheFull."""


@dataclass(frozen=True)
class Guess:
    """What a drafter says about the token that follows one node: exactly one of the two is there.

    Attributes:
        logits: float32 ``[vocab]``, before any warper, so that they can go through the same ones as the target's.
        ranked: tokens, likeliest first, with a weight from 0 to 1 each, from a drafter that knows no distribution.
        source: which drafter it comes from; what its confidence has been worth is learned for each.
    """

    source: str
    logits: torch.Tensor | None = None
    ranked: tuple[tuple[int, float], ...] = ()


class DraftSession(Protocol):
    """A drafter on one text. Positions count from the text's first token."""

    @property
    def position(self) -> int:
        """Tokens observed."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that the session holds."""
        ...

    def observe(self, tokens: Sequence[int], shallow: torch.Tensor, before: torch.Tensor | None) -> None:
        """The text goes on with ``tokens``; cheap, what is to be computed may wait until somebody asks.

        Args:
            shallow: the input submodel's rows of these tokens, ``[len(tokens), hidden_size]``. Nobody writes to them.
            before: deep hidden states (what the last layer gives, before the final norm) of the positions that
                *precede* the last ``len(before)`` of these tokens, ``[0 to len(tokens), hidden_size]``; None: of none.
        """
        ...

    def guess(self) -> Guess | None:
        """About the token after the last one observed; None where the drafter has nothing to say."""
        ...

    def extend(self, tree: Tree, shallow: torch.Tensor, tokens: torch.Tensor | None = None) -> list[Guess | None]:
        """The last nodes of ``tree``, as many as there are rows, are new to this session, and no others.

        Args:
            tree: with tokens, its trunk being the observed text; the same one until something is observed.
            shallow: the input submodel's rows of the new nodes, ``[new, hidden_size]``.
            tokens: of the new nodes, int64 ``[new]`` where the layers are, while the tree says ``NOBODY`` of some of
                them, since the host has not been told yet; None where the tree knows.

        Returns:
            what may follow each of them.

        Raises:
            ValueError: the tree is behind another text, or other nodes are new.
        """
        ...

    def truncate(self, position: int) -> None:
        """Forget every observed token from ``position`` on, and every node."""
        ...

    def fork(self, position: int) -> DraftSession:
        """A session that has observed the first ``position`` of the same tokens and has no nodes; from then on neither
        knows of the other. It says what this one would after ``truncate(position)``."""
        ...

    def close(self) -> None:
        """Free what is held. Safe to call twice."""
        ...


class TreeDraftSession(DraftSession, Protocol):
    """A drafter whose drafts are trees: what it says about a node depends on the node's depth alone."""

    def levels(self) -> list[Guess]:
        """About the tokens 1, 2, … places after the last one observed; none where it has nothing to say."""
        ...


class Drafter(Protocol):
    """A way to draft, loaded once, for any number of texts."""

    @property
    def name(self) -> str:
        """What ``--draft`` calls it."""
        ...

    @property
    def parameters(self) -> int:
        """How many parameters it adds to what the device holds anyway."""
        ...

    @property
    def tree_nodes(self) -> int:
        """Nodes of the tree that is sent to be verified, its sessions being ``TreeDraftSession``.

        0: the draft is a chain, as it is for all but Medusa.
        """
        ...

    def apart(self) -> Drafter:
        """The same drafter for another tenant, which has learned nothing yet from texts; itself where it never does:
        what one tenant's texts teach is not known to others."""
        ...

    def open(self, positions: int, earlier: Sequence[int] = ()) -> DraftSession:
        """Follow a text of at most ``positions`` tokens.

        earlier: tokens of the same tenant that the text may say again, ``NOBODY`` behind those of each text; of no use
        to a drafter that looks at its own text alone.
        """
        ...


def new_nodes(tree: Tree, shallow: torch.Tensor, position: int, known: int) -> range:
    """The nodes that ``DraftSession.extend`` is told of, after ``position`` observed tokens and ``known`` nodes.

    Raises ValueError as ``extend`` does.
    """
    if tree.trunk != position or len(tree.tokens) != known + len(shallow):
        raise ValueError(
            f"{len(shallow)} rows cannot go on from {known} nodes behind {position} tokens: "
            f"the tree has {len(tree.tokens)} nodes behind {tree.trunk}"
        )
    return range(known, len(tree))


def check_fits(position: int, count: int, positions: int) -> None:
    """Raises ValueError where ``count`` more tokens at ``position`` are more than a text has room for."""
    if position + count > positions:
        raise ValueError(f"{position} + {count} tokens do not fit in {positions}")


def check_rows(count: int, hidden: int, shallow: torch.Tensor, before: torch.Tensor | None) -> None:
    """Raises ValueError where these cannot be the rows of ``count`` tokens, see ``DraftSession.observe``."""
    known = 0 if before is None else before.shape[0]
    if shallow.shape != (count, hidden) or known > count or (before is not None and before.shape[1:] != (hidden,)):
        raise ValueError(f"{count} tokens cannot have rows {list(shallow.shape)} and {known} rows before them")
