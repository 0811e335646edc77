"""What a drafter's attention is before training: where it stands for one layer of the model, that layer's own.

Where it stands for several it begins at random: with the first of them, fused drafters of the demo model, which stand
for ten layers, had learned less after 150,000 tokens (tau 2.52 instead of 2.88).
"""

from __future__ import annotations

import torch

from drafting.distill.network import Drafter
from drafting.distill.trainable import Attention
from split_model.checkpoint import Checkpoint
from split_model.weight_parts import layer_parts


@torch.no_grad()
def begin_as_layer(network: Drafter, checkpoint: Checkpoint, split: int, unit: float) -> bool:
    """Gives an attention the weights of the one layer behind the split; False where there are more, where the network
    is no attention, or where the layer's projections have biases or norms of their own, which a drafter has not.

    unit: what the rows are divided by in training.
    """
    parts = layer_parts(checkpoint.spec, split)
    own = parts.query_bias is not None or parts.query_norm is not None
    if split != checkpoint.spec.num_layers - 1 or own or not isinstance(network, Attention):
        return False
    for parameter, part in (
        (network.norm, parts.input_norm),
        (network.query, parts.query),
        (network.key, parts.key),
        (network.value, parts.value),
        (network.output, parts.output),
    ):
        parameter.copy_(checkpoint.read(part.name))
    network.output.div_(unit)  # Its products are added to a row.
    return True
