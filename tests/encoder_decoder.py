"""A model that reads one text and writes another, in one process: T5."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from split_model.checkpoint import Checkpoint
from split_model.cross import ReadSource
from split_model.encoder import Encoder
from split_model.encoder_rows import TextRows
from split_model.offload.loader import Loader
from split_model.pooling import Pooling
from split_model.reference import written
from split_model.sampling import SamplingParams
from split_model.slices import whole
from split_model.stack import Embedding, Head, Span, Stack


class EncoderDecoder:
    """An encoder, and a decoder whose rows attend to what was read. They share the embedding."""

    def __init__(self, encoder: Encoder, embedding: Embedding, stack: Stack, head: Head) -> None:
        self.spec = stack.spec
        self.encoder = encoder
        self.embedding = embedding
        self.stack = stack
        self.head = head

    @classmethod
    def load(
        cls,
        model: Checkpoint | Path | str,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        loader: Loader | None = None,
    ) -> EncoderDecoder:
        """`model`: a local folder, or one opened already. `loader`: see `Stack.load`. Raises ModelError as Checkpoint
        does."""
        checkpoint = model if isinstance(model, Checkpoint) else Checkpoint.open(model, "cross")
        reader = checkpoint.reader()
        embedding = Embedding.load(checkpoint, dtype, device)
        encoder = Encoder(
            TextRows(embedding, None),
            Stack.load(reader, whole(reader.spec), dtype, device, loader=loader),
            Pooling.load(reader, dtype, device),
        )
        stack = Stack.load(checkpoint, whole(checkpoint.spec), dtype, device, loader=loader)
        return cls(encoder, embedding, stack, Head.load(checkpoint, checkpoint.spec, dtype, embedding, device))

    @property
    def loaded_bytes(self) -> int:
        """Bytes of the weights in memory."""
        return self.encoder.loaded_bytes + self.stack.loaded_bytes + self.head.loaded_bytes

    def read(self, texts: Sequence[Sequence[int]]) -> list[ReadSource]:
        """What the decoder's rows attend to, of each text. Raises ValueError as `Encoder.texts` does."""
        return [self.stack.source(rows) for rows in self.encoder.texts(texts).rows]

    def logits(self, source: ReadSource, ids: Sequence[int]) -> torch.Tensor:
        """ids of the written text's positions 0 on -> logits of every position, float32 [rows, vocab]."""
        span = Span(self.stack.new_cache(len(ids)), len(ids))
        return self.head.forward(self.stack.forward(self.embedding.forward(ids), [span], sources=[source]))

    def generate(self, ids: Sequence[int], max_new_tokens: int, sampling: SamplingParams | None = None) -> list[int]:
        """What is written of a text that is read: new token ids, up to and including an end-of-sequence id.

        Greedy unless `sampling` says otherwise. Raises ValueError for an empty text, or a model that does not say with
        which token to start.
        """
        start = self.spec.bos_token_id
        if start is None:
            raise ValueError("the model's config does not say with which token its texts start")
        sources = self.read([ids])
        cache = self.stack.new_cache(1 + max_new_tokens)

        def run(rows: Sequence[int]) -> torch.Tensor:
            hidden = self.stack.forward(self.embedding.forward(rows), [Span(cache, len(rows))], sources=sources)
            return self.head.forward(hidden[-1:])[0]

        return written(run, [start], max_new_tokens, sampling, self.spec.eos_token_ids)
