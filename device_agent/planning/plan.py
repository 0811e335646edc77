"""Who computes what of a model: the language that every mode's planner speaks and the timeline runs. Pure.

Members are numbered as they stand in a plan: round its ring, and by the positions that they compute. The forms of its
layers are in `forms`; who speaks of plans may have them from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from device_agent.planning.forms import MOST_PIECES as MOST_PIECES
from device_agent.planning.forms import ByRows as ByRows
from device_agent.planning.forms import Hybrid as Hybrid
from device_agent.planning.forms import Layer as Layer
from device_agent.planning.forms import Lent as Lent
from device_agent.planning.forms import Sharded as Sharded
from device_agent.planning.forms import Whole as Whole
from device_agent.planning.forms import as_run as as_run
from device_agent.planning.forms import check_layer
from device_agent.planning.forms import weights_of as weights_of
from device_agent.planning.moves import Transfer
from device_agent.planning.shape import ModelShape
from split_model.offload.layout import padded
from split_model.offload.units import Unit

ONE_SHOT_BYTES: Final = 32 * 1024
"""Where nobody has measured it; as collectives have it."""


@dataclass(frozen=True)
class GroupPlan:
    """How a group computes one model.

    Attributes:
        mode: the word for this way of planning, "voltage" or "tensor" for example.
        members: names of the devices that compute, in the order of their numbers.
        portal: the device that has tokens and head; it need not be a member.
        layers: one a layer of the model.
        one_shot_bytes: what goes from each to all at once, see `Profile`.
        streamed: of each member, what it reads from its disk each time it is used instead of keeping it in memory, in
            the order of use; () where all members keep all that they have.
        ring_bytes: of each member, what it has for buffers that streamed units are read into; () where nothing is
            streamed.
        prefetch: whether units are read ahead as soon as buffers are free; else only when computing has come to them.
        micro_batches: the rows of one step's sessions pass in so many parts, one behind the other.
        cache_bytes: of each member, what it has for keys and values before it streams more than `streamed`, see
            `thresholds`; () where nobody will, and nothing bounds them.
        coded: of each member, whether what it streams lies coded on its disk; () where nobody's does.
        transfers: of each member, at whom its oldest keys and values may lie before it streams more; () where all stay.
        considered: where a planner chose among ways: each by name, and seconds of all the work; the chosen one first.
    """

    mode: str
    members: tuple[str, ...]
    portal: str
    layers: tuple[Layer, ...]
    one_shot_bytes: int = ONE_SHOT_BYTES
    streamed: tuple[tuple[Unit, ...], ...] = ()
    ring_bytes: tuple[int, ...] = ()
    prefetch: bool = True
    micro_batches: int = 1
    cache_bytes: tuple[int, ...] = ()
    coded: tuple[bool, ...] = ()
    transfers: tuple[Transfer | None, ...] = ()
    considered: tuple[tuple[str, float], ...] = field(default=(), compare=False)

    def check(self, shape: ModelShape) -> None:
        """Raises ValueError, naming the layer, unless every group, column and row is handed out exactly once."""
        if not self.members or len(set(self.members)) != len(self.members):
            raise ValueError(f"members are {list(self.members)}; they must be different devices, one or more")
        for what, said in (("streamed", self.streamed), ("buffered", self.ring_bytes)):
            if (said or self.streams) and len(said) != len(self.members):
                raise ValueError(f"what is {what} is said for {len(said)} of {len(self.members)} members")
        if self.cache_bytes and len(self.cache_bytes) != len(self.members):
            raise ValueError(f"room for keys and values is said for {len(self.cache_bytes)} members")
        if self.cache_bytes and not all(isinstance(layer, Whole) for layer in self.layers):
            raise ValueError("room for keys and values is counted where layers are whole alone")
        if self.streams and any(isinstance(layer, Lent) for layer in self.layers):
            raise ValueError("layers of which heads are lent stay in memory")
        if self.coded and len(self.coded) != len(self.members):
            raise ValueError(f"whether it is coded is said for {len(self.coded)} of {len(self.members)} members")
        if self.transfers:
            self._check_transfers()
        if self.micro_batches < 1:
            raise ValueError(f"{self.micro_batches} micro-batches cannot be")
        if len(self.layers) != shape.layers:
            raise ValueError(f"the plan has {len(self.layers)} layers, the model {shape.layers}")
        for number, layer in enumerate(self.layers):
            try:
                check_layer(shape, len(self.members), layer)
            except ValueError as error:
                raise ValueError(f"layer {number}: {error}") from None
        for member, units in enumerate(self.streamed):
            self._check_streamed(shape, member, units)

    @property
    def streams(self) -> bool:
        """Whether any member reads from its disk what it uses."""
        return any(self.streamed)

    def codes(self, member: int) -> bool:
        """Whether what a member streams, now or later, lies coded on its disk."""
        return bool(self.coded and self.coded[member] and self.ring_bytes and self.ring_bytes[member])

    def _check_transfers(self) -> None:
        targets = [each.target for each in self.transfers if each is not None]
        known = set(range(len(self.members))) - {owner for owner, each in enumerate(self.transfers) if each is not None}
        if len(self.transfers) != len(self.members) or not self.cache_bytes:
            raise ValueError("keys and values move where they are counted, and it is said for each member")
        if len(set(targets)) < len(targets) or not set(targets) <= known:
            raise ValueError(f"keys and values cannot move to the members {targets}")

    def _check_streamed(self, shape: ModelShape, member: int, units: Sequence[Unit]) -> None:
        name = self.members[member]
        if list(units) != sorted(set(units)):
            raise ValueError(f"what {name} streams is not in the order of use, each once")
        for unit in units:
            needed = self.unit_bytes(shape, member, unit) if 0 <= unit.layer < len(self.layers) else 0
            if not needed:
                raise ValueError(f"{name} streams the {unit.half} of layer {unit.layer}, of which it has nothing")
            if needed > self.ring_bytes[member]:
                raise ValueError(f"{name} has {self.ring_bytes[member]} bytes of buffers for units of {needed}")

    def unit_bytes(self, shape: ModelShape, member: int, unit: Unit) -> int:
        """Bytes of what a member reads of half a layer at each use: its matrices, each `padded`.
        Norms and biases always stay, and are not in it."""
        return sum(self.matrices(shape, member, unit))

    def ring_room(self, shape: ModelShape, member: int) -> int:
        """Bytes of units that surely find room in a member's ring together; one alone always does.

        A matrix lies in one piece, so up to one of them, the largest, may find the ring's end too near; not so where
        all units are alike, and the ring is cut into places of their length.
        """
        units = {tuple(self.matrices(shape, member, unit)) for unit in self.streamed[member]}
        if len(units) == 1:
            [alike] = units
            return self.ring_bytes[member] // sum(alike) * sum(alike)
        return self.ring_bytes[member] - max((size for unit in units for size in unit), default=0)

    def matrices(self, shape: ModelShape, member: int, unit: Unit) -> list[int]:
        """Bytes of each of these matrices."""
        groups, columns = weights_of(shape, self.layers[unit.layer], member)
        sizes = shape.matrices(unit.half, groups if unit.half == "attention" else columns, unit.layer)
        return [padded(size * shape.dtype_bytes) for size in sizes]
