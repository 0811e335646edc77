"""Whose oldest keys and values may lie at whom, and how many find room there (LIME, IV-D). Pure.

Who would stream more first has the member that would do so last as its target, and no other has that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from device_agent.planning.interleaved import play_steps
from device_agent.planning.lan import Lan
from device_agent.planning.moves import LEAST_ROWS, Transfer
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.task import Task
from device_agent.planning.thresholds import Thresholds, grown, thresholds_of

COPY_BYTES: Final = 2**18
"""Of one copy: questions wait behind it on the link, and on its way it takes memory at both ends."""

LEVELS: Final = 8
"""Of relief, for which it is played what is covered."""


@dataclass(frozen=True)
class Room:
    """Both members' memory, in tokens of all sessions.

    Attributes:
        own, other: their thresholds.
        own_layers, other_layers: how many layers each has; a token takes one row more than these, see ``token_bytes``.
    """

    own: Thresholds
    other: Thresholds
    own_layers: int
    other_layers: int

    @classmethod
    def of(cls, plan: GroupPlan, all_thresholds: Sequence[Thresholds], owner: int, target: int) -> Room:
        """Of two members of a plan."""
        layers = [sum(layer == Whole(member) for layer in plan.layers) for member in (owner, target)]
        return cls(all_thresholds[owner], all_thresholds[target], *layers)

    @property
    def copied(self) -> int:
        """Rows of one layer each that a copy has at most, which takes memory on its way."""
        return LEAST_ROWS * (self.own_layers + 1)

    def needed(self, tokens: int, saved: int, moves: bool) -> int:
        """For how many tokens the member needs memory where so many rows of one layer each are away; ``moves``: whether
        there may be a copy, too."""
        return tokens - saved // (self.own_layers + 1) + (LEAST_ROWS if moves else 0)

    def until(self, tokens: int) -> int:
        """More for which it needs memory until it streams more; 0 where it does."""
        return max(self.own.steps[0].tokens - tokens, 0) if self.own.steps else self.own.most - tokens

    def soft(self, tokens: int) -> int:
        """Rows of one layer each that the other may have, with so many tokens of its own, before it streams more."""
        return (self.other.ceiling(tokens) - tokens) * (self.other_layers + 1)

    def hard(self, tokens: int) -> int:
        """The same, whatever it streams."""
        return (self.other.most - tokens) * (self.other_layers + 1)


def lodged(rows: int, layers: int) -> int:
    """As how many tokens rows of others count at a member of so many layers."""
    return -(-rows // (layers + 1))


def with_transfers(task: Task, plan: GroupPlan) -> GroupPlan:
    """A plan whose members stream more as keys and values grow, with targets for those of whom nothing covers what
    they would read; the plan itself where nobody gains."""
    if not plan.cache_bytes:
        return plan
    members = range(len(plan.members))
    thresholds = [thresholds_of(task.shape, plan, member) for member in members]
    first = [each.steps[0].tokens if each.steps else each.most for each in thresholds]
    holding = [member for member in members if Whole(member) in plan.layers]
    order = sorted(holding, key=first.__getitem__)
    found: list[Transfer | None] = [None] * len(members)
    links = {(link.source, link.target): link for link in task.profile.links}
    for owner, target in zip(order, reversed(order), strict=True):
        if first[owner] + LEAST_ROWS >= first[target]:
            break
        uncovered = _uncovered(task, plan, owner, thresholds[owner])
        if any(uncovered):
            link = links[plan.members[owner], plan.members[target]]
            found[owner] = Transfer(target, link.bytes_s, link.rtt_s, uncovered)
    if not any(found):
        return plan
    return replace(plan, transfers=tuple(found))


def transfer_words(plan: GroupPlan) -> str:
    """At whom keys and values may lie, in one line; "" where all stay."""
    names = plan.members
    found = [f"{names[owner]}'s at {names[each.target]}" for owner, each in enumerate(plan.transfers) if each]
    return f"oldest keys and values may lie elsewhere before more is streamed: {', '.join(found)}" if found else ""


def _uncovered(task: Task, plan: GroupPlan, member: int, thresholds: Thresholds) -> tuple[float, ...]:
    """See ``Transfer``."""
    lan, costs, found = Lan(task.profile, plan.members, plan.portal), task.costs(plan.members), []
    for level in range(min(len(thresholds.steps), LEVELS) + 1):
        tokens = thresholds.steps[level - 1].tokens if level else 0
        now = replace(grown(task.shape, plan, tokens), micro_batches=1)
        cached = max(tokens, task.work.rows)
        found.append(play_steps(task.shape, lan, costs, now, task.work.sessions, cached).waited[member])
    return tuple(found)
