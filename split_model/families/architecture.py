"""What a model computes, as data: sizes, kinds and places. One family's module fills it in; all others only read it.

Every choice is asked for in one place by what computes it (the kind of norm in `split_model.norm`, its place and the
MLP's form in `split_model.blocks`, positions in `split_model.stack`), and in one by `split_model.weight_parts` or
`split_model.end_parts`, which tensors it needs. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from split_model.rope_spec import RopeSpec


@dataclass(frozen=True)
class Patches:
    """How an image becomes rows: it is cut into patches, each a row; one row that was learned comes before them."""

    image: tuple[int, int]  # height and width in pixels
    patch: tuple[int, int]
    channels: int

    @property
    def count(self) -> int:
        """Patches of an image."""
        return (self.image[0] // self.patch[0]) * (self.image[1] // self.patch[1])


@dataclass(frozen=True)
class Relative:
    """Relative positions: how many distances are told apart, and from which one on all are the same."""

    buckets: int
    farthest: int


@dataclass(frozen=True)
class Architecture:
    """A transformer. Fields with a default are the llama family's there.

    A field that is added needs a default: what has it stays out of a checkpoint's digest, which therefore lives on.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    activation: str  # a value of `fields.ACTIVATIONS`
    rope: RopeSpec  # of kind "none" unless `positions` is "rotary"
    tied_embeddings: bool  # the head's matrix is the embedding's
    qkv_bias: bool
    output_bias: bool  # bias of the attention's output projection
    mlp_bias: bool
    qk_norm: bool  # a norm over each head of q and k, before the rotation
    windows: tuple[int | None, ...]  # per layer: how many positions a row sees, itself included; None: all
    max_positions: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    dtype: str  # of the checkpoint, by name: "float32", "bfloat16" or "float16"
    attention: str = "causal"  # "causal": a row sees those before it; "bidirectional": all; "cross": `encoder`'s too
    positions: str = "rotary"  # "rotary"; "learned": a table's rows are added before the first layer; "relative"
    position_offset: int = 0  # learned: rows of the table before that of position 0
    norm: str = "rms"  # "rms"; "layer": about the mean, with a bias
    norm_place: str = "before"  # "before" attention and MLP; "after": of the sum with what they were given
    final_norm: bool = True  # a norm before the head
    gated_mlp: bool = True  # down(activation(gate(x)) * up(x)), else down(activation(up(x)))
    embedding_size: int | None = None  # of embedding and head, with a matrix to and from the rows; None: hidden_size
    embedding_norm: bool = False  # a norm behind the positions, before the first layer
    token_types: int = 0  # of texts whose parts are told apart by a row that is added
    patches: Patches | None = None  # of images; texts have a vocabulary
    pooled_size: int = 0  # of what is made of a sequence's first row: activation(matrix x + bias); 0: nothing is
    pooled_activation: str = "tanh"
    labels: int = 0  # of a classifier behind that, or behind the first row itself; 0: there is none
    relative: Relative | None = None  # relative: a number for each distance and head is added to the scores
    scaled_scores: bool = True  # scores are divided by sqrt(head_dim)
    head_scale: float = 1.0  # rows are multiplied by it before the head's matrix
    encoder: Architecture | None = None  # cross: what reads the text that this model's rows attend to

    @property
    def heads_per_group(self) -> int:
        """Query heads that share one KV head (a *KV group*)."""
        return self.num_heads // self.num_kv_heads

    @property
    def position_limit(self) -> int | None:
        """How many positions can be computed at all; None where positions have no table."""
        return self.max_positions if self.positions == "learned" else None
