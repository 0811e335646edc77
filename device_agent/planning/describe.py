"""A plan in words, in a table, and as bars: who holds what, what it takes, and what bounds it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec.structs import replace as changed

from device_agent.planning.block_ways import block_ways
from device_agent.planning.edgeformer import MODE as EDGEFORMER
from device_agent.planning.lending_map import pays_from
from device_agent.planning.modes import SAME
from device_agent.planning.orders import orders
from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Layer, Lent, Sharded, Whole
from device_agent.planning.shares import handed_out
from device_agent.planning.streaming_words import member_lines, step_drawing, steps_are_played, streaming_lines
from device_agent.planning.task import Task
from device_agent.planning.timeline import ForwardPass, Prediction, predict
from device_agent.planning.transfers import transfer_words

BAR = 32
"""Characters of a full bar."""

FREE_BYTES_S = 1e18
"""A link that takes no time."""

COMPUTING = 0.75
"""Computing bounds a forward that would take this share of its time with free links; else links do."""


def description(task: Task, plan: GroupPlan, fewer: GroupPlan | None = None) -> str:
    """Some lines of plain text about a plan for a task.

    fewer: a plan with fewer devices that is faster or as fast (`modes.fewer_devices`).
    """
    lines = [f"{plan.mode}: {_count(len(plan.members), 'device')}, portal {plan.portal}", ""]
    lines += lined_up(_members(task, plan))
    lines += ["", *_layers(plan), ""]
    lines.append(f"prompt of {_count(task.work.rows, 'row')}: {_bounded(task, plan, task.work.prefill)}")
    if task.work.new:
        lines.append(f"each new token: {_bounded(task, plan, task.work.step)}")
    if len(plan.considered) > 1:
        ways = [f"{name} {seconds_text(seconds)}" for name, seconds in plan.considered]
        lines += ["", f"chosen: {ways[0]} for all the work; others: {', '.join(ways[1:])}"]
        lines += [*_block_lines(task), *_lending_lines(task, plan)] if plan.mode == EDGEFORMER else []
    lines += _order_lines(task, plan)
    if steps_are_played(task, plan):
        lines += ["", *streaming_lines(task, plan)]
    elif plan.streams and task.shape.cross_layers:
        lines += ["", *member_lines(task, plan)]
    if plan.transfers:
        lines.append(transfer_words(plan))
    if fewer is not None:
        takes = seconds_text(task.prefill(fewer).seconds)
        takes += f", each new token {seconds_text(task.step(fewer).seconds)}" if task.work.new else ""
        would = "be faster" if task.seconds(fewer) < task.seconds(plan) * (1 - SAME) else "do as well"
        lines += ["", f"fewer devices would {would}: {fewer.mode} on {', '.join(fewer.members)}: prompt {takes}"]
    return "\n".join(lines) + "\n"


def drawing(task: Task, plan: GroupPlan) -> str:
    """Bars for each device: how much of the prompt's time it computes, and how much of its memory is taken."""
    found, held = task.prefill(plan), task.held(plan)
    budgets = {device.name: device.memory_bytes for device in task.profile.devices}
    width = max(map(len, held))
    lines = []
    for node, (name, of) in enumerate(held.items()):
        busy = found.busy[node]
        took = f"{seconds_text(busy)} of {seconds_text(found.seconds)}"
        lines.append(f"{name:<{width}}  computes {_bar(busy, found.seconds)} {took}")
        lines.append(f"{'':<{width}}  memory   {_bar(of.total, budgets[name])} {_megabytes(of.total, budgets[name])}")
    if steps_are_played(task, plan):
        lines += ["", step_drawing(task, plan).rstrip()]
    return "\n".join(lines) + "\n"


def bound_by(task: Task, plan: GroupPlan, forward: ForwardPass) -> tuple[Prediction, str]:
    """What a forward takes, and what most of it is: the links, disks, or computing at some device."""
    found = predict(task.shape, task.profile, plan, forward)
    links = tuple(changed(link, bytes_s=FREE_BYTES_S, rtt_s=0.0) for link in task.profile.links)
    free = predict(task.shape, changed(task.profile, links=links, collectives=()), plan, forward)
    if free.seconds < COMPUTING * found.seconds:
        return found, f"bound by links: {seconds_text(free.seconds)} without them"
    names = list(dict.fromkeys([*plan.members, plan.portal]))
    if plan.streams:
        disks = tuple(changed(device, read_bytes_s=FREE_BYTES_S, decoding=None) for device in task.profile.devices)
        kept = predict(task.shape, changed(task.profile, devices=disks), plan, forward)
        if kept.seconds < COMPUTING * found.seconds:
            return found, f"bound by disks: {seconds_text(kept.seconds)} without them"
    return found, f"bound by computing at {names[found.busy.index(max(found.busy))]}"


def _members(task: Task, plan: GroupPlan) -> Iterable[Sequence[str]]:
    yield "device", "heads", "columns", "rows", "layers", "sends", "memory"
    sent = [sum(row) / 1e6 for row in zip(*task.prefill(plan).sent, strict=True)]
    budgets = {device.name: device.memory_bytes for device in task.profile.devices}
    for node, (name, of) in enumerate(task.held(plan).items()):
        sends = f"{sent[node]:.1f} MB"
        memory = _megabytes(of.total, budgets[name])
        if name not in plan.members:
            yield name, "-", "-", "-", "0", sends, memory
            continue
        parts = [_part(task, layer, plan.members.index(name)) for layer in plan.layers]
        held = [part for part in parts if part is not None]
        columns = [_range([part[at] for part in held]) for at in range(3)]
        yield name, *columns, str(len(held)), sends, memory


def _part(task: Task, layer: Layer, member: int) -> tuple[int, int, int] | None:
    """Heads, columns and rows of the prompt that a member computes of a layer."""
    shape, rows = task.shape, task.work.rows
    everything = (shape.heads, shape.intermediate)
    if isinstance(layer, Whole):
        return (*everything, rows) if layer.member == member else None
    if isinstance(layer, ByRows):
        return (*everything, handed_out(rows, layer.rows)[member])
    heads = layer.groups[member] * shape.heads_per_group
    if isinstance(layer, Lent):
        return (heads, layer.columns[member], rows) if heads or layer.columns[member] else None
    if isinstance(layer, Sharded):
        return heads, layer.columns[member], rows
    columns = shape.intermediate if layer.mlp_by_rows else layer.columns[member]
    return heads, columns, handed_out(rows, layer.rows)[member]


def _layers(plan: GroupPlan) -> Iterable[str]:
    """Each run of layers that are computed alike; where members come several times, each member's layers."""
    wholes = [layer.member for layer in plan.layers if isinstance(layer, Whole)]
    if len(wholes) == len(plan.layers) and len(list(groupby(wholes))) > len(set(wholes)):
        for member, name in enumerate(plan.members):
            own = ", ".join(str(number) for number, of in enumerate(wholes) if of == member)
            yield f"layers {own}: whole, at {name}"
        return
    number = 0
    for words, run in groupby(_words(plan, layer) for layer in plan.layers):
        last = number + len(list(run)) - 1
        yield f"layer {number}: {words}" if last == number else f"layers {number} to {last}: {words}"
        number = last + 1


def _words(plan: GroupPlan, layer: Layer) -> str:
    if isinstance(layer, Whole):
        return f"whole, at {plan.members[layer.member]}"
    if isinstance(layer, Sharded):
        return "by heads and columns, two all-reduces"
    if isinstance(layer, Lent):
        return _lent_words(plan, layer)
    apart = "" if layer.overlap else ", nothing overlapped"
    if isinstance(layer, Hybrid):
        mlp = "MLP by rows (Scheme-2)" if layer.mlp_by_rows else "MLP by columns (Scheme-1)"
        return f"attention by heads, {mlp}{apart}"
    what = "keys and values" if layer.keys_values else "hidden states"
    whom = "those before them" if layer.prefix else "all"
    eq_8 = [plan.members[member] for member, reordered in enumerate(layer.reordered) if reordered]
    return f"by rows, members get {what} of {whom}{apart}" + (f", Eq. 8 at {', '.join(eq_8)}" if eq_8 else "")


def _lent_words(plan: GroupPlan, layer: Lent) -> str:
    heads = "groups of heads with their projections" if layer.projections else "groups of heads"
    said = []
    for what, units in ((heads, layer.groups), ("columns", layer.columns)):
        lent = [f"{count} to {plan.members[at]}" for at, count in enumerate(units) if count and at != layer.home]
        if lent:
            said.append(f"lends of {sum(units)} {what} {', '.join(lent)}")
    return "; ".join([f"at {plan.members[layer.home]}", *said])


def _block_lines(task: Task) -> Iterable[str]:
    """EdgeFormer's allocation of whole blocks, the paper's beside ours."""
    for way in block_ways(task):
        runs = ", ".join(f"{count} at {name}" for name, count in way.runs)
        yield f"blocks by {way.name}: {runs}: {seconds_text(way.seconds)} for all the work"


def _lending_lines(task: Task, plan: GroupPlan) -> Iterable[str]:
    """From how many rows on anything is worth lending, at the member that has the first layer's rows or the text."""
    first = plan.layers[0]
    home = plan.members[first.home] if isinstance(first, Lent) else task.portal
    if home not in task.members or task.shape.cross_layers:
        return
    for what, rows in pays_from(task, task.members.index(home)).items():
        yield f"lending {what} at {home} pays " + ("on no prompt" if rows is None else f"from {_count(rows, 'row')} on")


def _order_lines(task: Task, plan: GroupPlan) -> Iterable[str]:
    """Theorem 2's count and the profile's seconds side by side, where rows are shared and hidden states gathered."""
    layer = plan.layers[len(plan.layers) // 2]
    if not isinstance(layer, ByRows) or layer.keys_values or len(plan.members) < 2:
        return
    yield ""
    yield from lined_up(_orders(task, plan, layer))


def _orders(task: Task, plan: GroupPlan, layer: ByRows) -> Iterable[Sequence[str]]:
    parts = handed_out(task.work.rows, layer.rows)
    yield "attention", "Gamma Eq. 3", "Gamma Eq. 8", "seconds Eq. 3", "seconds Eq. 8", "taken"
    found = orders(task.shape, task.costs(plan.members), parts, one_shot=not task.work.new)
    for name, order in zip(plan.members, found, strict=True):
        measured = "-" if order.reordered_s is None else seconds_text(order.reordered_s)
        taken = "Eq. 8" if order.reordered else "Eq. 3" if order.allowed else "Eq. 3 (Eq. 8 is not allowed)"
        counted = f"{order.gamma_projected:.4g}", f"{order.gamma_reordered:.4g}"
        yield name, *counted, seconds_text(order.projected_s), measured, taken


def _bounded(task: Task, plan: GroupPlan, forward: ForwardPass) -> str:
    found, why = bound_by(task, plan, forward)
    return f"{seconds_text(found.seconds)}, {why}"


def lined_up(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table, its first row the heads of its columns."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return [line.rstrip() for line in lines]


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return "-"
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _bar(part: float, whole: float) -> str:
    filled = round(BAR * min(part / whole, 1.0)) if whole else 0
    return "#" * filled + "." * (BAR - filled)


def seconds_text(seconds: float) -> str:
    """As people read it."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def _megabytes(part: int, whole: int) -> str:
    return f"{part / 1e6:.0f} of {whole / 1e6:.0f} MB"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
