"""How few weights a member can read at each use, for so many layers and such a ring of buffers. Pure.

A member with n layers of W bytes and room for F keeps what it can: with a ring of R it must stream W - F + R bytes. A
ring that holds all units of one stage is the paper's shared slot: with #Seg stages a slot makes room for #Seg - 1 units
(Eq. 7). A smaller ring makes for less to stream, and may make computing wait in the middle of a stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil


@dataclass(frozen=True)
class Sizes:
    """Bytes of the streamable halves of a layer, as they are read."""

    attention: int
    mlp: int
    matrix: int
    """The largest single matrix: a ring for more than one unit has room for it beside the units."""

    @property
    def layer(self) -> int:
        return self.attention + self.mlp


@dataclass(frozen=True)
class Residency:
    """What a member streams.

    Attributes:
        attentions, mlps: of how many of its layers.
        ring_bytes: of its buffers; 0 where nothing is streamed.
    """

    attentions: int = 0
    mlps: int = 0
    ring_bytes: int = 0

    def streamed(self, sizes: Sizes) -> int:
        """Bytes that are read in one pass."""
        return self.attentions * sizes.attention + self.mlps * sizes.mlp

    def of_stage(self, sizes: Sizes, stages: int) -> int:
        """Bytes that are read in the fullest of so many stages, units being spread evenly."""
        return ceil(self.attentions / stages) * sizes.attention + ceil(self.mlps / stages) * sizes.mlp

    def room(self, sizes: Sizes) -> int:
        """Bytes of units that the ring surely holds together, see `GroupPlan.ring_room`."""
        if not self.attentions or not self.mlps:
            unit = sizes.mlp if self.mlps else sizes.attention
            return self.ring_bytes // unit * unit
        return max(self.ring_bytes - sizes.matrix, max(sizes.attention, sizes.mlp))


def fewest(layers: int, sizes: Sizes, needed: int) -> tuple[int, int] | None:
    """How many attentions and MLPs to stream so that they are at least so many bytes together, and as few as can be:
    Eq. 6, exactly. Of equals the one with fewer units. None: not even all of them are enough."""
    best, least = None, 0
    for mlps in range(min(layers, max(ceil(needed / sizes.mlp), 0)) + 1):
        attentions = max(ceil((needed - mlps * sizes.mlp) / sizes.attention), 0)
        if attentions > layers:
            continue
        total = attentions * sizes.attention + mlps * sizes.mlp
        if best is None or total < least or (total == least and attentions + mlps < sum(best)):
            best, least = (attentions, mlps), total
    return best


@lru_cache(maxsize=1 << 16)
def residencies(layers: int, stages: int, sizes: Sizes, free: int, held: bool) -> tuple[Residency, ...]:
    """The ways in which a member can hold so many layers in so many stages: one where all stays, else with small rings
    and larger ones, up to two stages' units; none where they do not fit.

    free: bytes for these layers' matrices and the ring. held: whether several micro-batches use what is read once, so
        that units are held together, wherever in the ring they come to lie.
    """
    lacking = layers * sizes.layer - free
    if lacking <= 0:
        return (Residency(),)
    found = [*_alike(layers, stages, sizes, lacking, held), *_mixed(layers, stages, sizes, lacking, held)]
    return tuple(dict.fromkeys(found))


def _alike(layers: int, stages: int, sizes: Sizes, lacking: int, held: bool) -> Iterator[Residency]:
    """Only attentions are streamed, or only MLPs: a ring has so many places, all alike."""
    for unit in (sizes.attention, sizes.mlp):
        for places in range(1, 2 * ceil(layers / stages) + 1):
            ring = places * unit + (sizes.matrix if held else 0)
            count = ceil((lacking + ring) / unit)
            if count > layers or places > max(2 * ceil(count / stages), 1):
                break
            yield Residency(*((count, 0) if unit == sizes.attention else (0, count)), ring)


def _mixed(layers: int, stages: int, sizes: Sizes, lacking: int, held: bool) -> Iterator[Residency]:
    """Both: a ring has one place, or room for some units and the largest matrix. What is over is the ring's."""
    unit = max(sizes.attention, sizes.mlp)
    stage = unit
    for _ in range(layers):
        counts = fewest(layers, sizes, lacking + stage + sizes.matrix)
        needed = Residency(*counts).of_stage(sizes, stages) if counts else 0
        if needed <= stage:
            break
        stage = needed
    several = [sizes.layer, (unit + stage) // 2, stage, stage + unit, 2 * stage]
    for ring in sorted({unit + (sizes.matrix if held else 0), *(size + sizes.matrix for size in several)}):
        counts = fewest(layers, sizes, lacking + ring)
        if counts is None:
            continue
        found = Residency(*counts)
        # More than two stages' units ahead help nobody.
        most = 2 * found.of_stage(sizes, stages) + sizes.matrix
        yield Residency(*counts, max(ring, min(found.streamed(sizes) - lacking, most)))
