"""Drafter files: what is written is read back, and whatever does not fit is refused with a word on what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_drafters import DIGEST, SPLIT, adapter_weights, medusa_weights, random_head, tiny_spec

from drafting.adapter import AdapterDrafter
from drafting.drafter_file import read_drafter, write_drafter
from drafting.errors import BadDrafter
from drafting.medusa import MedusaDrafter

SPEC = tiny_spec()
CARD = {"tau": 2.5, "data": ["a", "ü"], "steps": 300}


def written(folder: Path, **changes: Any) -> Path:
    """A sound file of kind ``fused`` but for the changes."""
    fields: dict[str, Any] = {"kind": "fused", "digest": DIGEST, "split": SPLIT, "card": CARD}
    fields["tensors"] = adapter_weights(SPEC, "fused")
    path = folder / "drafters" / "fused.safetensors"
    write_drafter(path, **{**fields, **changes})
    return path


def load(path: Path, kind: str = "fused", digest: str = DIGEST, split: int = SPLIT) -> AdapterDrafter:
    return AdapterDrafter.load(path, SPEC, digest, split, torch.float32, random_head(SPEC), kind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_is_read_back(tmp_path: Path, dtype: torch.dtype) -> None:
    """All fields and every tensor's bits come back; also of a tensor that lies transposed in memory."""
    tensors = {name: each.to(dtype) for name, each in adapter_weights(SPEC, "fused").items()}
    tensors["fuse"] = tensors["fuse"].t().contiguous().t()
    file = read_drafter(written(tmp_path, tensors=tensors, form="plain"))
    assert (file.kind, file.form, file.digest, file.split, file.card) == ("fused", "plain", DIGEST, SPLIT, CARD)
    assert file.parameters == sum(each.numel() for each in tensors.values())
    for name, tensor in tensors.items():
        assert file.shapes[name] == tuple(tensor.shape)
        assert torch.equal(file.tensor(name, dtype), tensor)
    both = file.stacked(["key", "value"], torch.float32)
    assert torch.equal(both, torch.cat([tensors["key"], tensors["value"]]).float())


def test_others_can_read_the_file(tmp_path: Path) -> None:
    """The format's own library finds the same tensors and metadata."""
    from safetensors import safe_open

    path = written(tmp_path)
    with safe_open(path, "pt") as file:
        assert file.metadata()["kind"] == "fused"
        assert json.loads(file.metadata()["card"]) == CARD
        for name, tensor in adapter_weights(SPEC, "fused").items():
            assert torch.equal(file.get_tensor(name), tensor)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    """A write that fails leaves what was there, and no temporary file beside it."""
    path = written(tmp_path)
    with pytest.raises(ValueError, match="float64"):
        written(tmp_path, tensors={"norm": torch.zeros(3, dtype=torch.float64)})
    with pytest.raises(ValueError, match="gguf"):
        written(tmp_path, kind="gguf")
    with pytest.raises(ValueError):
        written(tmp_path, card={"tau": float("nan")})
    with pytest.raises(ValueError, match="card"):
        written(tmp_path, card={"notes": "x" * (1 << 20)})
    assert read_drafter(path).card == CARD
    written(tmp_path, card={})
    assert read_drafter(path).card == {}
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    """The message names the path and the command."""
    path = tmp_path / "fused.safetensors"
    with pytest.raises(BadDrafter, match=re.escape(f"{path}") + ".*trilby distill"):
        read_drafter(path)


def test_a_drafter_for_something_else_is_refused(tmp_path: Path) -> None:
    """Another kind, model or split: the message names what is there and what was asked for."""
    path = written(tmp_path)
    load(path)
    with pytest.raises(BadDrafter, match="kind fused, not adapter"):
        load(path, kind="adapter")
    with pytest.raises(BadDrafter, match=f"{DIGEST}.*sha256:0.*trilby distill"):
        load(path, digest="sha256:0")
    with pytest.raises(BadDrafter, match="--split 2, but the split is 3"):
        load(path, split=3)
    with pytest.raises(BadDrafter, match="kind fused, not medusa"):
        MedusaDrafter.load(path, SPEC, DIGEST, SPLIT, torch.float32, random_head(SPEC))


@pytest.mark.parametrize("name", list(adapter_weights(SPEC, "fused", "keep-mlp")))
def test_tensors_must_be_those_of_the_model(tmp_path: Path, name: str) -> None:
    """A tensor that is too small, or one that nobody knows, is named."""
    tensors = adapter_weights(SPEC, "fused", "keep-mlp")
    load(written(tmp_path, tensors=tensors))
    with pytest.raises(BadDrafter, match=f"tensor {name} has shape"):
        load(written(tmp_path, tensors={**tensors, name: tensors[name][..., 1:]}))
    with pytest.raises(BadDrafter, match=r"tensor extra has shape .* no place"):
        load(written(tmp_path, tensors={**tensors, "extra": torch.zeros(2)}))
    if name not in ("keep", "up"):
        with pytest.raises(BadDrafter, match=f"tensor {name} has no place"):
            load(written(tmp_path, tensors={each: tensors[each] for each in tensors if each != name}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_must_be_finite(tmp_path: Path, value: float) -> None:
    """One number that is not, in any tensor, and the file is refused by that tensor's name."""
    for name in adapter_weights(SPEC, "fused"):
        tensors = adapter_weights(SPEC, "fused")
        tensors[name].view(-1)[-1] = value
        with pytest.raises(BadDrafter, match=f"tensor {name} has numbers that are not finite"):
            load(written(tmp_path, tensors=tensors))
    tensors = medusa_weights(SPEC)
    tensors["heads.3.head"][4, 5] = value
    path = written(tmp_path, kind="medusa", tensors=tensors)
    with pytest.raises(BadDrafter, match=r"heads\.3\.head"):
        MedusaDrafter.load(path, SPEC, DIGEST, SPLIT, torch.float32, random_head(SPEC))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """Cut off, without metadata, with metadata of another sort, or not a file of this format at all."""
    path = written(tmp_path)
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])

    def with_metadata(metadata: object) -> bytes:
        encoded = json.dumps({**header, "__metadata__": metadata}).encode()
        return len(encoded).to_bytes(8, "little") + encoded + whole[8 + length :]

    sound = header["__metadata__"]
    damaged = [b"", b"not a drafter", whole[:-1], whole[:20]]
    others: tuple[object, ...] = (None, 3, [], "kind", {}, {"kind": "fused"})
    damaged += [with_metadata(each) for each in others]
    for field, value in (("kind", "lora"), ("kind", 1), ("split", "-1"), ("split", "two"), ("digest", None)):
        damaged.append(with_metadata({**sound, field: value}))
    for card in ("[]", "{", "1" * 5000, "[" * 100_000):
        damaged.append(with_metadata({**sound, "card": card}))
    damaged.append(with_metadata({**sound, "notes": "x" * (2 << 20)}))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(BadDrafter, match=r"fused\.safetensors"):
            read_drafter(path)
