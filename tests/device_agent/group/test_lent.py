"""Lent heads and columns are computed while their home computes its own, and no byte more travels than is planned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from group_plans import profile
from peers_together import fabrics, together
from tiny_models import built

from device_agent.group.holding.held import HeldLayer, LentHeads
from device_agent.group.holding.pieces import cache_bytes, weight_bytes
from device_agent.group.messages.heads import ReadHead
from device_agent.group.steps.worker import Worker
from device_agent.planning.plan import GroupPlan, Layer, Lent, Whole
from device_agent.planning.shape import ModelShape
from device_agent.planning.timeline import ForwardPass, predict
from peers.collectives import Collectives
from split_model.blocks import Block
from split_model.checkpoint import Checkpoint
from split_model.pruning.block import PrunedBlock
from split_model.pruning.kept import KeptHeads
from split_model.residence import Blocks
from split_model.sequences import Sequences
from split_model.slices import Slice
from split_model.stack import Stack

ROWS = 100
WITHIN_S = 30.0
ATTENTION = Lent(0, (1, 2, 1), (44, 0, 0))
PROJECTIONS = Lent(0, (1, 3, 0), (20, 4, 20), projections=True)
ALL_LENT = Lent(0, (0, 4, 0), (0, 0, 44))

Change = Callable[[list[HeldLayer]], None]


def read(
    path: Path, layers: Sequence[Layer], change: Change = lambda _: None, hidden: torch.Tensor | None = None
) -> tuple[list[dict[str, int]], torch.Tensor]:
    """One text through three members, of which the first is the portal and the home of all layers; what each holds of
    the first layer may be changed before. The bytes that each has sent for each layer, and the outputs."""
    checkpoint, outputs = Checkpoint.open(path, None), list[torch.Tensor | None]()
    given = torch.randn(ROWS, checkpoint.spec.hidden_size) if hidden is None else hidden
    held = [
        [HeldLayer.load(checkpoint, layer, number, place, torch.float32) for number, layer in enumerate(layers)]
        for place in range(3)
    ]
    first = [each[0] for each in held]
    change(first)

    def work(links: Any, place: int) -> None:
        mine = [first[place], *held[place][1:]]
        worker = Worker(checkpoint.spec, mine, torch.float32, Collectives(links), (0, 1, 2), place)
        outputs.append(worker.do(ReadHead((ROWS,)), None if place else given))

    with fabrics(3) as links:
        together([partial(work, links[place], place) for place in range(3)], 2 * WITHIN_S)
        counted = [each.counts.by_label().items() for each in links]
    [found] = [each for each in outputs if each is not None]
    return [{label: found.sent for (label, _), found in each if found.sent} for each in counted], found


@pytest.fixture
def path(tiny_folder: Path) -> Path:
    return built("bert", tiny_folder)


def waiting(call: Callable[..., Any], event: threading.Event) -> Callable[..., Any]:
    """The same call, which is not made before the event."""

    def wrapped(*given: Any) -> Any:
        assert event.wait(WITHIN_S), "who was lent something has not computed it"
        return call(*given)

    return wrapped


class Noticed:
    """Lent heads that set an event once somebody attends with them."""

    def __init__(self, heads: LentHeads, event: threading.Event) -> None:
        self.heads, self.kv_heads, self.head_dim = heads.heads, heads.kv_heads, heads.head_dim
        self._window, self._event = heads.window, event

    @property
    def window(self) -> int | None:
        """Asked for when their attention begins."""
        self._event.set()
        return self._window


def test_lent_heads_leave_before_the_home_computes_its_own(path: Path) -> None:
    """Both lenders attend before the home projects, and so before it attends with, what it keeps."""
    begun = [threading.Event(), threading.Event()]

    def change(held: list[HeldLayer]) -> None:
        for place, event in enumerate(begun, 1):
            heads = held[place].heads
            assert heads is not None
            held[place] = replace(held[place], heads=Noticed(heads, event))  # type: ignore[arg-type]
        own = held[0].block
        own.qkv = waiting(waiting(own.qkv, begun[0]), begun[1])  # type: ignore[assignment]

    read(path, [ATTENTION], change)


@pytest.mark.parametrize("part", ["qkv", "mlp"])
def test_rows_leave_before_the_home_multiplies_them(part: str, path: Path) -> None:
    """Where projections and columns are lent, a lender has multiplied before the home begins."""
    multiplied = threading.Event()

    def change(held: list[HeldLayer]) -> None:
        lent, own, call = held[1].block, held[0].block, getattr(held[1].block, part)

        def noticed(*given: Any) -> Any:
            multiplied.set()
            return call(*given)

        setattr(lent, part, noticed)
        setattr(own, part, waiting(getattr(own, part), multiplied))

    read(path, [PROJECTIONS], change)


def test_what_travels_is_what_was_planned(path: Path) -> None:
    """Of each layer every member sends as many bytes as the plan counts; who is lent nothing sends nothing."""
    layers = [ATTENTION, PROJECTIONS, ALL_LENT, Lent(0, (4, 0, 0), (44, 0, 0))]
    shape = ModelShape.of(Checkpoint.open(path, None).spec, "float32")
    plan = GroupPlan("edgeformer", ("a", "b", "c"), "a", tuple(layers))
    planned = predict(shape, profile(shape, [1e9] * 3, 1e8), plan, ForwardPass(ROWS, wanted=ROWS)).sent
    sent, _ = read(path, layers)
    found = [[each.get(f"layer {number}", 0) for each in sent] for number in range(len(layers))]
    assert found == [list(each) for each in planned]
    assert found[0][1] and not any(found[3])


def test_who_lends_attention_alone_lends_no_weights(path: Path) -> None:
    """Lenders hold the keys and values of their heads alone, and the home those of all where it computes steps; the
    home has all weights. Where projections are lent each has its share of them, the home too. A model that only reads
    keeps none."""
    checkpoint = Checkpoint.open(path, None)
    spec = checkpoint.spec
    whole = weight_bytes([Whole(0)], 0, 0, spec, "float32")
    for layer, kept in ((ATTENTION, [1, 2, 1]), (replace(ATTENTION, few_rows=1), [4, 2, 1]), (PROJECTIONS, [1, 3, 0])):
        weights = [weight_bytes([layer], 0, place, spec, "float32") for place in range(3)]
        if layer.projections:
            assert weights[0] < whole and all(weights)
        else:
            assert weights == [whole, 0, 0]
        writes = replace(spec, attention="causal")
        positions = [cache_bytes([layer], place, writes, 10, 4) / (2 * spec.head_dim * 10 * 4) for place in range(3)]
        assert positions == kept and not any(cache_bytes([layer], place, spec, 10, 4) for place in range(3))


@pytest.mark.parametrize("layer", [ATTENTION, PROJECTIONS, replace(ATTENTION, few_rows=ROWS)], ids=["q", "p", "home"])
def test_heads_may_be_left_out(layer: Lent, path: Path) -> None:
    """Any set, one of them all of a lender's: with narrower blocks the layer gives what it gives in one process."""
    checkpoint = Checkpoint.open(path, None)
    kept, spec = (0, 1), checkpoint.spec
    whole = Block(checkpoint, 0, torch.float32)
    pruned = PrunedBlock(whole, checkpoint, 0, KeptHeads(kept, 4, 1))

    def narrow(held: list[HeldLayer]) -> None:
        for place, each in enumerate(held):
            pieces = iter(piece.groups for piece in each.pieces if piece.weights)
            blocks = [
                PrunedBlock(block, checkpoint, 0, KeptHeads(_inside(kept, groups), len(groups), 1), groups.start)
                if groups
                else block
                for block, groups in zip(each.blocks, pieces, strict=True)
            ]
            left = _inside(kept, each.pieces[0].groups)
            heads = each.heads and replace(each.heads, heads=len(left), kv_heads=len(left))
            held[place] = replace(each, blocks=tuple(blocks), heads=heads)

    hidden = torch.randn(ROWS, spec.hidden_size)
    stack = Stack(spec, Slice(0, 1), Blocks([pruned]), torch.float32)
    wanted = stack.run(hidden, Sequences([ROWS]))
    _, found = read(path, [layer], narrow, hidden)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def _inside(heads: Sequence[int], groups: range) -> tuple[int, ...]:
    """Of some groups the heads that are kept, numbered from their first."""
    return tuple(head - groups.start for head in heads if head in groups)
