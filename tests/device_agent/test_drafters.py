"""Which drafters a device has: those named, or the best there is; files that do not fit, and names nobody knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import DEMO
from structlog.testing import capture_logs

from device_agent.build import build
from device_agent.chain.model_ends import DeviceParts
from device_agent.config import DeviceConfig
from device_agent.speculative.drafters import Drafters, load_drafters
from drafting.adapter_layer import adapter_shapes
from drafting.drafter_file import write_drafter
from drafting.errors import BadDrafter
from drafting.medusa import medusa_shapes
from split_model.checkpoint import Checkpoint
from split_model.slices import slice_parts, whole
from wire.errors import Code, SessionFailed

SPLIT = 2


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    """The demo model."""
    return Checkpoint.open(DEMO)


@pytest.fixture(scope="module")
def parts(checkpoint: Checkpoint) -> DeviceParts:
    """What a device holds of it."""
    return DeviceParts.load(checkpoint, SPLIT, 0, torch.float32)


@pytest.fixture
def load(checkpoint: Checkpoint, parts: DeviceParts, tmp_path: Path) -> Any:
    """Load drafters for the demo model from ``tmp_path``."""

    def load(*wanted: str) -> Drafters:
        return load_drafters(wanted, tmp_path, checkpoint, SPLIT, torch.float32, parts)

    return load


@pytest.fixture
def train(checkpoint: Checkpoint, tmp_path: Path) -> Any:
    """Write drafters' files of random numbers; the number of their parameters."""

    def train(*kinds: str, digest: str | None = None, split: int = SPLIT) -> int:
        parameters = 0
        for kind in kinds:
            shapes = medusa_shapes(checkpoint.spec) if kind == "medusa" else adapter_shapes(checkpoint.spec, kind)
            tensors = {name: 0.02 * torch.randn(shape) for name, shape in shapes.items()}
            path = tmp_path / f"{kind}.safetensors"
            write_drafter(path, kind, digest or checkpoint.digest(), split, {}, tensors)
            parameters += sum(tensor.numel() for tensor in tensors.values())
        return parameters

    return train


def warned(load: Any, wanted: Sequence[str] = ()) -> tuple[Drafters, list[Any]]:
    """The drafters, and the lines that were logged about them."""
    with capture_logs() as lines:
        return load(*wanted), lines


def test_without_a_trained_drafter_lookup_drafts(load: Any) -> None:
    """With one line that says why, and how to get a better one."""
    drafters, lines = warned(load)
    assert (drafters.default, drafters.names, drafters.parameters) == ("lookup", ["lookup", "none"], 0)
    assert drafters.get("") is drafters.get("lookup") is not None
    assert drafters.get("none") is None
    (line,) = lines
    assert (
        "no drafter was trained" in line["why"]
        and line["better"] == f"trilby distill --model {DEMO} --split 2 --text FILE"
    )


@pytest.mark.parametrize(("kinds", "kind"), [(["adapter"], "adapter"), (["fused", "adapter"], "fused")])
def test_with_one_a_hybrid_drafts(load: Any, train: Any, kinds: Any, kind: str) -> None:
    """Fused goes before adapter; what it is made of may be named too, and is in memory once."""
    train(*kinds)
    drafters, lines = warned(load)
    assert not lines
    assert drafters.names == ["hybrid", kind, "lookup", "none"] and drafters.default == "hybrid"
    inside, hybrid = drafters.get(kind), drafters.get("hybrid")
    assert inside is not None and hybrid is not None and inside.name == kind
    assert drafters.parameters == inside.parameters == hybrid.parameters


@pytest.mark.parametrize(
    ("misfit", "why"),
    [({"digest": "sha256:other"}, "sha256:other"), ({"split": 3}, "--split 3")],
    ids=["model", "split"],
)
def test_a_drafter_of_another_model_or_split_is_left_alone(load: Any, train: Any, misfit: Any, why: str) -> None:
    """The next one is taken, lookup at last with the reason; named, it is an error that says what to do."""
    train("fused", **misfit)
    drafters, (line,) = warned(load)
    assert drafters.default == "lookup" and why in line["why"]
    train("adapter")
    drafters, (line,) = warned(load)
    assert drafters.names == ["hybrid", "adapter", "lookup", "none"] and why in line["why"]
    for named in ("fused", "hybrid"):
        with pytest.raises(BadDrafter, match="trilby distill") as refused:
            load(named)
        assert why in str(refused.value)


def test_a_broken_file_is_left_alone(load: Any, train: Any, tmp_path: Path) -> None:
    """Cut short, or of a tensor that is not finite; named, it is an error."""
    train("adapter")
    path = tmp_path / "adapter.safetensors"
    sound = path.read_bytes()
    for broken in (sound[:-100], sound[:50], b"", sound[:-4] + b"\xff\xff\xff\x7f"):
        path.write_bytes(broken)
        drafters, (line,) = warned(load)
        assert drafters.default == "lookup" and "adapter.safetensors" in line["why"]
        with pytest.raises(BadDrafter, match=r"adapter\.safetensors"):
            load("adapter")


def test_what_is_named_is_loaded_in_that_order(load: Any, train: Any) -> None:
    """The first is the default; plain decoding is always there, and last unless it was named."""
    parameters = train("adapter", "fused", "medusa")
    drafters, lines = warned(load, ("medusa", "none", "adapter", "hybrid"))
    assert drafters.names == ["medusa", "none", "adapter", "hybrid", "fused", "lookup"] and not lines
    medusa = drafters.get("")
    assert medusa is not None and (medusa.name, medusa.tree_nodes) == ("medusa", 8)
    assert drafters.parameters == parameters
    assert load("none").names == ["none"] and load("none").get("") is None
    assert load("none", "lookup").get("") is None and load("none", "lookup").get("lookup") is not None


def test_a_small_model_is_known_by_its_name(load: Any) -> None:
    """Never by its path, which is nobody's business."""
    drafters = load(str(DEMO), "lookup")
    assert drafters.names == ["trilby-demo", "lookup", "none"] and drafters.default == "trilby-demo"
    assert drafters.get("trilby-demo").parameters > 0


@pytest.mark.parametrize("named", ["adapter", "fused", "medusa", "hybrid", "hybird", "./nothing/here"])
def test_what_is_named_must_be_there(load: Any, named: str) -> None:
    """An error that names it, never something else instead."""
    with pytest.raises(BadDrafter, match="fused" if named == "hybrid" else named.strip("./")):
        load(named)


def test_names_are_distinct(load: Any, tmp_path: Path) -> None:
    """Twice the same, or a model that is called like a drafter."""
    with pytest.raises(BadDrafter, match="two drafters"):
        load("lookup", "lookup")
    (tmp_path / "lookup").mkdir()
    with pytest.raises(BadDrafter, match="rename"):
        load(str(tmp_path / "lookup"))


def test_a_request_that_names_what_is_not_there(load: Any) -> None:
    """Is told what there is, under the field's name, and its own name is not shown back at length."""
    with pytest.raises(SessionFailed) as refused:
        load("lookup").get("x" * 500)
    assert (refused.value.code, refused.value.param) == (Code.INVALID_REQUEST, "draft")
    assert refused.value.message.endswith("one of: lookup, none") and len(refused.value.message) < 200


def test_a_model_that_is_not_whole_cannot_be_compared(train: Any, parts: DeviceParts, tmp_path: Path) -> None:
    """A device may have fetched its own layers' files only: then lookup drafts, and the reason is told."""
    train("fused")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes((DEMO / "config.json").read_bytes())
    names = [part.name for part in slice_parts(parts.spec, whole(parts.spec))]
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    partial = Checkpoint.open(folder)
    with capture_logs() as lines:
        drafters = load_drafters((), tmp_path, partial, SPLIT, torch.float32, parts)
    assert drafters.default == "lookup" and "cannot be compared" in lines[0]["why"]


@pytest.mark.parametrize(
    ("settings", "drafts", "front", "middle"),
    [
        ({"mode": "hat"}, None, 2, True),
        ({"mode": "hat", "draft": ("none", "lookup")}, ["none", "lookup"], 2, True),
        ({"mode": "ushape"}, ["none"], 2, True),
        ({"mode": "u-medusa"}, ["medusa", "none"], 2, True),
        ({"mode": "u-small", "draft": (str(DEMO),)}, ["trilby-demo", "none"], 2, True),
        ({"mode": "cloud"}, ["none"], 0, True),
        ({"mode": "local"}, ["none"], None, False),
        ({"mode": "local", "draft": ("lookup",)}, ["lookup", "none"], 2, True),
    ],
)
async def test_the_mode_decides_what_is_held_and_told(settings: Any, drafts: Any, front: Any, middle: bool) -> None:
    """All layers in one stack only where nothing is drafted; the gateway hears which drafters there are."""
    device = build(DeviceConfig(model=str(DEMO), gateway="ws://127.0.0.1:9", **settings))
    told = device.agent._hello.models[0].drafts
    assert told == drafts if drafts is not None else told[-2:] == ["lookup", "none"]
    layers = device.parts.spec.num_layers
    assert len(device.parts.front.blocks) == (layers if front is None else front)
    assert (device.writer.chain.middle is not None) is middle
    assert (device.remote is None) is (settings["mode"] == "local")


def test_a_folder_for_drafters_that_is_not_there_is_said(tmp_path: Path) -> None:
    """Whoever names one means it."""
    with pytest.raises(ValueError, match="no such folder"):
        build(DeviceConfig(model=str(DEMO), mode="local", drafters=str(tmp_path / "none")))


def test_a_small_model_is_wanted() -> None:
    """The mode that drafts with one does not take another drafter for it."""
    with pytest.raises(ValueError, match="drafts with a small model, and lookup is none"):
        build(DeviceConfig(model=str(DEMO), mode="u-small", draft=("lookup",)))
