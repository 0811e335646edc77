"""The sizes of a model that a plan depends on, and the weights that its parts have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from split_model.end_parts import embedding_parts, end_parts, entry_parts
from split_model.offload.units import Half
from split_model.slices import DTYPE_BYTES
from split_model.spec import ModelSpec
from split_model.weight_parts import WeightPart, relative_part


@dataclass(frozen=True)
class ModelShape:
    """One stack of layers that are alike, its embedding and its head.

    A *group* is a KV head with the query heads that share it, a *column* one unit of the MLP's inner width.

    Attributes:
        kv_heads: how many groups there are; `heads` is a multiple of it.
        gated: whether the MLP has a gate, so three matrices instead of two.
        causal: whether a row sees only the rows before it, and its keys and values are kept for later ones.
        norm_first: whether a norm stands before its block; else it stands behind the residual.
        rotary: whether queries and keys are turned by their position.
        key_norm: whether there is a norm on each head's queries and keys.
        dtype_bytes: of one weight, and of one element of a row on the wire.
        embedding_elements: weights of what makes rows of tokens or patches.
        entry_elements: weights of what is done to these rows by who has the first layer: positions, a norm. A table of
            relative positions is counted here too, whole.
        end_elements: weights of the head or pooler, but for a matrix that is the embedding's.
        outputs: numbers that the head or pooler makes.
        cross_layers: the last so many layers attend twice: to themselves, then to what an encoder made of the prompt.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    gated: bool
    causal: bool
    norm_first: bool
    rotary: bool
    key_norm: bool
    dtype_bytes: int
    embedding_elements: int
    entry_elements: int
    end_elements: int
    outputs: int
    cross_layers: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False

    def __post_init__(self) -> None:
        least_one = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "dtype_bytes")
        for name in least_one:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} KV heads")
        if not 0 <= self.cross_layers <= self.layers:
            raise ValueError(f"{self.cross_layers} of {self.layers} layers cannot attend to an encoder")

    @classmethod
    def of(cls, spec: ModelSpec, dtype: str | None = None) -> ModelShape:
        """The shape of a model in memory as `dtype`, by name; None: as its checkpoint has it.

        An encoder and the decoder that attends to it are one stack, the encoder's layers first.
        """
        halves = [spec] if spec.reader is None else [spec.reader, spec]
        embedding = [part for half in halves for part in embedding_parts(half).all()]
        entry = [
            part for half in halves for part in (*entry_parts(half).all(), relative_part(half)) if part is not None
        ]
        end = [part for half in halves for part in end_parts(half)]
        return cls(
            layers=sum(half.num_layers for half in halves),
            hidden=spec.hidden_size,
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            intermediate=spec.intermediate_size,
            gated=spec.gated_mlp,
            causal=spec.attention == "causal",
            norm_first=spec.norm_place == "before",
            rotary=spec.positions == "rotary",
            key_norm=spec.qk_norm,
            dtype_bytes=DTYPE_BYTES[dtype or spec.dtype],
            embedding_elements=_elements(embedding),
            entry_elements=_elements(entry),
            end_elements=_elements(part for part in end if part not in embedding),
            outputs=spec.vocab_size if spec.attention != "bidirectional" else spec.labels or spec.pooled_size,
            cross_layers=0 if spec.reader is None else spec.num_layers,
            qkv_bias=spec.qkv_bias,
            output_bias=spec.output_bias,
            mlp_bias=spec.mlp_bias,
            norm_bias=spec.norm == "layer",
        )

    @property
    def heads_per_group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def kv_size(self) -> int:
        """Elements of one row's keys in one layer; its values are as many."""
        return self.kv_heads * self.head_dim

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's hidden state."""
        return self.hidden * self.dtype_bytes

    @property
    def keeping_layers(self) -> int:
        """Layers that keep keys and values for rows to come."""
        return self.layers if self.causal else self.cross_layers

    def attentions(self, layer: int) -> int:
        """How many attention blocks a layer has: 1, or 2 where it also attends to an encoder's rows."""
        return 2 if layer >= self.layers - self.cross_layers else 1

    def kept_elements(self, layer: int, positions: int) -> int:
        """Elements of the keys and values that a layer keeps of one session: of so many rows of its own, and where it
        attends to an encoder of as many of the encoder's."""
        keeps = self.causal or self.attentions(layer) > 1
        return 2 * self.kv_size * positions * self.attentions(layer) if keeps else 0

    def passing(self, layer: int, rows: int, wanted: int) -> int:
        """How many rows pass a layer of the prompt's first forward: of a prompt that an encoder reads, what its decoder
        writes at once is as many as are wanted."""
        return wanted if self.attentions(layer) > 1 else rows

    @property
    def group_elements(self) -> int:
        """Weights of one group in one attention block: queries, key, value and their columns of the output."""
        projections = 2 * self.heads_per_group + 2
        biases = self.heads_per_group + 2 if self.qkv_bias else 0
        return self.head_dim * (projections * self.hidden + biases)

    @property
    def column_elements(self) -> int:
        """Weights of one column in one MLP."""
        inner = 2 if self.gated else 1
        return (inner + 1) * self.hidden + (inner if self.mlp_bias else 0)

    def layer_elements(self, layer: int, groups: range, columns: range) -> int:
        """Weights of a layer's part: some groups and some columns, and the norms, which every part has.

        The biases of the two output projections belong to who has group 0 and column 0, as in `split_model`.
        """
        attention = len(groups) * self.group_elements + self.norm_elements
        if self.output_bias and 0 in groups:
            attention += self.hidden
        if self.key_norm:
            attention += 2 * self.head_dim
        mlp = len(columns) * self.column_elements + self.norm_elements
        if self.mlp_bias and 0 in columns:
            mlp += self.hidden
        return self.attentions(layer) * attention + mlp

    def matrices(self, half: Half, held: range | None, layer: int) -> tuple[int, ...]:
        """Weights of each matrix of half a layer, as one product reads it: of the attentions some groups, of the MLP
        some columns. No biases; () where nothing is held."""
        if not held:
            return ()
        if half == "mlp":
            return (2 if self.gated else 1) * len(held) * self.hidden, len(held) * self.hidden
        head = len(held) * self.head_dim * self.hidden
        own = (self.heads_per_group + 2) * head, self.heads_per_group * head
        if self.attentions(layer) == 1:
            return own
        # Queries of the second are of other rows than its keys and values.
        return *own, self.heads_per_group * head, 2 * head, self.heads_per_group * head

    @property
    def norm_elements(self) -> int:
        return self.hidden * (2 if self.norm_bias else 1)


def _elements(parts: Iterable[WeightPart]) -> int:
    return sum(part.num_elements for part in dict.fromkeys(parts))
