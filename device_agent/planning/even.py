"""The plain plan of each mode: everybody has the same share, whatever was measured. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Layer, Lent, Sharded, Whole
from device_agent.planning.shape import ModelShape
from device_agent.planning.shares import handed_out

FEW_ROWS = 16
"""So many rows, a draft that is verified, are not worth sharing by rows: each member would read all its weights."""


def plan_evenly(mode: str, shape: ModelShape, members: Sequence[str], portal: str) -> GroupPlan:
    """A plan of a mode for all layers of a model, which knows no profile and no memory.

    Raises ValueError for a mode that there is not.
    """
    if mode not in _EVEN:
        raise ValueError(f"mode {mode!r} is not one of {', '.join(_EVEN)}")
    return GroupPlan(mode, tuple(members), portal, _EVEN[mode](shape, len(members)))


def _sharded(shape: ModelShape, count: int) -> Sharded:
    shares = [1.0] * count
    return Sharded(handed_out(shape.kv_heads, shares), handed_out(shape.intermediate, shares))


def _tensor(shape: ModelShape, count: int) -> tuple[Layer, ...]:
    return (_sharded(shape, count),) * shape.layers


def _galaxy(shape: ModelShape, count: int) -> tuple[Layer, ...]:
    step = _sharded(shape, count)
    return (Hybrid(step.groups, step.columns, (1.0,) * count, few_rows=FEW_ROWS),) * shape.layers


def _voltage(shape: ModelShape, count: int) -> tuple[Layer, ...]:
    return (ByRows((1.0,) * count, _sharded(shape, count), few_rows=FEW_ROWS),) * shape.layers


def _sequence(shape: ModelShape, count: int) -> tuple[Layer, ...]:
    return (ByRows((1.0,) * count, Whole(0), keys_values=True, overlap=False, few_rows=FEW_ROWS),) * shape.layers


def _pipeline(shape: ModelShape, count: int) -> tuple[Whole, ...]:
    counts = handed_out(shape.layers, [1.0] * count)
    return tuple(Whole(member) for member, layers in enumerate(counts) for _ in range(layers))


def _edgeformer(shape: ModelShape, count: int) -> tuple[Layer, ...]:
    """Homes as in a pipeline, which lend each other device as much as they keep; nothing where that is not done."""
    homes, parts = _pipeline(shape, count), _sharded(shape, count)
    if shape.cross_layers or count == 1:
        return homes
    lent = [Lent(home, parts.groups, parts.columns, projections=True, few_rows=FEW_ROWS) for home in range(count)]
    return tuple(lent[home.member] for home in homes)


def _lime(shape: ModelShape, count: int) -> tuple[Layer, ...]:
    """Two segments, as far as there are layers for them; all of it in memory."""
    halves = handed_out(shape.layers, [1.0] * 2)
    segments = [handed_out(layers, [1.0] * count) for layers in halves]
    return tuple(Whole(member) for counts in segments for member, layers in enumerate(counts) for _ in range(layers))


_EVEN: dict[str, Callable[[ModelShape, int], tuple[Layer, ...]]] = {
    "voltage": _voltage,
    "galaxy": _galaxy,
    "tensor": _tensor,
    "sequence": _sequence,
    "pipeline": _pipeline,
    "edgeformer": _edgeformer,
    "lime": _lime,
}
