"""How the steps of a plan pass through its stages: how many at a time, and each in which micro-batches. Pure.

While a member computes one micro-batch the next member computes the one before it. Portal and members cut a step by the
same rule, so nobody has to say how it is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from device_agent.group.messages.heads import BatchHead, ReadHead, StepHead
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.shares import handed_out, spans
from device_agent.planning.stages import Stage, prompt_parts, segments_of, stages_of


@dataclass(frozen=True)
class Pipeline:
    """Of one plan.

    Attributes:
        stages: none where some layer is not whole at one member; then steps are neither cut nor follow one another.
        micro_batches: into how many a step of several sessions is cut.
        streams: whether some member reads weights from its disk while it computes, from the beginning. Where that
            begins as sessions grow, steps stay as they are.
        apart: whether some member's keys and values may lie at another, which then answers beside the steps.
    """

    stages: tuple[Stage, ...] = ()
    micro_batches: int = 1
    streams: bool = False
    apart: bool = False

    @classmethod
    def of(cls, plan: GroupPlan, readers: int = 0) -> Pipeline:
        """That of a plan. Where the first ``readers`` layers only read, a step passes these or the others: one at a
        time does."""
        whole = not readers and all(isinstance(layer, Whole) for layer in plan.layers)
        return cls(stages_of(plan.layers) if whole else (), plan.micro_batches, plan.streams, any(plan.transfers))

    @property
    def members(self) -> int:
        """How many compute."""
        return len({stage.member for stage in self.stages})

    @property
    def interleaved(self) -> bool:
        """Whether steps come to some member more than once."""
        return bool(self.stages) and segments_of(self.stages) > 1

    @property
    def steps_at_once(self) -> int:
        """Steps that are under way at a time, one behind the other.

        One where a step has each member until its end, since it comes to it again, or is cut itself; or where the next
        would have to read again from the disk what this one has read.
        """
        alone = self.interleaved or self.streams or self.micro_batches > 1
        return 1 if alone or not self.stages else len(self.stages)

    def cut(self, head: StepHead) -> list[range]:
        """The micro-batches of a step, as its rows: of several sessions, whole sessions; of a prompt, where members
        come several times and would wait for one another, even parts; and whole texts are not cut."""
        if isinstance(head, BatchHead) and self.stages and self.micro_batches > 1:
            counts = handed_out(head.sessions, [1.0] * min(self.micro_batches, head.sessions))
            rows = [sum(part.rows for part in head.parts[each.start : each.stop]) for each in spans(counts)]
            return spans(rows)
        if isinstance(head, (BatchHead, ReadHead)) or not self.stages:
            return [range(head.rows)]
        return spans(handed_out(head.rows, [1.0] * prompt_parts(self.stages, head.rows)))


UNCUT: Final = Pipeline()
"""Of plans that share layers in other ways."""
