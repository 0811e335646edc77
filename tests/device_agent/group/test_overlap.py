"""Tiles are used, and leave, before the others are there: each test would wait for ever if they were not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peers_together import fabrics, together
from tiny_models import built

from device_agent.group.holding.held import HeldLayer
from device_agent.group.messages.heads import ReadHead
from device_agent.group.rows.layout import parted
from device_agent.group.rows.sending import Tag, send_entry
from device_agent.group.steps.worker import Worker
from device_agent.planning.plan import ByRows, Hybrid, Layer, Whole
from peers.collectives import Collectives
from split_model.checkpoint import Checkpoint

ROWS = 320
"""More than goes in one shot."""
WITHIN_S = 30.0
EVEN = (1.0, 1.0)


def after(call: Callable[..., Any], event: threading.Event, times: int = 1) -> Callable[..., Any]:
    """The same call, which sets the event when it has been made so often."""
    left = [times]

    def wrapped(*given: Any) -> Any:
        found = call(*given)
        left[0] -= 1
        if not left[0]:
            event.set()
        return found

    return wrapped


def waiting(call: Callable[..., Any], event: threading.Event, times: int = 1) -> Callable[..., Any]:
    """The same call, which the so-manieth time is not made before the event."""
    left = [times]

    def wrapped(*given: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            assert event.wait(WITHIN_S), "what should have been computed meanwhile was not"
        return call(*given)

    return wrapped


def read(path: Path, layers: Sequence[Layer], change: Callable[[list[HeldLayer], list[HeldLayer]], None]) -> None:
    """One text through two members, whose layers are changed before."""
    checkpoint = Checkpoint.open(path, None)
    hidden = torch.randn(ROWS, checkpoint.spec.hidden_size)
    held = [
        [HeldLayer.load(checkpoint, layer, number, place, torch.float32) for number, layer in enumerate(layers)]
        for place in range(2)
    ]
    change(held[0], held[1])

    def work(links: Any, place: int) -> None:
        collectives = Collectives(links, (0, 1))
        worker = Worker(checkpoint.spec, held[place], torch.float32, collectives, (0, 1), place)
        if place == 0:
            send_entry(collectives, hidden, parted(ROWS, EVEN), (0, 1), 0)
        worker.do(ReadHead((ROWS,)), None if place else hidden)
        if place == 0:
            collectives.receive(torch.empty(ROWS // 2, hidden.shape[1]), 1, Tag.RESULT).wait()

    with fabrics(2) as links:
        together([partial(work, links[place], place) for place in range(2)], 2 * WITHIN_S)


@pytest.fixture
def path(tiny_folder: Path) -> Path:
    return built("bert", tiny_folder)


@pytest.mark.parametrize("part", ["qkv", "mlp_inner"])
def test_a_tile_is_multiplied_while_the_other_is_on_its_way(part: str, path: Path) -> None:
    """One member's product of its own rows comes before the other has sent its own."""
    multiplied = threading.Event()
    before = {"qkv": "input_norm", "mlp_inner": "mlp_norm"}[part]

    def change(one: list[HeldLayer], other: list[HeldLayer]) -> None:
        setattr(one[0].block, part, after(getattr(one[0].block, part), multiplied))
        setattr(other[0].block, before, waiting(getattr(other[0].block, before), multiplied))

    read(path, [Hybrid((2, 2), (22, 22), EVEN)], change)


@pytest.mark.parametrize("part", ["attention_output", "mlp_output"])
def test_a_sum_leaves_before_the_next_is_multiplied(part: str, path: Path) -> None:
    """One member's product of its own rows waits until the other has used what it was sent."""
    used = threading.Event()
    behind = {"attention_output": "after_attention", "mlp_output": "after_mlp"}[part]

    def change(one: list[HeldLayer], other: list[HeldLayer]) -> None:
        setattr(one[0].block, part, waiting(getattr(one[0].block, part), used, times=2))
        setattr(other[0].block, behind, after(getattr(other[0].block, behind), used))

    read(path, [Hybrid((2, 2), (22, 22), EVEN)], change)


def test_keys_and_values_are_projected_tile_by_tile(path: Path) -> None:
    """Voltage: one member projects its own rows before the other has sent its own."""
    projected = threading.Event()

    def change(one: list[HeldLayer], other: list[HeldLayer]) -> None:
        one[0].block.qkv.key_value = after(one[0].block.qkv.key_value, projected)  # type: ignore[method-assign]
        other[0].block.input_norm = waiting(other[0].block.input_norm, projected)  # type: ignore[assignment]

    read(path, [ByRows(EVEN, Whole(0))], change)


def test_the_first_rows_leave_while_the_last_are_in_the_mlp(path: Path) -> None:
    """One member's second piece waits until the other has projected its first for the next layer."""
    used = threading.Event()

    def change(one: list[HeldLayer], other: list[HeldLayer]) -> None:
        one[0].block.mlp = waiting(one[0].block.mlp, used, times=2)  # type: ignore[method-assign]
        project, seen = other[1].block.qkv.key_value, [0]

        def projected(rows: torch.Tensor, *turned: Any) -> Any:
            found = project(rows, *turned)
            seen[0] += len(rows)
            if seen[0] > ROWS // 2:  # More than its own.
                used.set()
            return found

        other[1].block.qkv.key_value = projected  # type: ignore[method-assign, assignment]

    read(path, [ByRows(EVEN, Whole(0), pieces=2)] * 2, change)
