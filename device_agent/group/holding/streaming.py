"""What a member reads from its disk each time it is used, and what that leaves in memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from device_agent.group.holding.pieces import pieces_of
from device_agent.planning.plan import GroupPlan, Layer, Whole
from device_agent.planning.ring import held_together
from split_model.offload.file_pieces import SCRATCH_BYTES, codable
from split_model.offload.layout import Cut, unit_matrices
from split_model.offload.units import Unit
from split_model.spec import ModelSpec


@dataclass(frozen=True)
class Streaming:
    """Of one member; units are numbered as in the model.

    Attributes:
        units: in the order of use.
        ring_bytes: of the buffers that they are read into; 0 where nothing ever is.
        rooms: of each unit, what its matrices take there.
        spared_bytes: what its matrices would take if they stayed in memory.
        cuts: which part of each of their layers they are of; of others that may follow, the whole.
        first: of the model, the first layer that the group computes.
        ahead: whether units are read before they are asked for.
        coded: whether they lie coded on its disk.
    """

    units: tuple[Unit, ...] = ()
    ring_bytes: int = 0
    rooms: Mapping[Unit, tuple[int, ...]] = field(default_factory=dict)
    spared_bytes: int = 0
    cuts: Mapping[int, Cut] = field(default_factory=dict)
    first: int = 0
    ahead: bool = True
    coded: bool = False

    @property
    def buffer_bytes(self) -> int:
        """Of what units are read into, and what decoding them takes."""
        return self.ring_bytes + (SCRATCH_BYTES if self.coded else 0)

    @classmethod
    def of(cls, plan: GroupPlan, first: int, place: int, spec: ModelSpec, dtype: str) -> Streaming:
        """What a plan, whose layers are the model's from ``first`` on, has the member at ``place`` stream at first.

        Raises ``ValueError`` where that is a layer that it holds in several pieces.
        """
        units = tuple(Unit(first + each.layer, each.half) for each in plan.streamed[place]) if plan.streamed else ()
        ring = plan.ring_bytes[place] if plan.ring_bytes else 0
        coded = plan.codes(place) and codable(spec, dtype)
        if not units:
            return cls(ring_bytes=ring, first=first, ahead=plan.prefetch, coded=coded) if ring else cls()
        cuts = {unit.layer: _cut_of(plan.layers[unit.layer - first], place, spec) for unit in units}
        rooms, spared = {}, 0
        for unit in units:
            matrices = unit_matrices(spec, unit, cuts[unit.layer], dtype, turned=False)
            rooms[unit] = tuple(each.room for each in matrices)
            spared += sum(each.nbytes for each in matrices)
        largest = max(sum(each) for each in rooms.values())
        return cls(units, max(ring, largest), rooms, spared, cuts, first, plan.prefetch, coded)

    def of_layer(self, layer: int) -> set[Unit]:
        """What is streamed of a layer of the model."""
        return {unit for unit in self.units if unit.layer == layer}

    def legs(self, halves: Sequence[Unit]) -> list[tuple[Unit, ...]]:
        """A stage in parts that are run one after the other, each by all micro-batches: of a part all that is streamed
        is in memory at a time, so that it is read once for all of them. One part, where the buffers allow it.

        halves: all of the stage, in the order of use.
        """
        units = [half for half in halves if half in self.rooms]
        begins = {run[0] for run in held_together(units, self.rooms.__getitem__, self.ring_bytes)[1:]}
        found: list[list[Unit]] = [[]]
        for half in halves:
            if half in begins:
                found.append([])
            found[-1].append(half)
        return [tuple(each) for each in found]


def _cut_of(layer: Layer, place: int, spec: ModelSpec) -> Cut:
    """Which part of a layer a member has in one piece. Raises ``ValueError`` where it is in several, or in none."""
    if layer == Whole(place):
        return Cut()
    pieces = pieces_of(layer, place, spec)
    if len(pieces) != 1:
        raise ValueError(f"what is held in {len(pieces)} pieces is not streamed")
    return Cut(pieces[0].groups, pieces[0].columns)


NOTHING: Final = Streaming()
"""All stays in memory."""
