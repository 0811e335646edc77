"""What the families beside Llama's have of their own: fused and turned weights, learned positions."""

from __future__ import annotations

import json
from io import FileIO
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import build_tiny

from drafting.distill.corpus import Source
from split_model.checkpoint import Checkpoint
from split_model.errors import UnsupportedModel
from split_model.positions import LearnedPositions
from split_model.reference import Reference
from split_model.safetensors_file import SafetensorsFile
from split_model.slices import Slice, input_slice, middle_slice, output_slice, slice_bytes, slice_parts, whole
from split_model.stack import Span, Stack
from split_model.tree import Tree
from split_model.weight_parts import layer_parts


@pytest.fixture(scope="module", params=["gpt2", "opt", "opt-post-norm"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint.open(build_tiny(request.param, tmp_path_factory.mktemp("model")))


def ids(count: int) -> list[int]:
    return torch.randint(3, 97, (count,), generator=torch.Generator().manual_seed(count)).tolist()


def test_a_part_of_a_fused_and_turned_tensor(tmp_path: Path) -> None:
    """Query, key and value of a KV group are their rows of the third that is theirs, the other way round."""
    folder = build_tiny("gpt2", tmp_path)
    checkpoint = Checkpoint.open(folder)
    fused = load_file(folder / "model.safetensors")["transformer.h.1.attn.c_attn.weight"]
    biases = load_file(folder / "model.safetensors")["transformer.h.1.attn.c_attn.bias"]
    parts = layer_parts(checkpoint.spec, 1, range(1, 3))
    for third, (part, bias) in enumerate(
        ((parts.query, parts.query_bias), (parts.key, parts.key_bias), (parts.value, parts.value_bias))
    ):
        held = slice(32 * third + 8, 32 * third + 24)
        found = torch.empty(part.shape)
        checkpoint.read_into(part, found)
        assert torch.equal(found, fused[:, held].t())
        assert bias is not None
        assert torch.equal(checkpoint.read(bias.name, bias.rows), biases[held])
    assert layer_parts(checkpoint.spec, 1, range(0)).query.shape == (0, 32)


@pytest.mark.parametrize(
    "held", [Slice(0, 1, range(1, 2), range(5, 20)), Slice(1, 3), Slice(3, 4, range(0), range(44))], ids=str
)
def test_only_the_slices_bytes_are_read(checkpoint: Checkpoint, held: Slice, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read of the file is what is held, whatever way the tensors lie there."""
    read = 0
    fill = SafetensorsFile._fill

    def counted(self: SafetensorsFile, file: FileIO, buffer: memoryview, offset: int) -> None:
        nonlocal read
        read += len(buffer)
        fill(self, file, buffer, offset)

    monkeypatch.setattr(SafetensorsFile, "_fill", counted)
    stack = Stack.load(checkpoint, held, torch.float32)
    assert read == stack.loaded_bytes == slice_bytes(checkpoint.spec, held, "float32")


def test_positions_are_the_first_layers(checkpoint: Checkpoint) -> None:
    """Whoever has the first layer has the table of positions, and nobody else."""
    spec = checkpoint.spec
    for split in (0, 1, 4):
        pieces = [input_slice(spec, split), middle_slice(spec, split, 0), output_slice(spec, 0)]
        have = [spec.names.positions in [part.name for part in slice_parts(spec, held)] for held in pieces]
        assert have == [split > 0, split == 0, False]
        assert sum(slice_bytes(spec, held, "float32") for held in pieces) - slice_bytes(
            spec, whole(spec), "float32"
        ) == 4 * spec.vocab_size * (spec.embedding_size or spec.hidden_size)


def test_nodes_stand_where_their_paths_put_them(checkpoint: Checkpoint) -> None:
    """Rows that branch have the positions of their paths, as if each path had been run alone."""
    model = Reference.load(checkpoint)
    trunk, nodes = ids(6), ids(5)
    cache = model.stack.new_cache(40)
    model.stack.forward(model.embedding.forward(trunk), [Span(cache, 6)])
    tree = Tree(6)
    span = Span(cache, 5, tree.add((-1, -1, 0, 1, 2)))
    found = model.head.forward(model.stack.forward(model.embedding.forward(nodes), [span]))
    for node in range(5):
        path = [nodes[each] for each in tree.path(node)]
        torch.testing.assert_close(found[node], model.logits([*trunk, *path])[-1], rtol=0, atol=1e-4)


def test_positions_behind_the_table_have_its_last_row() -> None:
    """Drafts may reach behind the last position; they are computed, with some position, and fail nothing."""
    table = torch.randn(10, 4)
    learned = LearnedPositions(table)
    assert torch.equal(learned.span(3, 4)[0], table[3:7])
    assert torch.equal(learned.span(8, 4)[0], table[[8, 9, 9, 9]])
    assert torch.equal(learned.positions(torch.tensor([2, 30, 9]), 31)[0], table[[2, 9, 9]])


def test_files_of_the_bare_model_are_found(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Those that leave out the prefix, as the first checkpoints of both families do."""
    prefix = checkpoint.spec.names.prefix
    tensors = load_file(checkpoint.path / "model.safetensors")
    assert any(name.startswith(prefix) for name in tensors)
    save_file({name.removeprefix(prefix): each for name, each in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((checkpoint.path / "config.json").read_text())
    assert Checkpoint.open(tmp_path).digest() == checkpoint.digest()


def test_the_digest_knows_kinds_and_places(tmp_path: Path) -> None:
    """A field that only some families have makes another model."""
    folder = build_tiny("opt", tmp_path)
    digest = Checkpoint.open(folder).digest()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "do_layer_norm_before": False}))
    changed = Checkpoint.open(folder)
    assert changed.spec.norm_place == "after" and changed.digest() != digest


def test_no_drafter_is_trained_for_them(checkpoint: Checkpoint) -> None:
    """Trained drafters are made of rotations and RMS norms: said before any text is read."""
    with pytest.raises(UnsupportedModel, match=f"trained for {checkpoint.spec.model_type}"):
        Source(checkpoint.path)
