"""The rows of a step through all layers, each as its form says: from the portal, and what it wants back to it. Blocks.

What a pipeline does with them is apart (``pipelined.py``): it begins micro-batches one behind the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from device_agent.group.forms.by_layer import run_alone
from device_agent.group.forms.by_rows import catch_up, run_by_rows
from device_agent.group.forms.by_tensor import run_by_tensor
from device_agent.group.forms.coming import ComingRows
from device_agent.group.forms.hybrid import run_hybrid
from device_agent.group.forms.lent import catch_up_lenders, run_lent
from device_agent.group.holding.held import HeldLayer, SessionCaches, caches_of, sources_of
from device_agent.group.messages.heads import StepHead
from device_agent.group.rows.layout import At, Layout, entry_of, goes_on, layout_of, senders
from device_agent.group.rows.sending import PORTAL, Tag, move, nearest, take_entry
from device_agent.group.rows.step_rows import StepRows
from device_agent.planning.plan import ByRows, Hybrid, Lent, Sharded, as_run
from peers.collectives import ONE_SHOT_BYTES


def run_layers(
    layers: Sequence[HeldLayer],
    sessions: Sequence[SessionCaches],
    on: StepRows,
    head: StepHead,
    like: torch.Tensor,
    given: torch.Tensor | None,
) -> torch.Tensor | None:
    """A step through all of its layers.

    Args:
        sessions: whose rows they are; none of whole texts of which nothing is kept.
        like: a tensor ``[…, hidden]`` of the rows' dtype, where they are computed.
        given: the rows ``[rows, hidden]``, where this is the portal's own part.

    Returns the wanted outputs that this member has, in the portal; None elsewhere, where they are sent. Raises
    ``PeerLost``, ``EpochOver``.
    """
    runs = [as_run(each.layer, head.rows, head.position, head.sessions) for each in layers]
    layout = entry_for(layout_of(runs[0], on.rows), on, like)
    hidden = take_entry(layout, on, PORTAL, like, given)
    coming: ComingRows | None = None
    for number, (held, run) in enumerate(zip(layers, runs, strict=True)):
        hidden, layout = move(hidden, layout, to := layout_of(run, on.rows), on), to
        if number == len(runs) - 1:
            on.wanted = range(on.rows - head.want, on.rows)
        caches = caches_of(sessions, number, len(held.pieces))
        on.sources = sources_of(sessions, number, len(held.blocks))
        if isinstance(run, Sharded):
            hidden = run_by_tensor(held, caches, on, hidden)
        elif isinstance(run, Hybrid):
            hidden = run_hybrid(held, caches, on, hidden)
        elif isinstance(run, ByRows):
            for session in sessions:  # One, or none.
                catch_up(held, caches, on, session.common[number])
            ahead = layers[number + 1] if goes_on(runs, number, on.rows) else None
            hidden, coming = run_by_rows(held, caches, on, hidden, coming, ahead)
            for session in sessions if not run.prefix else ():
                session.common[number] = on.start + on.rows
        elif isinstance(held.layer, Lent):
            if lends := run == held.layer:
                catch_up_lenders(held, caches, on, [session.common for session in sessions], number)
            hidden = run_lent(held, caches, on, hidden, lends)
        elif layout == At(on.place):
            hidden = run_alone(held, caches, on, hidden)
    on.advance()
    return _give(layout, on, head.want, hidden, given is not None)


def entry_for(first: Layout, on: StepRows, like: torch.Tensor) -> Layout:
    """How the rows come from the portal."""
    little = on.rows * like.shape[1] * like.element_size() <= ONE_SHOT_BYTES
    return entry_of(first, on.rows, len(on.ranks), little)


def _give(layout: Layout, on: StepRows, want: int, hidden: torch.Tensor, here: bool) -> torch.Tensor | None:
    """The outputs that the portal wants, and this member has, are the last of its rows."""
    for place, found in senders(layout, on.rows, want, nearest(on.ranks)):
        if place != on.place:
            continue
        part = hidden[len(hidden) - len(found) :]
        if here:
            return part
        on.collectives.send(part, PORTAL, Tag.RESULT)
    return None
