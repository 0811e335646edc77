"""The forms that a layer of a group may have: who computes what of it, which weights that takes, and where rows few in
number go another way. Pure.

Members are counted as in a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from device_agent.planning.shape import ModelShape
from device_agent.planning.shares import spans


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


@dataclass(frozen=True)
class Lent:
    """EdgeFormer: one member has a layer's rows, and lends heads, or columns of the MLP, to others (Eq. 18-22).

    Rows go from home straight to each who computes, and back.

    Attributes:
        home: the member that has the rows before and behind the layer.
        groups: how many each member computes the attention of, home's included.
        columns: how many each member computes of the MLP: all at home unless they are lent likewise.
        projections: whether who computes heads also has the weights of their projections, gets the normed rows and
            returns its partial sum of the output. Else (cMHA) home projects their queries, keys and values and sends
            these, and the heads' attention comes back.
        few_rows: a step of at most so many rows is computed as `step`; 0: none is.
    """

    home: int
    groups: tuple[int, ...]
    columns: tuple[int, ...]
    projections: bool = False
    few_rows: int = 0

    @property
    def step(self) -> Union[Sharded, Whole]:
        """How few rows are computed: by heads and columns where keys, values and weights lie like that; else at home,
        which has then kept a copy of the keys and values that it made for others."""
        return Sharded(self.groups, self.columns) if self.projections else Whole(self.home)

    @property
    def copies(self) -> bool:
        """Whether home keeps keys and values of all groups; else who computes a head alone has its keys and values."""
        return self.few_rows > 0 and not self.projections


MOST_PIECES = 8
"""Of a member's rows in one layer."""

Layer = Union[Whole, Sharded, Hybrid, ByRows, Lent]


def as_run(layer: Layer, rows: int, cached: int, sessions: int = 1) -> Layer:
    """What is done with a layer for a step of so many rows of some sessions, behind so many positions.

    Few rows are not handed out by rows, nor are those of several sessions, each of which has few. And where members
    have only the keys and values of their prefix, only the last can go on. Lent heads stay lent where home has no copy
    of their keys and values.
    """
    if isinstance(layer, Lent):
        few = rows <= layer.few_rows or (sessions > 1 and (layer.projections or layer.copies))
        return layer.step if few else layer
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
    if isinstance(layer, Lent) and not layer.projections:
        columns = spans(layer.columns)[member]
        if member == layer.home:
            return everything[0], everything[1] if layer.copies else columns
        return (range(0), columns) if columns else (None, range(0))
    if isinstance(layer, Hybrid) and layer.mlp_by_rows:
        return groups, everything[1]
    return groups, spans(layer.columns)[member]


def kept_groups(shape: ModelShape, layer: Layer, member: int) -> int:
    """Of how many groups a member keeps keys and values."""
    if isinstance(layer, Lent) and not (member == layer.home and layer.copies):
        return layer.groups[member]
    groups = weights_of(shape, layer, member)[0]
    return 0 if groups is None else len(groups)


def check_layer(shape: ModelShape, members: int, layer: Layer) -> None:
    """Raises ValueError unless every group, column and row is handed out exactly once among so many members."""
    if isinstance(layer, Whole):
        _check_member(members, layer.member)
    elif isinstance(layer, ByRows):
        _check_rows(members, layer)
        check_layer(shape, members, layer.step)
        if layer.prefix and layer.step != Whole(members - 1):
            raise ValueError("only the last member has all keys and values")
        if not 1 <= layer.pieces <= (1 if layer.prefix or not layer.overlap else MOST_PIECES):
            raise ValueError(f"rows cannot go out in {layer.pieces} pieces")
        if layer.prefix and not shape.causal:
            raise ValueError("a row sees later ones too, so prefixes are not enough")
        if layer.reordered and len(layer.reordered) != members:
            raise ValueError(f"{len(layer.reordered)} orders are given for {members} members")
        if any(layer.reordered) and (shape.rotary or shape.key_norm or layer.keys_values):
            raise ValueError("Eq. 8 has no keys to turn, to norm or to exchange")
    else:
        _check_whole(members, layer.groups, shape.kv_heads, "groups")
        _check_whole(members, layer.columns, shape.intermediate, "columns")
        if isinstance(layer, Hybrid):
            _check_rows(members, layer)
        if isinstance(layer, Lent):
            _check_member(members, layer.home)
            _check_few(layer)
            if shape.cross_layers:
                raise ValueError("heads of layers that read for others, or attend to what was read, are not lent")


def _check_member(members: int, member: int) -> None:
    if not 0 <= member < members:
        raise ValueError(f"there is no member {member}")


def _check_few(layer: Union[Hybrid, ByRows, Lent]) -> None:
    if layer.few_rows < 0:
        raise ValueError(f"{layer.few_rows} rows cannot be few")


def _check_rows(members: int, layer: Union[Hybrid, ByRows]) -> None:
    shares = layer.rows
    _check_few(layer)
    if len(shares) != members or min(shares) < 0 or not 0 < sum(shares) < float("inf"):
        raise ValueError(f"{list(shares)} are no shares of the rows for {members} members")


def _check_whole(members: int, parts: Sequence[int], size: int, what: str) -> None:
    if len(parts) != members or min(parts) < 0 or sum(parts) != size:
        raise ValueError(f"{list(parts)} {what} for {members} members are not the layer's {size}")
