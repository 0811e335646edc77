"""What a layer takes by how many of its heads each member computes, from a profile. Pure."""

from __future__ import annotations

from device_agent.planning.head_allocation import HeadTimes
from device_agent.planning.task import Task


def head_times(task: Task, home: int, rows: int | None = None, cached: int = 0) -> HeadTimes:
    """Of one layer whose rows and MLP are at the member `home`, for `rows` rows behind `cached`; None: the prompt's.

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
        travels = 0.0
        if member != home:
            there, back = links[task.members[home], name], links[name, task.members[home]]
            left_s += row_bytes / there.bytes_s
            travels = left_s + there.rtt_s / 2 + row_bytes / back.bytes_s + back.rtt_s / 2
        computes = [costs.attention(member, rows, seen, groups) for groups in range(1, shape.kv_heads + 1)]
        found.append((0.0, *(travels + seconds for seconds in computes)))
    return HeadTimes(tuple(found), costs.mlp(home, rows) + 2 * costs.of(home, "norm", rows))
