"""Which tensors of a checkpoint the two ends of a model need: what makes rows, and what is made of the last ones.

Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from split_model.spec import ModelSpec
from split_model.weight_parts import Maker, Parts, WeightPart


@dataclass(frozen=True)
class EmbeddingParts(Parts):
    """What makes rows of token ids, or of an image's patches."""

    tokens: WeightPart | None  # [vocab, hidden], or narrower
    project: WeightPart | None  # [hidden, narrower]
    token_types: WeightPart | None  # [types, hidden]
    patches: WeightPart | None  # [hidden, numbers of a patch]
    patches_bias: WeightPart | None  # [hidden]
    first_row: WeightPart | None  # [1, hidden]


@dataclass(frozen=True)
class EntryParts(Parts):
    """What is done to embedded rows before the first layer."""

    positions: WeightPart | None  # [positions, hidden]
    norm: WeightPart | None  # [hidden]
    norm_bias: WeightPart | None


@dataclass(frozen=True)
class HeadParts(Parts):
    """The final norm, what makes rows as narrow as the embedding, and the matrix to the vocabulary."""

    norm: WeightPart | None  # [hidden]
    norm_bias: WeightPart | None
    project: WeightPart | None  # [embedding_size, hidden]
    matrix: WeightPart  # [vocab, embedding_size]: the embedding's where they are tied


@dataclass(frozen=True)
class PoolParts(Parts):
    """The final norm, and what is made of a sequence's first row."""

    norm: WeightPart | None  # [hidden]
    norm_bias: WeightPart | None
    pooler: WeightPart | None  # [pooled_size, hidden]
    pooler_bias: WeightPart | None
    classifier: WeightPart | None  # [labels, pooled_size or hidden]
    classifier_bias: WeightPart | None


def embedding_parts(spec: ModelSpec) -> EmbeddingParts:
    """What whoever has the text or the image needs."""
    hidden, names, cut = spec.hidden_size, spec.names, spec.patches
    narrow = spec.embedding_size or hidden
    tokens = project = token_types = patches = patches_bias = first_row = None
    if cut is None:
        tokens = WeightPart(names.embedding, (spec.vocab_size, narrow))
    else:
        patches = WeightPart(f"{names.patches}.weight", (hidden, cut.channels, *cut.patch))
        patches_bias = WeightPart(f"{names.patches}.bias", (hidden,))
        first_row = WeightPart(names.first_row, (1, 1, hidden))
    if spec.embedding_size is not None:
        project = WeightPart(f"{names.project_in}.weight", (hidden, narrow))
    if spec.token_types:
        token_types = WeightPart(names.token_types, (spec.token_types, hidden))
    return EmbeddingParts(tokens, project, token_types, patches, patches_bias, first_row)


def entry_parts(spec: ModelSpec) -> EntryParts:
    """What who holds the first layer needs for the rows that come to it."""
    positions = None
    if spec.positions == "learned":
        offset, rows = spec.position_offset, spec.max_positions
        held = range(offset, offset + rows) if offset else None
        shape = (offset + rows, spec.hidden_size)
        positions = WeightPart(spec.names.positions, shape if spec.patches is None else (1, *shape), rows=held)
    make = Maker(spec, "")
    return EntryParts(positions, *make.norm(spec.names.embedding_norm, spec.hidden_size, spec.embedding_norm))


def head_parts(spec: ModelSpec) -> HeadParts:
    """What makes logits of the last layer's rows."""
    narrow, names = spec.embedding_size or spec.hidden_size, spec.names
    norm, norm_bias = Maker(spec, "").norm(names.final_norm, spec.hidden_size, spec.final_norm)
    project = None
    if spec.embedding_size is not None:
        project = WeightPart(f"{names.project_out}.weight", (narrow, spec.hidden_size))
    matrix = names.embedding if spec.tied_embeddings else names.head
    return HeadParts(norm, norm_bias, project, WeightPart(matrix, (spec.vocab_size, narrow)))


def pool_parts(spec: ModelSpec) -> PoolParts:
    """What makes one row, or logits, of a whole sequence's rows."""
    make, hidden, pooled = Maker(spec, ""), spec.hidden_size, spec.pooled_size

    def matrix(module: str, size: int, inputs: int) -> tuple[WeightPart | None, WeightPart | None]:
        return (make.outputs(module, size, inputs, None), make.bias(module, size, None, True)) if size else (None, None)

    return PoolParts(
        *make.norm(spec.names.final_norm, hidden, spec.final_norm),
        *matrix(spec.names.pooler, pooled, hidden),
        *matrix(spec.names.classifier, spec.labels, pooled or hidden),
    )


def end_parts(spec: ModelSpec) -> list[WeightPart]:
    """What follows the last layer."""
    return (pool_parts(spec) if spec.attention == "bidirectional" else head_parts(spec)).all()
