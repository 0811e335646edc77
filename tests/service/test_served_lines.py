"""What a newcomer reads of a group."""

from __future__ import annotations

from service.served_lines import group_lines

IDLE = {"layers": "", "heads": "", "rows_share": None, "memory_mb": 0, "why": "", "streamed": ""}
MEMBERS = [
    {**IDLE, "name": "device", "state": "working", "layers": "0-11", "heads": "4", "rows_share": 0.5, "memory_mb": 17},
    {**IDLE, "name": "device-2", "state": "working", "layers": "3", "memory_mb": 4},
    {**IDLE, "name": "x", "state": "spare", "why": "the group is as fast without it"},
    {**IDLE, "name": "y", "state": "lost"},
]


def test_a_line_for_each_member() -> None:
    """What it holds, or why it holds nothing; then what there is to say of the whole."""
    group = {"name": "home", "members": MEMBERS, "why": "device alone would be faster"}
    assert group_lines([{"name": "a"}, {"name": "device", "group": group}]) == [
        "  device    layers 0-11, 4 heads, 50% of a prompt's rows, 17 MB",
        "  device-2  layers 3, 4 MB",
        "  x         spare: the group is as fast without it",
        "  y         lost",
        "  device alone would be faster",
    ]


def test_nothing_where_there_is_no_group() -> None:
    """And where no agent is connected, or who answers is no gateway of this kind."""
    assert group_lines([]) == group_lines([{"name": "a"}]) == group_lines([{"group": {"members": 3}}]) == []
