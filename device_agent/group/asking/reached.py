"""Where each session is at the members, by all that they were told in one life of the group; what the next goes on
with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from device_agent.group.messages.heads import (
    BatchHead,
    CloseHead,
    ForkHead,
    GroupHead,
    KeepHead,
    OpenHead,
    ResumeHead,
    RowsHead,
    SourceHead,
    TruncateHead,
)
from device_agent.group.messages.joined_plan import JoinedPlan


@dataclass(frozen=True)
class Resumes:
    """Sessions of the life before.

    Attributes:
        sessions: how many positions members have of each.
        before: its plan, where keys and values still lie by that.
    """

    sessions: Mapping[int, int]
    before: JoinedPlan | None = None


NOTHING_HANDED: Final = Resumes({})


class Reached:
    """Attributes:
    sessions: how many positions each session has, of those that another life may go on with: none that leave heads
        out, and none about another text.
    """

    def __init__(self) -> None:
        self.sessions: dict[int, int] = {}

    def told(self, head: GroupHead) -> None:
        """Members were told this, and do it before anything that they are told later."""
        known = self.sessions
        if isinstance(head, BatchHead):
            for part in head.parts:
                self.told(part)
        elif isinstance(head, OpenHead):
            known[head.session] = 0
        elif isinstance(head, ResumeHead):
            known[head.session] = head.position
        elif isinstance(head, (KeepHead, SourceHead, CloseHead)):
            known.pop(head.session, None)
        elif isinstance(head, ForkHead):
            if head.source in known:
                known[head.session] = head.position
        elif isinstance(head, RowsHead) and head.session in known:
            known[head.session] = head.position + head.rows
        elif isinstance(head, TruncateHead) and head.session in known:
            known[head.session] = head.position
