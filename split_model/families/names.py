"""What the tensors of a family are called, and how they lie in the files: data that `weight_parts` reads. No torch."""

from __future__ import annotations

from dataclasses import dataclass

Renaming = tuple[tuple[str, str], ...]
"""Pieces of a tensor's name and what other files have in their place, all of them at once."""


@dataclass(frozen=True)
class LayerNames:
    """The modules of a layer, each with a tensor `weight` and perhaps `bias`.

    Where query, key and value have one name they are thirds of one tensor, in this order.
    """

    input_norm: str
    query: str
    key: str
    value: str
    output: str
    mlp_norm: str
    up: str
    down: str
    gate: str = ""
    query_norm: str = ""
    key_norm: str = ""
    cross_norm: str = ""
    cross_query: str = ""
    cross_key: str = ""
    cross_value: str = ""
    cross_output: str = ""


@dataclass(frozen=True)
class Names:
    """The tensors of a model.

    Attributes:
        prefix: what files of the bare transformer, without a head, leave out of every name.
        layers: what comes before a layer's modules, with `{}` for its number.
        turned: the layers' matrices are stored [in, out] and not [out, in].
        renamings: of files that were written by other versions of transformers.
    """

    prefix: str
    layers: str
    layer: LayerNames
    embedding: str = ""
    final_norm: str = ""
    head: str = ""
    positions: str = ""
    relative: str = ""
    project_in: str = ""
    project_out: str = ""
    embedding_norm: str = ""
    token_types: str = ""
    patches: str = ""
    first_row: str = ""
    pooler: str = ""
    classifier: str = ""
    turned: bool = False
    renamings: tuple[Renaming, ...] = ()
