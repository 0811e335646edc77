"""Calling a lent head home in the middle of a session: its keys and values are moved, or made anew. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from device_agent.planning.forms import Lent
from device_agent.planning.task import Task


@dataclass(frozen=True)
class CalledHome:
    """Seconds of both ways for all layers at once, with no other work.

    Attributes:
        moved_s: lenders send keys and values of all positions home.
        recomputed_s: home makes them of all positions' rows, for which all these rows pass all layers again.
    """

    moved_s: float
    recomputed_s: float

    @property
    def moves(self) -> bool:
        """Whether moving is faster."""
        return self.moved_s < self.recomputed_s


def called_home(task: Task, layers: int, layer: Lent, positions: int) -> CalledHome:
    """For so many such layers at one home, behind so many positions of a session. Nothing travels for a home that
    `copies`; what lenders send comes through home's one port."""
    shape, costs, home = task.shape, task.costs(), layer.home
    links = {(link.source, link.target): link for link in task.profile.links}
    moved = 0.0
    for member, groups in enumerate(layer.groups):
        if groups and member != home and not layer.copies:
            link = links[task.members[member], task.members[home]]
            size = layers * 2 * groups * shape.head_dim * positions * shape.dtype_bytes
            moved += size / link.bytes_s + link.rtt_s / 2
    seen = (positions + 1) / 2 if shape.causal else positions
    recomputed = 0.0 if layer.copies else layers * costs.layer(home, 0, positions, seen)
    return CalledHome(moved, recomputed)
