"""What products take on one core of this machine, as the profile that plans are made from. Quotas make it slower."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, cast

import torch
from bench.edge.shapes import Shape
from bench.edge.weights import RandomCheckpoint
from msgspec.structs import replace

from device_agent.group.reordered import attend_reordered
from device_agent.group.step_rows import GroupStretch, StepRows
from device_agent.planning.profile import VERSION, DeviceProfile, LinkProfile, Profile
from device_agent.planning.table import Table
from split_model.blocks import Block
from split_model.spec import ModelSpec

RTT_S = 1e-3
"""Of a small message, where the processes at both ends have a quota."""

FREE_MB_S = 2000.0
DISK_BYTES = 1 << 50
REPEATS = 3
TINY_S = 1e-9

Tables = dict[str, Table]


@torch.inference_mode()
def tables(shape: Shape, dtype: torch.dtype) -> Tables:
    """Seconds of all parts of a layer. Embedding and head are the terminal's, and take nothing here."""
    spec, model = shape.spec(1), shape.model(1)
    checkpoint = RandomCheckpoint(spec)
    rows = sorted({max(1, shape.rows * part // 8) for part in (1, 2, 4, 8)})
    groups = sorted({max(1, model.kv_heads * part // 8) for part in (1, 2, 4, 8)})
    columns = sorted({model.intermediate * part // 8 for part in (1, 2, 4, 8)})
    by_groups = {each: Block(checkpoint, 0, dtype, range(each), range(1), apart=True) for each in groups}
    by_columns = {each: Block(checkpoint, 0, dtype, range(1), range(each)) for each in columns}
    hidden = torch.randn(shape.rows, model.hidden, dtype=dtype)
    size = model.head_dim
    none = (None, None)

    def attend(count: int, of: int, positions: int) -> Callable[[], object]:
        q = torch.randn(1, count * model.heads_per_group, of, size, dtype=dtype)
        k, v = torch.randn(2, 1, count, positions, size, dtype=dtype)
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def context(of: int, count: int) -> torch.Tensor:
        return torch.randn(of, count * model.heads_per_group * size, dtype=dtype)

    def inner(of: int, width: int) -> torch.Tensor:
        return torch.randn(of, width, dtype=dtype)

    parts = {
        "query": _grid(lambda r, g: lambda: by_groups[g].qkv.query(hidden[:r], *none), rows, groups),
        "key_value": _grid(lambda r, g: lambda: by_groups[g].qkv.key_value(hidden[:r], *none), rows, groups),
        "attend": _grid(lambda r, p, g: attend(g, r, p), rows, rows, groups),
        "output": _grid(lambda r, g: _called(by_groups[g].attention_output, context(r, g)), rows, groups),
        "up": _grid(lambda r, c: lambda: by_columns[c].mlp_inner(hidden[:r]), rows, columns),
        "down": _grid(lambda r, c: _called(by_columns[c].mlp_output, inner(r, c)), rows, columns),
        "norm": _grid(lambda r: _normed(by_groups[groups[0]], hidden[:r]), rows),
        "embedding": Table(((1,),), (TINY_S,)),
        "head": Table(((1,),), (TINY_S,)),
    }
    if has_order(spec):
        parts["reordered"] = _grid(lambda r, p: orders(by_groups[model.kv_heads], r, p, dtype)[1], rows, rows)
    return parts


def orders(
    block: Block, rows: int, seen: int, dtype: torch.dtype = torch.float32
) -> tuple[Callable[[], object], Callable[[], object]]:
    """A layer's attention from hidden states to heads, of the first so many of the rows that are seen: by Eq. 3, for
    which all keys and values are projected, and by Eq. 8."""
    on = StepRows(cast(Any, None), (0,), 0, GroupStretch.whole_texts([seen]), None, all_see_all=True)
    shared = torch.randn(
        seen, block.attention_output(torch.zeros(1, block.heads * block.head_dim, dtype=dtype)).shape[1]
    )
    shared, own, none = shared.to(dtype), range(min(rows, seen)), (None, None)

    def projected() -> object:
        q = block.qkv.query(shared[: own.stop], *none)
        return on.look(block, on.store((), *block.qkv.key_value(shared, *none)), q, own)

    def reordered() -> object:
        queries = [block.qkv.query(shared[: own.stop], *none)]
        return attend_reordered([block], on, queries, own, shared, [range(seen)])

    return projected, reordered


def has_order(spec: ModelSpec) -> bool:
    """Whether Eq. 8 is right for a model at all: it makes no keys that could be turned or normed."""
    return spec.positions != "rotary" and not spec.qk_norm


def profile(of: Tables, slower: Sequence[float], budgets: Sequence[int], mb_s: float) -> Profile:
    """Of a group: each device takes so many times as long, and the terminal nothing; all ports are alike.

    mb_s: 10^6 bytes a second; 0: free.
    """
    scaled = [(f"device-{number}", factor) for number, factor in enumerate(slower, 1)]
    devices = [
        DeviceProfile(name, budget, DISK_BYTES, {part: _times(table, factor) for part, table in of.items()})
        for (name, factor), budget in zip([*scaled, ("terminal", 1.0)], [*budgets, DISK_BYTES], strict=True)
    ]
    return Profile(VERSION, "random", "float32", tuple(devices), _links(devices, mb_s))


def with_ports(known: Profile, mb_s: float) -> Profile:
    """The same devices with other ports."""
    return replace(known, links=_links(known.devices, mb_s))


def _links(devices: Sequence[DeviceProfile], mb_s: float) -> tuple[LinkProfile, ...]:
    names = [device.name for device in devices]
    return tuple(
        LinkProfile(one, other, (mb_s or FREE_MB_S) * 1e6, RTT_S)
        for one, other in product(names, names)
        if one != other
    )


def _times(table: Table, factor: float) -> Table:
    return Table(table.axes, tuple(second * factor for second in table.seconds))


def _grid(work: Callable[..., Callable[[], object]], *axes: Sequence[int]) -> Table:
    seconds = [least_s(work(*sizes)) for sizes in product(*axes)]
    return Table(tuple(tuple(axis) for axis in axes), tuple(seconds))


def _called(function: Callable[[torch.Tensor], object], rows: torch.Tensor) -> Callable[[], object]:
    return lambda: function(rows)


def _normed(block: Block, rows: torch.Tensor) -> Callable[[], object]:
    """A norm and a residual, wherever the norm stands."""
    return lambda: block.after_attention(rows, block.input_norm(rows))


def least_s(work: Callable[[], object]) -> float:
    """The least of some tries: others on this machine only make it longer."""
    work()
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)
