"""What a group tells whoever asks: who is in it, what each does, and why somebody does nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from device_agent.group.holding.pieces import cache_bytes, pieces_of, weight_bytes
from device_agent.group.holding.streaming import Streaming
from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Layer, Lent
from device_agent.planning.shape import ModelShape
from device_agent.planning.thresholds import thresholds_of
from split_model.offload.units import HALVES
from split_model.slices import DTYPE_BYTES
from split_model.spec import ModelSpec

Doing = Literal["joining", "measuring", "loading", "working", "slow", "spare", "lost", "excluded"]
"""Of a member: it is there and has nothing to do yet; it measures itself, or loads, or computes; it was too slow, and
is planned without until it is fast again; it could compute and has nothing to do, since the group is as fast without
it; it is gone; it may not take part."""


@dataclass(frozen=True)
class MemberState:
    """One member.

    Attributes:
        layers: which of the model's it computes, as "0-11, 14"; "" for none.
        heads: how many query heads of a layer, as "4" or "4 to 6"; "" for none.
        rows_share: its mean share of a prompt's rows, from 0 to 1; None: its layers are not shared by rows.
        memory_mb: what weights, the buffers that others are read into, and one session's keys and values take, in MB;
            where more is streamed as these grow, what all sessions' may take before.
        streamed: which halves of layers it reads from its disk at each use now, as "attention 2-5; mlp 0-11"; "" for
            none.
        streamed_mb: how much that is, in MB a step.
        hidden: the share of the time for that, since the plan began, in which nobody waited for it, from 0 to 1; None:
            nothing was read, or nobody knows.
        why: what there is to say of it, "" where all is well.
        step_ms: what a step has taken it on average, since the plan began, in ms of its own computing; 0 where it has
            told of none.
    """

    name: str
    state: Doing
    layers: str = ""
    heads: str = ""
    rows_share: float | None = None
    memory_mb: int = 0
    streamed: str = ""
    streamed_mb: int = 0
    hidden: float | None = None
    why: str = ""
    step_ms: float = 0.0


@dataclass(frozen=True)
class GroupState:
    """All of it.

    Attributes:
        mode: of the plan, "" before the first.
        epoch: counts the plans, those that measure included.
        formed: whether it computes now.
        members: the portal first.
        why: what there is to say of the whole, "" where all is well.
    """

    name: str
    mode: str
    epoch: int
    formed: bool
    members: tuple[MemberState, ...]
    why: str = ""


def working(
    name: str, plan: GroupPlan, first: int, place: int, spec: ModelSpec, dtype: str, positions: int, relief: int = 0
) -> MemberState:
    """The state of a member that computes its part of a plan.

    Args:
        plan: its layers are the model's from layer ``first`` on.
        place: of the member in the plan.
        positions: for how many it keeps room.
        relief: how many steps it has taken since keys and values have grown, see ``thresholds``.
    """
    layers, streaming = plan.layers, Streaming.of(plan, first, place, spec, dtype)
    mine = [number for number, layer in enumerate(layers) if pieces_of(layer, place, spec)]
    groups = [_groups(layers[number], place, spec) for number in mine]
    shares = [share for number in mine if (share := _share(layers[number], place)) is not None]
    taken = weight_bytes(layers, first, place, spec, dtype)
    taken += streaming.buffer_bytes - streaming.spared_bytes
    if plan.cache_bytes:
        taken += plan.cache_bytes[place]
        shape = replace(ModelShape.of(spec, dtype), layers=len(layers))
        now = thresholds_of(shape, plan, place).relieved(plan, place, relief)
        streaming = Streaming.of(now, first, place, spec, dtype)
    else:
        taken += cache_bytes(layers, place, spec, positions, DTYPE_BYTES[dtype])
    by_half = {half: _spans(each.layer for each in streaming.units if each.half == half) for half in HALVES}
    return MemberState(
        name,
        "working",
        _spans(first + number for number in mine),
        _range([count * spec.num_heads // spec.num_kv_heads for count in groups]),
        round(sum(shares) / len(shares), 4) if shares else None,
        round(taken / 1e6),
        "; ".join(f"{half} {numbers}" for half, numbers in by_half.items() if numbers),
        round(sum(sum(each) for each in streaming.rooms.values()) / 1e6),
    )


def _groups(layer: Layer, place: int, spec: ModelSpec) -> int:
    """Of how many a member attends."""
    if isinstance(layer, Lent):
        return layer.groups[place]
    return sum(len(piece.groups) for piece in pieces_of(layer, place, spec))


def _share(layer: Layer, place: int) -> float | None:
    return layer.rows[place] / sum(layer.rows) if isinstance(layer, (ByRows, Hybrid)) else None


def _spans(numbers: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)


def _range(counts: Sequence[int]) -> str:
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
