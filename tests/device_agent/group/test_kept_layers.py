"""What a member keeps in memory from one plan to the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from groups import plan_of, streamed

from device_agent.group.holding.kept_layers import KeptLayers
from device_agent.group.holding.streaming import Streaming
from device_agent.planning.plan import GroupPlan
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


def test_what_is_streamed_from_plan_to_plan(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plan keeps its loader and its layers; one that streams more lets go of what it streams and keeps the
    rest; one that streams less reads again what is to stay; and nothing is streamed where nobody says so."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checkpoint, kept = Checkpoint.open(tiny), KeptLayers()
    spec = checkpoint.spec
    plain = plan_of(spec, "pipeline", ["one"])

    def load_streamed(share: int) -> list[Block]:
        plan = streamed(plain, spec, share) if share else plain
        streaming = Streaming.of(plan, 0, 0, spec, "float32")
        held = kept.load(checkpoint, "d", "float32", plan.layers, 0, 0, streaming=streaming)
        return [each.block for each in held]

    resident = load_streamed(0)
    whole = kept.loaded_bytes("d", "float32")
    assert kept.loader is None
    half = load_streamed(2)
    loader = kept.loader
    assert half == resident and kept.reused == 4 and loader is not None
    assert sum(each.loaded_bytes for each in half) < whole
    assert load_streamed(2) == half and kept.loader is loader
    everything = load_streamed(1)
    assert everything == half and kept.loader is not loader
    again = load_streamed(2)
    assert not set(again) & set(everything) and kept.reused == 0
    load_streamed(0)
    assert kept.loader is None and kept.loaded_bytes("d", "float32") == whole
    kept.close()
    assert kept.loaded_bytes("d", "float32") == 0


def test_a_plan_that_cannot_be_loaded_spoils_nothing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end comes while files are made: what the loader before it lent is loaded anew for the next plan."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checkpoint, kept = Checkpoint.open(tiny), KeptLayers()
    spec = checkpoint.spec
    plain = plan_of(spec, "pipeline", ["one"])

    def load_streamed(plan: GroupPlan, check: Callable[[], object] = lambda: None) -> None:
        streaming = Streaming.of(plan, 0, 0, spec, "float32")
        kept.load(checkpoint, "d", "float32", plan.layers, 0, 0, check, streaming)

    load_streamed(plain)
    whole = kept.loaded_bytes("d", "float32")
    load_streamed(streamed(plain, spec, 2))

    def ended() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_streamed(streamed(plain, spec, 1), ended)
    load_streamed(plain)
    assert kept.loaded_bytes("d", "float32") == whole
    kept.close()
