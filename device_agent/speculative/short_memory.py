"""Who drafts where weights are read from a disk for each step, and what memory that takes.

Such a step takes as long as its reading, for one row or for thirty, so nothing else makes tokens come as much faster as
drafts do: there a device drafts where nobody says otherwise. What drafts runs far more often than the rest: a drafter,
and the layers that it drafts with, stay in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from device_agent.chain.within_memory import residence_within
from device_agent.speculative.drafters import KINDS, TRAINED
from drafting.drafter import NODE_SLOTS
from drafting.drafter_file import DrafterFile, read_drafter
from drafting.errors import BadDrafter
from service.modes import NO_DRAFT
from split_model.checkpoint import Checkpoint
from split_model.errors import ModelError
from split_model.hub import resolve
from split_model.offload.budget import GROWS, BudgetTooSmall, Residence
from split_model.slices import DTYPE_BYTES, Slice, held_bytes, slice_bytes, whole
from split_model.spec import ModelSpec

LOOKUP = ("lookup",)
"""What drafts where there is nothing better."""

WEIGHTLESS = (NO_DRAFT, *LOOKUP)
"""What has no weights and needs no layer."""

MOST = 0.5
"""Of a portal's memory for what drafts; the rest is for its part of the model."""


@dataclass(frozen=True)
class ShortMemory:
    """Of one device.

    Args:
        folder: where the drafters' files are; it need not exist.
        positions: of a session.
    """

    checkpoint: Checkpoint
    dtype: str
    folder: Path
    positions: int

    def alone(self, budget: int, rows: int, words: Sequence[str], split: int) -> Residence:
        """What stays of a whole model in memory beside the drafters of ``words``; layers before ``split`` do.

        Args:
            budget: bytes of all.
            rows: most of a forward.

        Raises:
            BudgetTooSmall: not even the least has room.
        """
        drafters = self.drafter_bytes(words)
        given = self.checkpoint.spec, self.dtype, budget - drafters
        try:
            return residence_within(*given, positions=self.positions, rows=rows, first_layer=split)
        except BudgetTooSmall as error:
            raise BudgetTooSmall(error.needed + drafters, budget) from None

    def drafted(self, budget: int, rows: int) -> tuple[tuple[str, ...], int, Residence]:
        """The same where nobody says what drafts: ``--draft``, ``--split`` and what stays. None drafts where all stays.

        Raises as ``alone``.
        """
        plain = self.alone(budget, rows, (NO_DRAFT,), 0)
        if not plain.streamed:
            return (NO_DRAFT,), 0, plain
        if self._trained is not None:
            with suppress(BudgetTooSmall):
                kind, split = self._trained.kind, self._trained.split
                return (), split, self.alone(budget, rows, (kind,), split)
        return LOOKUP, 0, plain

    def beside(self, budget: int) -> tuple[tuple[str, ...], int]:
        """``--draft`` and ``--split`` of a group's portal where nobody says them.

        budget: bytes that it may use; 0: nobody knows.
        """
        if self._trained is not None:
            split = self._trained.split
            if not budget or self.front_bytes(split) + self.drafter_bytes((self._trained.kind,)) <= MOST * budget:
                return (), split
        return LOOKUP, 0

    def layers(self, words: Sequence[str], split: int) -> int:
        """How many layers draft, of ``split``: none where all of ``words`` read the tokens alone. What is not run token
        by token as a draft is made is run once, with all of it, when the draft is verified."""
        return split if any(word in KINDS and word not in WEIGHTLESS for word in words) else 0

    def front_bytes(self, split: int) -> int:
        """Of the layers that a portal keeps for itself."""
        return slice_bytes(self.checkpoint.spec, Slice(0, split), self.dtype)

    def drafter_bytes(self, words: Sequence[str]) -> int:
        """Of the weights of drafters, and of one session's keys and values there; of the best there is where nothing is
        named. Nothing of what cannot be read, of which ``load_drafters`` says why."""
        size, found = DTYPE_BYTES[self.dtype], 0
        for word in dict.fromkeys(words or ("hybrid",)):
            if word in WEIGHTLESS:
                continue
            with suppress(BadDrafter, ModelError):
                if word not in KINDS:
                    small = Checkpoint.open(resolve(word)).spec
                    found += held_bytes(small, [whole(small)], self.dtype) + size * self._kept(small, small.num_layers)
                elif (file := self._trained if word == "hybrid" else self._file(word)) is not None:
                    found += size * (file.parameters + self._kept(self.checkpoint.spec, 1))
        return found

    def _kept(self, spec: ModelSpec, layers: int) -> int:
        """Elements of keys and values."""
        rows = min(self.positions, spec.max_positions) + NODE_SLOTS
        return GROWS * 2 * layers * spec.num_kv_heads * spec.head_dim * rows

    @cached_property
    def _trained(self) -> DrafterFile | None:
        """The best that was trained for this model."""
        for kind in TRAINED:
            with suppress(BadDrafter, ModelError):
                file = self._file(kind)
                if file.digest == self.checkpoint.digest() and file.split <= self.checkpoint.spec.num_layers:
                    return file
        return None

    def _file(self, kind: str) -> DrafterFile:
        return read_drafter(self.folder / f"{kind}.safetensors")
