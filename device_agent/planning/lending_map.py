"""Where lending attention pays, where lending projections does, and where neither: over rows and links. Pure.

Of equal devices that compute at their nominal speed, what matters is how many bytes a link carries for each operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from device_agent.planning.forms import Lent
from device_agent.planning.lending_search import WAYS, LendingSearch
from device_agent.planning.profile import VERSION, DeviceProfile, LinkProfile, Profile
from device_agent.planning.shape import ModelShape
from device_agent.planning.table import Table
from device_agent.planning.task import Task, Work

PAYS = 0.01
"""Lending pays where a layer is faster by this share."""

MOST_ROWS = 1 << 15
"""Beyond so many nobody looks for prompts on which lending pays."""

SHARES = 8
"""All, a half, a quarter and so on of a layer's groups or columns are tried."""

NOMINAL_FLOPS_S = 1e12
"""Of the devices of a map: only the ratio to their links matters, and to a round trip where there is one."""

Kind = Literal["attention", "projections", "neither"]

_ATTENTION, _PROJECTIONS = (
    next(way for way in WAYS if (way.projections, way.columns, way.steps_apart) == kind)
    for kind in ((False, False, False), (True, True, False))
)


@dataclass(frozen=True)
class MapPoint:
    """One layer at one length and link.

    Attributes:
        rows, bytes_per_flop: where it is.
        attention, projections: how many times as fast a layer is where attention is lent, or projections and columns;
            1 where nothing that is lent pays.
    """

    rows: int
    bytes_per_flop: float
    attention: float
    projections: float

    @property
    def best(self) -> Kind:
        """What pays more, if anything does."""
        if max(self.attention, self.projections) < 1 + PAYS:
            return "neither"
        return "attention" if self.attention > self.projections else "projections"


def least_rows(shape: ModelShape, bytes_per_flop: float, *, published: bool = False) -> float:
    """From how many rows on it pays to lend the attention of one group of heads to one equal device, round trips aside.

    What travels must take less than what home does meanwhile for the other H - 1. That is their attention in the paper,
    so n > 2 f / (B (H - 1)) for two bytes an element; here it is their projections too, so 2 d rows fewer. Where rows
    see only those before them attention is half, and the numbers are twice. With g queries a group, its keys and values
    travel once, and are attended to g times. 0: it pays for any.

    published: by the paper's order, all projections first.
    """
    if shape.kv_heads == 1:
        return float("inf")
    vectors = 2 * shape.heads_per_group + 2  # of a row and group, that travel, and are projected or multiplied at home
    travels = vectors * shape.dtype_bytes / (bytes_per_flop * (shape.kv_heads - 1))
    meanwhile = 0 if published else vectors * 2 * shape.hidden
    return max(travels - meanwhile, 0.0) / ((2 if shape.causal else 4) * shape.heads_per_group)


def lending_map(
    shape: ModelShape, rows: Sequence[int], bytes_per_flop: Sequence[float], members: int = 2, rtt_s: float = 0.0
) -> list[list[MapPoint]]:
    """By links, then by rows: what the best lending of a layer brings among so many equal devices.

    rtt_s: of a round trip between devices of `NOMINAL_FLOPS_S`.
    """
    one = replace(shape, layers=1, cross_layers=0)
    found = []
    for ratio in bytes_per_flop:
        profile = nominal_profile(one, [NOMINAL_FLOPS_S] * members, ratio * NOMINAL_FLOPS_S, rtt_s)
        found.append([_point(one, profile, count, ratio) for count in rows])
    return found


def _point(shape: ModelShape, profile: Profile, rows: int, ratio: float) -> MapPoint:
    names = tuple(device.name for device in profile.devices)
    search = LendingSearch(Task(shape, profile, names, names[0], Work(rows, 0, rows)))
    whole = search.whole_s(0)
    return MapPoint(rows, ratio, *(whole / search.best(0, way).seconds for way in (_ATTENTION, _PROJECTIONS)))


def pays_from(task: Task, home: int) -> dict[str, int | None]:
    """From how many rows of a prompt on, by powers of two, it pays that a member lends to some other: attention, heads
    with their projections, or columns of the MLP; None: on no prompt that was tried."""
    found: dict[str, int | None] = {}
    for what in ("attention", "projections", "columns"):
        tried = (1 << power for power in range(MOST_ROWS.bit_length()))
        found[what] = next((rows for rows in tried if _pays(task, home, what, rows)), None)
    return found


def _pays(task: Task, home: int, what: str, rows: int) -> bool:
    """Whether a layer is faster with some of its groups or columns, by halves of them all, at any one other member."""
    asked = Task(task.shape, task.profile, task.members, task.portal, Work(rows, 0, rows))
    search, members = LendingSearch(asked), range(len(task.members))
    groups, columns = (
        tuple(units * (at == home) for at in members) for units in (task.shape.kv_heads, task.shape.intermediate)
    )
    whole = Lent(home, groups, columns, what == "projections")
    units = task.shape.intermediate if what == "columns" else task.shape.kv_heads
    enough_s = search.whole_s(home) * (1 - PAYS / task.shape.kv_heads)
    for lender in members:
        for count in (units >> power for power in range(SHARES) if units >> power and lender != home):
            parts = tuple((units - count) * (at == home) + count * (at == lender) for at in members)
            layer = replace(whole, columns=parts) if what == "columns" else replace(whole, groups=parts)
            if search.seconds(layer) < enough_s:
                return True
    return False


def nominal_profile(shape: ModelShape, flops_s: Sequence[float], bytes_s: float, rtt_s: float = 0.0) -> Profile:
    """Devices 0, 1, … that compute so many operations a second whatever the sizes, on links of so many bytes a second:
    for maps, not for plans. A multiplication with its addition is two operations."""
    hidden, head, group = shape.hidden, shape.head_dim, shape.heads_per_group
    inner = 2 if shape.gated else 1
    operations = {
        "query": (2 * group * head * hidden, 2),
        "key_value": (4 * head * hidden, 2),
        "attend": (4 * group * head, 3),
        "output": (2 * group * head * hidden, 2),
        "up": (2 * inner * hidden, 2),
        "down": (2 * hidden, 2),
        "norm": (8 * hidden, 1),
        "embedding": (hidden, 1),
        "head": (2 * shape.outputs * hidden, 1),
    }
    devices = tuple(
        DeviceProfile(
            str(number),
            memory_bytes=1 << 62,
            disk_bytes=1 << 62,
            seconds={part: Table(((1,),) * axes, (count / speed,)) for part, (count, axes) in operations.items()},
        )
        for number, speed in enumerate(flops_s)
    )
    names = [device.name for device in devices]
    links = tuple(LinkProfile(one, two, bytes_s, rtt_s) for one in names for two in names if one != two)
    return Profile(VERSION, "nominal", "float32", devices, links)
