"""A layer by tensor parallelism: each member computes its heads and its columns of all rows; two sums make them whole.

Where the layer also attends to what an encoder has read, there are three. Steps of few rows are computed so also where
many rows are shared in another way.
"""

from __future__ import annotations

import torch

from device_agent.group.forms.crossing import crossed
from device_agent.group.holding.held import HeldLayer, PieceCaches
from device_agent.group.rows.step_rows import StepRows


def run_by_tensor(held: HeldLayer, caches: PieceCaches, on: StepRows, hidden: torch.Tensor) -> torch.Tensor:
    """hidden ``[rows, hidden]``, the same in every member, to the layer's output, the same in every member.

    The keys and values of the member's own heads are stored, where any are kept. Raises ``PeerLost``, ``EpochOver``.
    """
    block = held.block
    with block.using("attention"):
        q, k, v = block.qkv(block.input_norm(hidden), *on.turned(range(on.rows)))
        partial = block.attention_output(on.attend(block, caches[held.own], q, k, v, held.bias))
    on.collectives.all_reduce(partial, label=held.label).wait()
    hidden = block.after_attention(hidden, partial)
    if block.cross is not None:
        partial = crossed(held, on, held.own, hidden, range(on.rows))
        on.collectives.all_reduce(partial, label=held.label).wait()
        hidden = hidden.add_(partial)
    with block.using("mlp"):
        partial = block.mlp(block.mlp_norm(hidden))
    on.collectives.all_reduce(partial, label=held.label).wait()
    return block.after_mlp(hidden, partial)
