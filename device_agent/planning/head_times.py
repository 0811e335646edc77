"""What a layer takes by how many of its heads each member computes, from a profile. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from device_agent.planning.forms import ByRows, Layer, Lent, Whole
from device_agent.planning.head_allocation import HeadTimes
from device_agent.planning.task import Task


def planned_times(task: Task | None, layer: Layer, groups: int, members: int) -> HeadTimes:
    """Of heads alone, in a layer of a plan for the task's members, each with as many groups at most as are planned for
    it. None: nothing was measured, so what is planned for each is taken to be done at once.

    Of lent attention home's projections count with the heads that it lends, as if it made them for each lender apart.
    """
    if isinstance(layer, ByRows):
        raise ValueError("where rows are shared all heads are computed by all")
    room = tuple(groups * (at == layer.member) for at in range(members)) if isinstance(layer, Whole) else layer.groups
    if task is None:
        return HeadTimes(tuple(tuple(count / (most or 1) for count in range(most + 1)) for most in room), 0.0)
    home = layer.member if isinstance(layer, Whole) else layer.home if isinstance(layer, Lent) else None
    return replace(head_times(task, home, room=room), rest_s=0.0)


def head_times(
    task: Task, home: int | None, rows: int | None = None, cached: int = 0, room: Sequence[int] | None = None
) -> HeadTimes:
    """Of one layer whose rows and MLP are at the member `home`, for `rows` rows behind `cached`; None: the prompt's.

    home: None where all members have all rows and a share of the MLP; then nothing travels for a head, and what the
    MLP takes is not said.
    room: how many heads each member has room for; None: all.

    A head that is left out is so before its projections: of a layer at the paper's ratio these are most of what a head
    takes, its attention 4 %. So who computes a head has its projections too, gets the rows and returns a partial sum
    (Eq. 7 with what it leaves out). Rows leave home one member after the other, in their order, to all others.
    """
    shape, costs = task.shape, task.costs()
    rows = task.work.rows if rows is None else rows
    seen = cached + ((rows + 1) / 2 if shape.causal else rows)
    links = {(link.source, link.target): link for link in task.profile.links}
    row_bytes = rows * shape.row_bytes
    found, left_s = [], 0.0
    for member, name in enumerate(task.members):
        most, travels = shape.kv_heads if room is None else room[member], 0.0
        if home is not None and member != home and most:
            there, back = links[task.members[home], name], links[name, task.members[home]]
            left_s += row_bytes / there.bytes_s
            travels = left_s + there.rtt_s / 2 + row_bytes / back.bytes_s + back.rtt_s / 2
        computes = [costs.attention(member, rows, seen, groups) for groups in range(1, most + 1)]
        found.append((0.0, *(travels + seconds for seconds in accumulate(computes, max))))
    rest_s = 0.0 if home is None else costs.mlp(home, rows) + 2 * costs.of(home, "norm", rows)
    return HeadTimes(tuple(found), rest_s)
