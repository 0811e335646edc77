"""A profile in words and tables, for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from device_agent.planning.baselines import plan_local
from device_agent.planning.describe import lined_up, seconds_text
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.profile import AXES, DeviceProfile, Profile
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work

SHOWN_ROWS = (1, 16, 128, 512)
"""For which a layer's parts are shown."""


def profile_words(profile: Profile, shape: ModelShape, most_rows: int) -> str:
    """Lines of plain text.

    most_rows: how many the model takes at most.
    """
    rows = [row for row in SHOWN_ROWS if row <= most_rows] or [most_rows]
    lines = []
    for device in profile.devices:
        lines += [
            _device(device),
            *lined_up(_parts(device, shape, rows)),
            *_alone(profile, shape, device, rows[-1]),
            "",
        ]
    if profile.links:
        lines += [*lined_up(_links(profile)), ""]
    if profile.collectives:
        lines += [*lined_up(_collectives(profile)), ""]
        lines += [f"up to {profile.one_shot_bytes} bytes all send to all at once, more goes round a ring", ""]
    return "\n".join(lines)


def _device(device: DeviceProfile) -> str:
    cost = f"a MB moved costs products {device.byte_cost_s * 1e9:.1f} ms"
    disk = f"disk {device.disk_bytes / 1e9:.1f} GB"
    if device.read_bytes_s:
        disk += f", read at {device.read_bytes_s / 1e6:.0f} MB/s"
    return f"{device.name}: memory {device.memory_bytes / 1e9:.1f} GB, {disk}; {cost}"


def _parts(device: DeviceProfile, shape: ModelShape, rows: Sequence[int]) -> Iterable[Sequence[str]]:
    yield "milliseconds of a layer", *(f"{row} rows" if row > 1 else "1 row" for row in rows)
    for part, axes in AXES.items():
        if part in device.seconds:
            full = {"groups": shape.kv_heads, "columns": shape.intermediate}
            yield (
                part,
                *(_ms(device.seconds[part](*({**full, "rows": r, "positions": r}[a] for a in axes))) for r in rows),
            )


def _alone(profile: Profile, shape: ModelShape, device: DeviceProfile, rows: int) -> Iterable[str]:
    """What the whole model would take here."""
    generates = shape.causal or shape.cross_layers
    task = Task(shape, profile, (device.name,), device.name, Work(rows, 1) if generates else Work(rows, 0, rows))
    try:
        plan = plan_local(task)
    except DoesNotFit as error:
        yield f"alone: {error}"
        return
    step = f", each new token {seconds_text(task.step(plan).seconds)}" if generates else ""
    yield f"alone: prompt of {rows} rows {seconds_text(task.prefill(plan).seconds)}{step}"


def _links(profile: Profile) -> Iterable[Sequence[str]]:
    yield "from", "to", "Mb/s", "round trip, ms"
    for link in profile.links:
        yield link.source, link.target, f"{link.bytes_s * 8 / 1e6:.0f}", _ms(link.rtt_s)


def _collectives(profile: Profile) -> Iterable[Sequence[str]]:
    sizes = sorted({size for each in profile.collectives for size in each.seconds.axes[0]})
    yield "milliseconds, all devices", *(f"{size / 1024:.0f} KiB" for size in sizes)
    for each in profile.collectives:
        yield each.kind.replace("_", "-"), *(_ms(each.seconds(size)) for size in sizes)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"
