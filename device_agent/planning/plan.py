"""Who computes what of a model: the language that every mode's planner speaks and the timeline runs. Pure.

Members are numbered as they stand in a plan: round its ring, and by the positions that they compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Union

from device_agent.planning.shape import ModelShape
from device_agent.planning.shares import spans
from split_model.offload.layout import padded
from split_model.offload.units import Unit


@dataclass(frozen=True)
class Whole:
    """One member computes the whole layer, all rows."""

    member: int


@dataclass(frozen=True)
class Sharded:
    """Tensor parallelism: each member has some groups and some columns and computes all rows of them.

    Behind the attention and behind the MLP all partial sums are combined by an all-reduce; every member then has all
    rows and computes their norms.

    Attributes:
        groups, columns: how many each member has, in their order.
    """

    groups: tuple[int, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Hybrid:
    """Galaxy+: attention by heads, the norms and residuals by rows; the MLP by columns (Scheme-1) or rows (Scheme-2).

    Where rows become heads or columns they are gathered, where sums become rows they are reduced and scattered.

    Attributes:
        groups: as in `Sharded`.
        columns: those of Scheme-1. Under Scheme-2 a member has all of them, and computes these in steps of few rows,
            which shared by rows would leave most members idle.
        rows: shares of the rows.
        mlp_by_rows: whether this is Scheme-2.
        overlap: whether each tile's product begins before the next tile has come.
        few_rows: a step of at most so many rows is computed as `step`.
    """

    groups: tuple[int, ...]
    columns: tuple[int, ...]
    rows: tuple[float, ...]
    mlp_by_rows: bool = False
    overlap: bool = True
    few_rows: int = 1

    @property
    def step(self) -> Sharded:
        """How few rows are computed."""
        return Sharded(self.groups, self.columns)


@dataclass(frozen=True)
class ByRows:
    """Voltage, and sequence parallelism: each member has the whole layer and computes some rows.

    Attributes:
        rows: shares of the rows.
        step: how few rows are computed, from the keys and values that all members have.
        keys_values: whether the members exchange keys and values; else hidden states, from which each projects them.
        prefix: whether a member gets only the rows before its own, as causal attention needs; the last member alone
            then has all keys and values.
        reordered: which members compute the attention in the order of Eq. 8 where whole texts are read: it leaves no
            keys and values, so rows of sessions take the other order.
        overlap: whether work begins on what is there before all rows have come.
        pieces: a member's rows go to the others in so many tiles, each as soon as the MLP before has made it; each
            reads all of the MLP's weights.
        few_rows: a step of at most so many rows is computed as `step`.
    """

    rows: tuple[float, ...]
    step: Union[Sharded, Whole]
    keys_values: bool = False
    prefix: bool = False
    reordered: tuple[bool, ...] = ()
    overlap: bool = True
    few_rows: int = 1
    pieces: int = 1

    def reorders(self, member: int) -> bool:
        """Whether a member does."""
        return bool(self.reordered) and self.reordered[member]


MOST_PIECES = 8
"""Of a member's rows in one layer."""

Layer = Union[Whole, Sharded, Hybrid, ByRows]


def as_run(layer: Layer, rows: int, cached: int, sessions: int = 1) -> Layer:
    """What is done with a layer for a step of so many rows of some sessions, behind so many positions.

    Few rows are not handed out by rows, nor are those of several sessions, each of which has few. And where members
    have only the keys and values of their prefix, only the last can go on.
    """
    if isinstance(layer, (Hybrid, ByRows)) and (rows <= layer.few_rows or sessions > 1):
        return layer.step
    if isinstance(layer, ByRows) and layer.prefix and cached:
        return layer.step
    return layer


def weights_of(shape: ModelShape, layer: Layer, member: int) -> tuple[range | None, range]:
    """The groups and columns whose weights a member has; None: it has nothing of the layer."""
    everything = range(shape.kv_heads), range(shape.intermediate)
    if isinstance(layer, ByRows):
        return everything
    if isinstance(layer, Whole):
        return everything if layer.member == member else (None, range(0))
    groups = spans(layer.groups)[member]
    if isinstance(layer, Hybrid) and layer.mlp_by_rows:
        return groups, everything[1]
    return groups, spans(layer.columns)[member]


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
        if self.coded and len(self.coded) != len(self.members):
            raise ValueError(f"whether it is coded is said for {len(self.coded)} of {len(self.members)} members")
        if self.micro_batches < 1:
            raise ValueError(f"{self.micro_batches} micro-batches cannot be")
        if len(self.layers) != shape.layers:
            raise ValueError(f"the plan has {len(self.layers)} layers, the model {shape.layers}")
        for number, layer in enumerate(self.layers):
            try:
                self._check_layer(shape, layer)
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
        sizes = shape.matrices(unit.half, groups if unit.half == "attention" else columns)
        return [padded(size * shape.dtype_bytes) for size in sizes]

    def _check_layer(self, shape: ModelShape, layer: Layer) -> None:
        if isinstance(layer, Whole):
            if not 0 <= layer.member < len(self.members):
                raise ValueError(f"there is no member {layer.member}")
        elif isinstance(layer, ByRows):
            self._check_rows(layer)
            self._check_layer(shape, layer.step)
            if layer.prefix and layer.step != Whole(len(self.members) - 1):
                raise ValueError("only the last member has all keys and values")
            if not 1 <= layer.pieces <= (1 if layer.prefix or not layer.overlap else MOST_PIECES):
                raise ValueError(f"rows cannot go out in {layer.pieces} pieces")
            if layer.prefix and not shape.causal:
                raise ValueError("a row sees later ones too, so prefixes are not enough")
            if layer.reordered and len(layer.reordered) != len(self.members):
                raise ValueError(f"{len(layer.reordered)} orders are given for {len(self.members)} members")
            if any(layer.reordered) and (shape.rotary or shape.key_norm or layer.keys_values):
                raise ValueError("Eq. 8 has no keys to turn, to norm or to exchange")
        else:
            self._check_whole(layer.groups, shape.kv_heads, "groups")
            self._check_whole(layer.columns, shape.intermediate, "columns")
            if isinstance(layer, Hybrid):
                self._check_rows(layer)

    def _check_rows(self, layer: Union[Hybrid, ByRows]) -> None:
        shares = layer.rows
        if layer.few_rows < 0:
            raise ValueError(f"{layer.few_rows} rows cannot be few")
        if len(shares) != len(self.members) or min(shares) < 0 or not 0 < sum(shares) < float("inf"):
            raise ValueError(f"{list(shares)} are no shares of the rows for {len(self.members)} members")

    def _check_whole(self, parts: Sequence[int], size: int, what: str) -> None:
        if len(parts) != len(self.members) or min(parts) < 0 or sum(parts) != size:
            raise ValueError(f"{list(parts)} {what} for {len(self.members)} members are not the layer's {size}")
