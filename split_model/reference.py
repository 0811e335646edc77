"""The whole model in one process: what every split of it must reproduce."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams, checked, picked
from split_model.slices import whole
from split_model.stack import Embedding, Head, Span, Stack


class Reference:
    """Embedding, all layers and head."""

    def __init__(self, embedding: Embedding, stack: Stack, head: Head) -> None:
        self.spec = stack.spec
        self.embedding = embedding
        self.stack = stack
        self.head = head

    @classmethod
    def load(
        cls,
        model: Checkpoint | Path | str,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> Reference:
        """`model`: a local folder, or one opened already. Raises ModelError as Checkpoint does."""
        checkpoint = model if isinstance(model, Checkpoint) else Checkpoint.open(model)
        embedding = Embedding.load(checkpoint, dtype, device)
        stack = Stack.load(checkpoint, whole(checkpoint.spec), dtype, device)
        return cls(embedding, stack, Head.load(checkpoint, checkpoint.spec, dtype, embedding, device))

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """ids of positions 0 on -> logits of every position, float32 [rows, vocab]."""
        hidden = self.embedding.forward(ids)
        return self.head.forward(self.stack.forward(hidden, [Span(self.stack.new_cache(len(ids)), len(ids))]))

    def generate(self, ids: Sequence[int], max_new_tokens: int, sampling: SamplingParams | None = None) -> list[int]:
        """New token ids, up to and including an end-of-sequence id. Greedy unless `sampling` says otherwise.

        Raises ValueError for an empty prompt.
        """
        if not ids:
            raise ValueError("the prompt is empty; it needs one token at least")
        cache = self.stack.new_cache(len(ids) + max_new_tokens)

        def run(rows: Sequence[int]) -> torch.Tensor:
            hidden = self.stack.forward(self.embedding.forward(rows), [Span(cache, len(rows))])
            return self.head.forward(hidden[-1:])[0]

        return written(run, ids, max_new_tokens, sampling, self.spec.eos_token_ids)


def written(
    run: Callable[[Sequence[int]], torch.Tensor],
    ids: Sequence[int],
    max_new_tokens: int,
    sampling: SamplingParams | None,
    ends: Collection[int],
) -> list[int]:
    """The tokens behind `ids`, up to and including one of `ends`.

    run: new tokens to the logits [vocab] of what follows the last of them.
    """
    sampling = sampling or SamplingParams()
    # One seed for the whole text: drawn now if none is given, so that two calls differ.
    seed = sampling.seed if sampling.seed is not None else secrets.randbits(63)
    new: list[int] = []
    rows = list(ids)
    while len(new) < max_new_tokens:
        [token] = checked(picked(run(rows), sampling, ids, new, seed).tolist())
        new.append(token)
        if token in ends:
            break
        rows = [token]
    return new
