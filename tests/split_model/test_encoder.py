"""Models that read: rows, pooled rows and classes equal transformers', in one process and in shards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import READER_NAMES, build_tiny

from split_model.checkpoint import Checkpoint
from split_model.encoder import Encoder
from split_model.errors import UnsupportedModel
from split_model.reference import Reference
from split_model.sequences import Sequences
from split_model.slices import Slice, shards, slice_bytes, whole
from split_model.stack import Span, Stack

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=READER_NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(request.param, tmp_path_factory.mktemp("model"))


def texts(*lengths: int) -> list[list[int]]:
    return [torch.randint(0, 97, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in lengths]


def images(count: int) -> list[torch.Tensor]:
    return list(torch.randn(count, 3, 12, 20, generator=torch.Generator().manual_seed(count)))


def oracle_of(folder: Path) -> Any:
    [name] = json.loads((folder / "config.json").read_text())["architectures"]
    return getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def test_one_by_one_and_together_it_is_transformers(folder: Path) -> None:
    """Sequences of different lengths in one batch give what transformers gives for each alone."""
    model, encoder = oracle_of(folder), Encoder.load(folder)
    inputs: list[Any]
    if encoder.spec.patches is not None:
        inputs = images(3)
        found = encoder.images(inputs)
        wanted = [model(pixel_values=each[None], output_hidden_states=True) for each in inputs]
    else:
        inputs = texts(9, 1, 64, 30)
        found = encoder.texts(inputs)
        wanted = [model(torch.tensor([each]), output_hidden_states=True) for each in inputs]
    assert [len(each) for each in found.rows] == [out.hidden_states[-1].shape[1] for out in wanted]
    for number, out in enumerate(wanted):
        rows = found.rows[number]
        if "last_hidden_state" in out or encoder.spec.patches is None:
            truth = out.last_hidden_state if "last_hidden_state" in out else out.hidden_states[-1]
            torch.testing.assert_close(rows, truth[0], rtol=0, atol=TOLERANCE)
        if "pooler_output" in out:
            assert found.pooled is not None
            torch.testing.assert_close(found.pooled[number], out.pooler_output[0], rtol=0, atol=TOLERANCE)
        assert (found.logits is not None) is (encoder.spec.labels > 0)
        if found.logits is not None:
            torch.testing.assert_close(found.logits[number], out.logits[0], rtol=0, atol=TOLERANCE)
    assert encoder.loaded_bytes == slice_bytes(encoder.spec, whole(encoder.spec), "float32")


@torch.inference_mode()
def test_parts_of_a_text_are_told_apart(tmp_path: Path) -> None:
    """Token types are added where the model has them, and matter."""
    folder = build_tiny("bert", tmp_path)
    encoder, [text] = Encoder.load(folder), texts(12)
    types = [0] * 5 + [1] * 7
    truth = oracle_of(folder)(torch.tensor([text]), token_type_ids=torch.tensor([types])).last_hidden_state[0]
    torch.testing.assert_close(encoder.texts([text], [types]).rows[0], truth, rtol=0, atol=TOLERANCE)
    assert (encoder.texts([text]).rows[0] - truth).abs().max() > 0.1


@torch.inference_mode()
def test_shards_add_up(folder: Path) -> None:
    """Members with uneven parts of heads and columns, one with nothing, together give the whole model's rows."""
    checkpoint = Checkpoint.open(folder, "bidirectional")
    spec = checkpoint.spec
    held = Slice(0, spec.num_layers)
    members = [Stack.load(checkpoint, each, torch.float32) for each in shards(spec, held, [1, 0, 3], [20, 0, 24])]
    lengths = [9, 4]
    hidden = torch.randn(13, spec.hidden_size, generator=torch.Generator().manual_seed(1))
    alone = Stack.load(checkpoint, held, torch.float32)
    wanted = alone.run(hidden, Sequences(lengths, alone.relative))
    batches = [Sequences(lengths, member.relative) for member in members]
    if (entry := members[0].entry) is not None:
        hidden = entry(hidden, batches[0])
    for layer in range(spec.num_layers):
        blocks = [member.blocks[layer] for member in members]
        partial = [
            block.attention_output(batch.attend(layer, None, *block.qkv(block.input_norm(hidden))))
            for block, batch in zip(blocks, batches, strict=True)
        ]
        hidden = blocks[0].after_attention(hidden, torch.stack(partial).sum(0))
        partial = [block.mlp(block.mlp_norm(hidden)) for block in blocks]
        hidden = blocks[0].after_mlp(hidden, torch.stack(partial).sum(0))
    torch.testing.assert_close(hidden, wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("bert", {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}),
        (
            "vit-classifier",
            {
                "encoder.layer.": "layers.",
                "attention.attention.query": "attention.q_proj",
                "attention.attention.key": "attention.k_proj",
                "attention.attention.value": "attention.v_proj",
                "attention.output.dense": "attention.o_proj",
                "intermediate.dense": "mlp.fc1",
                "output.dense": "mlp.fc2",
            },
        ),
    ],
)
def test_files_of_other_versions_are_found(name: str, pieces: dict[str, str], tmp_path: Path) -> None:
    """Names that transformers once gave, or gives inside."""
    folder = build_tiny(name, tmp_path / "one")
    digest = Checkpoint.open(folder, "bidirectional").digest()
    renamed = {}
    for tensor_name, tensor in load_file(folder / "model.safetensors").items():
        for piece, instead in pieces.items():
            tensor_name = tensor_name.replace(piece, instead) if "pooler" not in tensor_name else tensor_name
        renamed[tensor_name] = tensor
    assert renamed.keys() != load_file(folder / "model.safetensors").keys()
    save_file(renamed, folder / "model.safetensors")
    assert Checkpoint.open(folder, "bidirectional").digest() == digest


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Empty, too long, unknown ids and types, images of another size, and the one for the other."""
    reader = Encoder.load(build_tiny("bert", tmp_path / "bert"))
    plain = Encoder.load(build_tiny("distilbert", tmp_path / "distilbert"))
    viewer = Encoder.load(build_tiny("vit", tmp_path / "vit"))
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: reader.texts([]), "nothing to read"),
        (lambda: reader.texts([[1], []]), "each needs one"),
        (lambda: reader.texts(texts(65)), "64 at most"),
        (lambda: reader.texts([[97]]), "token ids"),
        (lambda: reader.texts([[1, 2]], [[0, 2]]), "token types"),
        (lambda: reader.texts([[1, 2]], [[0]]), "token types"),
        (lambda: reader.texts([[1, 2]], []), "lists of token types"),
        (lambda: plain.texts([[1, 2]], [[0, 0]]), "no token types"),
        (lambda: reader.images(images(1)), "not images"),
        (lambda: viewer.texts([[1]]), "not texts"),
        (lambda: viewer.images([torch.zeros(3, 12, 16)]), "pixels"),
    ]
    for wrong, words in cases:
        with pytest.raises(ValueError, match=words):
            wrong()


def test_rows_that_see_one_another_have_no_cache(tmp_path: Path) -> None:
    """A session's rows would see those before them alone: a wrong answer, which is refused instead."""
    stack = Encoder.load(build_tiny("bert", tmp_path)).stack
    with pytest.raises(ValueError, match="as Sequences"):
        stack.forward(torch.zeros(2, 32), [Span(stack.new_cache(4), 2)])


def test_who_writes_text_takes_no_reader(folder: Path, tmp_path: Path) -> None:
    """Devices and clouds refuse it by name before any weights are read, and the other way round."""
    with pytest.raises(UnsupportedModel, match="writes none"):
        Reference.load(folder)
    with pytest.raises(UnsupportedModel, match="llama model writes on"):
        Encoder.load(build_tiny("llama", tmp_path))
