"""What may follow in an answer that has to be of a form: a mask over the vocabulary for each node of a draft.

A mask is laid over the logits before any warper, for the target and for drafters alike. So a token is chosen as if the
others did not exist, and a draft is no likelier to be refused than without.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from split_model.device import put


class CannotTell(Exception):
    """Nobody can tell what may follow a text."""


class Masks(Protocol):
    """What one answer may say. ``text`` is its tokens so far, drafted ones last. Several threads may ask."""

    def barred(self, text: Sequence[int]) -> torch.Tensor | None:
        """Which tokens may not follow ``text``, bool ``[vocab]`` in the host's memory; None: all may, or it does not
        matter any more, since ``text`` is complete or never may be said.

        Raises ``CannotTell``, as ``forced`` and ``ended`` do.
        """
        ...

    def foresee(self, texts: Iterable[Sequence[int]]) -> None:
        """What is barred after each of ``texts`` is soon going to be asked. Nobody waits; for the event loop."""
        ...

    def forced(self, text: Sequence[int]) -> Sequence[int]:
        """Tokens that are sure to follow ``text``, or so likely that nobody has to be asked for a draft; mostly none.
        They are verified like any draft."""
        ...

    def ended(self, text: Sequence[int]) -> bool:
        """Whether ``text`` is complete: nothing may follow; so too of a text that may not be said."""
        ...


def masked(logits: torch.Tensor, masks: Masks | None, text: Sequence[int]) -> torch.Tensor:
    """logits float32 ``[vocab]`` after ``text``, -inf for what may not follow; ``logits`` itself where all may."""
    barred = None if masks is None else masks.barred(text)
    return logits if barred is None else logits.masked_fill(put(barred, logits.device), -math.inf)
