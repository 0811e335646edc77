"""What a member keeps in memory from one plan to the next."""

from __future__ import annotations

from pathlib import Path

import pytest
from groups import plan_of

from device_agent.group.kept import KeptLayers
from split_model.blocks import Block
from split_model.checkpoint import Checkpoint


def load(
    kept: KeptLayers, checkpoint: Checkpoint, form: str, members: int, place: int, digest: str = "d"
) -> list[Block]:
    """Load a plan's part; the blocks of its layers, which are alike only where they are the same."""
    plan = plan_of(checkpoint.spec, form, [str(each) for each in range(members)])
    held = kept.load(checkpoint, digest, "float32", plan.layers, 0, place)
    return [block for each in held for block in each.blocks]


def test_layers_that_both_plans_have_are_kept(tiny: Path) -> None:
    """The same blocks, not read again; the others are forgotten, and new ones read."""
    checkpoint, kept = Checkpoint.open(tiny), KeptLayers()
    four = load(kept, checkpoint, "pipeline", 1, 0)
    whole = kept.loaded_bytes("d", "float32")
    assert len(four) == 4 and kept.reused == 0
    two = load(kept, checkpoint, "pipeline", 2, 1)
    assert two == four[2:] and kept.reused == 2 and kept.loaded_bytes("d", "float32") == whole // 2
    again = load(kept, checkpoint, "pipeline", 1, 0)
    assert again[2:] == two and kept.reused == 2
    assert kept.loaded_bytes("another", "float32") == 0
    other = load(kept, checkpoint, "pipeline", 1, 0, "another")
    assert not set(other) & set(again) and kept.reused == 0


@pytest.mark.parametrize(("before", "after"), [("tensor", "voltage-keys-values"), ("voltage-one-steps", "pipeline")])
def test_what_is_held_otherwise_is_read_again(before: str, after: str, tiny: Path) -> None:
    """Other pieces of a layer, or Q apart from K and V."""
    checkpoint, kept = Checkpoint.open(tiny), KeptLayers()
    load(kept, checkpoint, before, 2, 0)
    load(kept, checkpoint, after, 2, 0)
    assert kept.reused == 0
    load(kept, checkpoint, after, 2, 0)
    assert kept.reused > 0
