"""The attention of a layer of which some keys and values lie at another member: it is asked, and meanwhile what is here
is attended to."""

from __future__ import annotations

import torch

from device_agent.group.holding.held import HeldLayer
from device_agent.group.relief.row_link import RowLink
from device_agent.group.rows.microbatches import MicroBatch
from split_model.partial_attention import attend_part, merged, visible


def run_attention_apart(
    held: HeldLayer, number: int, batch: MicroBatch, hidden: torch.Tensor, link: RowLink
) -> torch.Tensor:
    """As ``run_attention``, for layer ``number`` of the group. Raises ``PeerLost``, ``EpochOver``."""
    block, on, contexts = held.block, batch.on, []
    with block.using("attention"):
        q, k, v = block.qkv(block.input_norm(hidden), *on.turned(range(on.rows)))
        question = link.ask(number, block.window, on.stretches, batch.sessions, q)
        stored = on.store([session.of(number)[0] for session in batch.sessions], k, v)
        here = []
        for stretch, session, (keys, values) in zip(on.stretches, batch.sessions, stored, strict=True):
            count, first = len(stretch.rows), session.away[number]
            mask = visible(stretch.start, count, range(first, stretch.start + count), block.window)
            here.append(attend_part(q[stretch.rows.start : stretch.rows.stop], keys, values, mask))
        there = question.wait()
        for at, part in enumerate(here):
            contexts.append(merged([there[at], part] if at in there else [part]).context)
        context = torch.cat(contexts).to(q.dtype)
        return block.after_attention(hidden, block.attention_output(context))
