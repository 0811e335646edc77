"""Which heads of a layer are computed. Pure.

A request that prunes has one set for each layer, fixed before its first row and for its whole life: a head that is
pruned in the prompt has no keys and values, so no later row of that session could attend with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class KeptHeads:
    """The query heads of a layer that are computed, some of `total`, `group` of which share each KV head.

    A KV head is computed as long as one of its query heads is. Raises ValueError for heads that are not there, or not
    ascending.
    """

    heads: tuple[int, ...]
    total: int
    group: int

    def __post_init__(self) -> None:
        ascending = list(self.heads) == sorted(set(self.heads))
        if not ascending or any(not 0 <= head < self.total for head in self.heads) or self.total % self.group:
            raise ValueError(f"{list(self.heads)} are no ascending heads of {self.total}, {self.group} a KV head")

    @classmethod
    def of_groups(cls, groups: Iterable[int], total: int, group: int) -> KeptHeads:
        """All heads of some KV groups."""
        return cls(
            tuple(head for each in sorted(groups) for head in range(each * group, (each + 1) * group)), total, group
        )

    @property
    def is_all(self) -> bool:
        """Whether nothing is pruned."""
        return len(self.heads) == self.total

    @property
    def pruned(self) -> tuple[int, ...]:
        """The heads that are not computed."""
        kept = set(self.heads)
        return tuple(head for head in range(self.total) if head not in kept)

    @property
    def groups(self) -> tuple[int, ...]:
        """The KV heads that are computed."""
        return tuple(sorted({head // self.group for head in self.heads}))

    @property
    def widest(self) -> int:
        """The most query heads that are left to one KV head."""
        return max((len(each) for each in self._by_group()), default=0)

    @property
    def filled(self) -> tuple[int, ...]:
        """Numbers into `heads`, `widest` for each KV head: attention wants as many queries for each. Where a KV head
        has fewer, its first one comes again."""
        kept = iter(range(len(self.heads)))
        found: list[int] = []
        for members in self._by_group():
            own = [next(kept) for _ in members]
            found += own + own[:1] * (self.widest - len(own))
        return tuple(found)

    @property
    def places(self) -> tuple[int, ...]:
        """Where in `filled` each head stands, those that come again left out."""
        return tuple(
            number * self.widest + at for number, members in enumerate(self._by_group()) for at in range(len(members))
        )

    @property
    def is_even(self) -> bool:
        """Whether all KV heads that are computed have as many query heads left."""
        return len(self.heads) == len(self.groups) * self.widest

    def _by_group(self) -> list[list[int]]:
        by_group: dict[int, list[int]] = {}
        for head in self.heads:
            by_group.setdefault(head // self.group, []).append(head)
        return [by_group[each] for each in sorted(by_group)]


HeadSets = tuple[KeptHeads, ...]
"""What is kept of each layer of a model."""


def count_pruned(sets: Sequence[KeptHeads]) -> int:
    """Heads that are not computed, of all layers together."""
    return sum(each.total - len(each.heads) for each in sets)


def runs(numbers: Sequence[int]) -> list[range]:
    """Ascending numbers as ranges."""
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found
