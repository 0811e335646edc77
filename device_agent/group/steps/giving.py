"""What one member gives of sessions' keys and values, and gets, where one plan follows another. Blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch

from device_agent.group.holding.pieces import LayerPiece, pieces_of
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.group.rows.layout import overlap
from device_agent.group.rows.sending import Tag
from device_agent.planning.handover import Gift, gifts, kept_at
from device_agent.planning.plan import GroupPlan
from peers.collectives import Collectives
from split_model.kv_cache import KVCache
from split_model.spec import ModelSpec

Lying = list[tuple[range, KVCache]]
"""Of a layer at one member: KV groups, and the cache that has their keys and values."""


class Giving:
    """Of one member.

    Args:
        me: its name.
        before, after: the two plans.
        ranks: of the members that there are, by name.
        head_dim, dtype, device: of keys and values.

    Attributes:
        before: the first plan.
    """

    def __init__(
        self,
        spec: ModelSpec,
        me: str,
        before: JoinedPlan,
        after: JoinedPlan,
        ranks: Mapping[str, int],
        links: Collectives,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self.before, self._me, self._ranks, self._links = before, me, ranks, links
        self._kind, self._groups = (head_dim, dtype), spec.num_kv_heads
        self._device = device
        plans = before.as_planned(""), after.as_planned("")
        self._had, self._wanted = (_Part.of(plan, me, spec) for plan in plans)
        self._gifts: dict[int, list[Gift]] = defaultdict(list)
        for gift in gifts(*plans, self._groups):
            self._gifts[gift.layer].append(gift)

    @property
    def had_some(self) -> bool:
        """Whether the member had a part in the plan before."""
        return self._had.takes_part

    def of(self, caches: list[list[KVCache]], positions: int, position: int) -> list[list[KVCache]]:
        """One session's keys and values, as the plan that follows has them; none where the member is not in that.

        Args:
            caches: of each layer and piece, which are used up.
            positions: most that it may reach.
            position: how many it has that count.

        Raises ``PeerLost``, ``EpochOver``.
        """
        found = []
        for layer, held in enumerate(caches):
            kept, pieces = self._had.kept[layer], self._had.pieces[layer]
            own = [(each.groups, cache) for each, cache in zip(pieces, held, strict=True) if _within(each.groups, kept)]
            mine = self._gifts[layer] if position else []
            gone = [
                self._links.send(_rows(own, gift.groups, position), self._ranks[gift.target], Tag.GIFT)
                for gift in mine
                if gift.source == self._me
            ]
            come = {gift.groups: self._received(gift, position) for gift in mine if gift.target == self._me}
            found.append(
                [self._laid(layer, each, own, come, positions, position) for each in self._wanted.pieces[layer]]
            )
            for sent in gone:
                sent.wait()
            held.clear()
        return found if self._wanted.takes_part else []

    def _received(self, gift: Gift, position: int) -> torch.Tensor:
        head_dim, dtype = self._kind
        rows = torch.empty((2, len(gift.groups), position, head_dim), dtype=dtype, device=self._device)
        self._links.receive(rows, self._ranks[gift.source], Tag.GIFT).wait()
        return rows

    def _laid(
        self,
        layer: int,
        piece: LayerPiece,
        own: Lying,
        come: Mapping[range, torch.Tensor],
        positions: int,
        position: int,
    ) -> KVCache:
        """A piece's cache: whole, or empty where the member need not have all of it."""
        wanted, (head_dim, dtype) = piece.groups, self._kind
        whole = _within(wanted, self._wanted.kept[layer])
        for groups, cache in own:
            if whole and wanted and groups == wanted:
                cache.truncate(position)
                return cache
        laid = KVCache(1, len(wanted), head_dim, dtype, positions, self._device)
        if whole and position:
            rows = torch.empty((2, len(wanted), position, head_dim), dtype=dtype, device=self._device)
            for groups, cache in own:
                if both := overlap(groups, wanted):
                    rows[:, _slice(both, wanted)] = _rows([(groups, cache)], both, position)
            for groups, came in come.items():
                if both := overlap(groups, wanted):
                    rows[:, _slice(both, wanted)] = came[:, _slice(both, groups)]
            laid.append(0, *rows.transpose(1, 2))
            laid.advance(position)
        return laid


class _Part:
    """A member's part of a plan: of each layer its pieces, and the KV groups that it keeps."""

    def __init__(self, pieces: list[list[LayerPiece]], kept: list[range], takes_part: bool) -> None:
        self.pieces, self.kept, self.takes_part = pieces, kept, takes_part

    @classmethod
    def of(cls, plan: GroupPlan, member: str, spec: ModelSpec) -> _Part:
        """Nothing where the member is not in it."""
        if member not in plan.members:
            return cls([[] for _ in plan.layers], [range(0) for _ in plan.layers], False)
        place = plan.members.index(member)
        pieces = [pieces_of(layer, place, spec) for layer in plan.layers]
        return cls(pieces, [kept_at(layer, place, spec.num_kv_heads) for layer in plan.layers], True)


def _rows(lying: Lying, groups: range, position: int) -> torch.Tensor:
    """The first rows of some groups, ``[2, groups, position, head_dim]``."""
    parts = []
    for held, cache in lying:
        if both := overlap(held, groups):
            assert cache.length >= position
            pair = (each[both.start - held.start : both.stop - held.start, :position] for each in cache.read(0))
            parts.append(torch.stack(tuple(pair)))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _within(groups: range, kept: range) -> bool:
    """Whether all of some groups are kept; of none they are."""
    return not groups or (kept.start <= groups.start and groups.stop <= kept.stop)


def _slice(part: range, of: range) -> slice:
    return slice(part.start - of.start, part.stop - of.start)
