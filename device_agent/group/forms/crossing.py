"""Attention to what an encoder has read, of a layer of its decoder: between the layer's own attention and its MLP.

Every member keeps the keys and values of the heads that it computes such attention for, made once when a session
begins. What a piece gives is a partial sum, as behind the layer's own attention.
"""

from __future__ import annotations

import torch

from device_agent.group.holding.held import HeldLayer
from device_agent.group.rows.layout import overlap
from device_agent.group.rows.step_rows import StepRows
from split_model.cross import Memory, ReadSource


def crossed(held: HeldLayer, on: StepRows, piece: int, hidden: torch.Tensor, rows: range) -> torch.Tensor:
    """hidden ``[len(rows), hidden]``, rows of the step behind the layer's own attention, to what one of the member's
    pieces adds to them."""
    cross = held.blocks[piece].cross
    assert cross is not None
    context = cross_context(on, piece, cross.projection.query(cross.norm(hidden)), rows)
    return cross.output(context)


def cross_context(on: StepRows, piece: int, q: torch.Tensor, rows: range) -> torch.Tensor:
    """Of one piece: queries of some of the step's rows ``[len(rows), heads, head_dim]`` to their context
    ``[len(rows), heads * head_dim]``, each row's in what its session is about."""
    if not rows:
        return q.flatten(1)
    asked = [overlap(stretch.rows, rows) for stretch in on.stretches]
    return Memory([ReadSource((each,)) for each in on.sources[piece]], [len(each) for each in asked]).attend(0, q)
