"""Keys and values where one plan of a group follows another: who gives which to whom, so that sessions need no replay,
and whether that is faster than one. Lent heads are called home so, and lent anew. Pure.

Where an earlier plan's member has left the group its keys and values are gone, so one plan's members are among the
other's: what those who leave have is given before, what those who come get behind the new plan's beginning.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from device_agent.planning.forms import Layer, Lent, Sharded, Whole
from device_agent.planning.lan import Lan
from device_agent.planning.plan import GroupPlan
from device_agent.planning.shape import ModelShape
from device_agent.planning.shares import spans
from device_agent.planning.task import Task
from device_agent.planning.timeline import ForwardPass

LONGEST_S = 60.0
"""What would take longer to hand over is made anew: a hand-over that hangs is given up, and nothing of it is of use."""


@dataclass(frozen=True)
class Gift:
    """Keys and values of some KV groups of a layer, of whichever session.

    Attributes:
        layer: by its number in the plans.
        source, target: members, by name.
    """

    layer: int
    source: str
    target: str
    groups: range


@dataclass(frozen=True)
class Handover:
    """Seconds of both ways for all sessions, with no other work.

    Attributes:
        moved_s: who has keys and values sends them to who is to have them.
        recomputed_s: they are made anew of all positions' rows, which pass all layers again.
    """

    moved_s: float
    recomputed_s: float

    @property
    def pays(self) -> bool:
        """Whether moving is faster."""
        return self.moved_s < min(self.recomputed_s, LONGEST_S)


def can_hand_over(before: GroupPlan, after: GroupPlan) -> bool:
    """Whether all keys and values are at somebody who can give them: not where they are counted, and may lie elsewhere,
    nor where somebody has left and somebody else has come."""
    names = set(before.members), set(after.members)
    nested = names[0] <= names[1] or names[1] <= names[0]
    return nested and len(before.layers) == len(after.layers) and not any(map(_is_counted, (before, after)))


def kept_at(layer: Layer, member: int, groups: int) -> range:
    """Of which of a layer's KV groups a member has the keys and values of all positions, whatever steps came before.

    Others may have some positions too, and get the rest when they need them.
    """
    keeping: Whole | Sharded
    if isinstance(layer, Lent):
        keeping = Whole(layer.home) if layer.copies else Sharded(layer.groups, layer.columns)
    else:
        keeping = layer if isinstance(layer, (Whole, Sharded)) else layer.step
    if isinstance(keeping, Whole):
        return range(groups if keeping.member == member else 0)
    return spans(keeping.groups)[member]


def gifts(before: GroupPlan, after: GroupPlan, groups: int) -> list[Gift]:
    """What is given, layer by layer; `groups`: KV groups of each."""
    known: dict[tuple[Layer, Layer], list[tuple[str, str, range]]] = {}
    found = []
    for number, pair in enumerate(zip(before.layers, after.layers, strict=True)):
        if pair not in known:
            known[pair] = list(_given(before, after, pair, groups))
        found += [Gift(number, *each) for each in known[pair]]
    return found


def handover(task: Task, before: GroupPlan, after: GroupPlan, lengths: Sequence[int]) -> Handover:
    """Of sessions with so many positions each. The task's profile is of all members of both plans."""
    shape = task.shape
    given, counted = gifts(before, after, shape.kv_heads), Counter(length for length in lengths if length)
    recomputed = sum(count * task.forward(after, ForwardPass(length)).seconds for length, count in counted.items())
    return Handover(_moved_s(task, given, shape, sum(lengths)), recomputed)


def _moved_s(task: Task, given: Iterable[Gift], shape: ModelShape, positions: int) -> float:
    """Each member sends through one port and receives through one."""
    names = task.members
    lan, took, delay_s = Lan(task.profile, names, task.portal), defaultdict[tuple[str, bool], float](float), 0.0
    for gift in given:
        source, target = names.index(gift.source), names.index(gift.target)
        size = 2 * len(gift.groups) * shape.head_dim * positions * shape.dtype_bytes
        for port in ((gift.source, True), (gift.target, False)):
            took[port] += size / lan.bytes_s[source][target]
        delay_s = max(delay_s, lan.delay_s[source][target])
    return max(took.values(), default=0.0) + delay_s


def _given(
    before: GroupPlan, after: GroupPlan, pair: tuple[Layer, Layer], groups: int
) -> Iterable[tuple[str, str, range]]:
    """Of one layer; nobody gives himself anything."""
    first, second = pair
    for to, target in enumerate(after.members):
        wanted = kept_at(second, to, groups)
        for at, source in enumerate(before.members):
            had = kept_at(first, at, groups)
            both = range(max(wanted.start, had.start), min(wanted.stop, had.stop))
            if both and source != target:
                yield source, target, both


def _is_counted(plan: GroupPlan) -> bool:
    return plan.streams or bool(plan.cache_bytes)
