"""What a portal tells its gateway of its group, for people, and for devices that look for the group.

Hints, all of it: nobody proves anything by it, and no secret is in it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from wire.message import Count, Name, Seconds, Size

MAX_MEMBERS = 64


class ReportedMember(msgspec.Struct, frozen=True, array_like=True):
    """One member: what it does, which layers it computes, how many heads and which share of a prompt's rows (None: rows
    are not shared), the memory that takes, and why it does nothing, where it does not; which halves of layers it reads
    from its disk at each use, how much that is a step, and the share of the time for it in which nobody waited (None:
    not known); what a step has taken it on average, in ms of its own computing (0: not told). Texts are for people."""

    name: Name
    state: Name
    layers: Name = ""
    heads: Name = ""
    rows_share: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    memory_mb: Size = 0
    why: Name = ""
    streamed: Name = ""
    streamed_mb: Size = 0
    hidden: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    step_ms: Seconds = 0.0


class GroupReport(msgspec.Struct, frozen=True, array_like=True):
    """A group: its name, its mode, which plan holds (``epoch``), whether it computes now, and where devices join it,
    as HOST:PORT; empty: nowhere yet."""

    name: Name
    mode: Name
    epoch: Count
    formed: bool
    address: Name
    members: Annotated[list[ReportedMember], msgspec.Meta(max_length=MAX_MEMBERS)]
    why: Name = ""
