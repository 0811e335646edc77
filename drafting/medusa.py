"""Medusa's heads: each says, from the last deep row that is known, what comes one token later than the head before.

Head ``J`` is about the token at ``t + 2 + J``, from the deep row at ``t``: ``head(y)``, ``y = n + silu(block(n))``,
``n`` the final norm of that row. What it says does not depend on the tokens between: all nodes of one depth get
the same guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import silu

from drafting.drafter import Guess, check_fits, check_rows, new_nodes
from drafting.drafter_file import read_drafter
from split_model.matrix import Matrix
from split_model.spec import ModelSpec
from split_model.stack import Head
from split_model.tree import Tree

HEADS = 4
TREE_NODES = 8  # as many as HAT gives its U-Medusa


def medusa_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a drafter of kind ``medusa``."""
    hidden, vocab = spec.hidden_size, spec.vocab_size
    shapes: dict[str, tuple[int, ...]] = {}
    for each in range(HEADS):
        shapes[f"heads.{each}.block"] = (hidden, hidden)
        shapes[f"heads.{each}.bias"] = (hidden,)
        shapes[f"heads.{each}.head"] = (vocab, hidden)
    return shapes


@dataclass(frozen=True)
class MedusaHead:
    """The matrices of one head, the block with its bias."""

    block: Matrix
    head: Matrix

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """normed ``[rows, hidden_size]``, after the final norm -> float32 ``[rows, vocab]``."""
        return self.head(normed + silu(self.block(normed))).float()


class MedusaDrafter:
    """See ``drafting.drafter.Drafter``."""

    name = "medusa"
    tree_nodes = TREE_NODES

    def __init__(self, heads: Sequence[MedusaHead], head: Head, hidden_size: int, parameters: int) -> None:
        self.parameters = parameters
        self._heads = tuple(heads)
        self._head = head
        self._hidden_size = hidden_size

    @classmethod
    def load(
        cls, path: Path, spec: ModelSpec, digest: str, split: int, dtype: torch.dtype, head: Head
    ) -> MedusaDrafter:
        """Reads the file that was trained for this model and split; ``head``, for its norm, is the model's own; the
        heads are where it is.

        Raises BadDrafter.
        """
        file = read_drafter(path)
        file.check(cls.name, digest, split, medusa_shapes(spec))
        heads = [
            MedusaHead(
                file.matrix([f"heads.{each}.block"], dtype, head.device, bias=f"heads.{each}.bias"),
                file.matrix([f"heads.{each}.head"], dtype, head.device),
            )
            for each in range(HEADS)
        ]
        return cls(heads, head, spec.hidden_size, file.parameters)

    def apart(self) -> MedusaDrafter:
        """Itself: it learns nothing from texts."""
        return self

    def open(self, positions: int, earlier: Sequence[int] = ()) -> MedusaSession:
        """Follow a text of at most ``positions`` tokens."""
        return MedusaSession(self._heads, self._head, self._hidden_size, positions)


class MedusaSession:
    """See ``drafting.drafter.TreeDraftSession``. A head runs when a node of its depth asks, once for all of them."""

    def __init__(self, heads: Sequence[MedusaHead], head: Head, hidden_size: int, positions: int) -> None:
        self._heads = heads
        self._head = head
        self._hidden_size = hidden_size
        self._positions = positions
        self._position = 0
        self._deep: torch.Tensor | None = None  # [1, hidden], of the position before the last observed token's
        self._normed: torch.Tensor | None = None
        self._guesses: dict[int, Guess] = {}  # by head

    @property
    def position(self) -> int:
        return self._position

    @property
    def nbytes(self) -> int:
        held = [self._deep, self._normed, *(guess.logits for guess in self._guesses.values())]
        return sum(each.nbytes for each in held if each is not None)

    def observe(self, tokens: Sequence[int], shallow: torch.Tensor, before: torch.Tensor | None) -> None:
        """Raises ValueError for rows that are not those of the tokens, or more tokens than the text has room for."""
        count = len(tokens)
        check_rows(count, self._hidden_size, shallow, before)
        check_fits(self._position, count, self._positions)
        if not count:
            return
        self._forget()
        self._position += count
        # A copy: a view would hold on to all the rows that came with it.
        self._deep = before[-1:].clone() if before is not None and len(before) else None

    @torch.inference_mode()
    def guess(self) -> Guess | None:
        return self._said(0)

    @torch.inference_mode()
    def extend(self, tree: Tree, shallow: torch.Tensor, tokens: torch.Tensor | None = None) -> list[Guess | None]:
        """Nothing is kept of nodes, so any last ones may be asked about."""
        new = new_nodes(tree, shallow, self._position, len(tree) - len(shallow))
        return [self._said(len(tree.path(node))) for node in new]

    @torch.inference_mode()
    def levels(self) -> list[Guess]:
        """See ``TreeDraftSession.levels``."""
        return [guess for head in range(len(self._heads)) if (guess := self._said(head)) is not None]

    def truncate(self, position: int) -> None:
        """Nothing is said then until a deep row is observed. Raises ValueError."""
        if not 0 <= position <= self._position:
            raise ValueError(f"cannot truncate to position {position}: {self._position} tokens are observed")
        if position < self._position:
            self._position = position
            self._deep = None
            self._forget()

    def fork(self, position: int) -> MedusaSession:
        """Raises ValueError where so many tokens were not observed."""
        if not 0 <= position <= self._position:
            raise ValueError(f"cannot fork at position {position}: {self._position} tokens are observed")
        forked = MedusaSession(self._heads, self._head, self._hidden_size, self._positions)
        forked._position = position
        if position == self._position:
            forked._deep = self._deep
        return forked

    def close(self) -> None:
        self._deep = None
        self._forget()
        self._positions = self._position = 0

    def _forget(self) -> None:
        self._normed = None
        self._guesses = {}

    def _said(self, head: int) -> Guess | None:
        if self._deep is None or head >= len(self._heads):
            return None
        if head not in self._guesses:
            if self._normed is None:
                self._normed = self._head.norm(self._deep)
            self._guesses[head] = Guess(MedusaDrafter.name, self._heads[head].logits(self._normed)[0])
        return self._guesses[head]
