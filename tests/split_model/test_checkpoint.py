"""Model folders: what is read, what it costs in memory, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import build_tiny, built

from drafting.distill.network import FrozenHead
from split_model.checkpoint import Checkpoint, read_index
from split_model.errors import BadCheckpoint, ModelError, ModelNotFound
from split_model.hub import resolve
from split_model.pooling import Pooling
from split_model.slices import Slice, slice_bytes, slice_parts, whole
from split_model.spec import ModelSpec
from split_model.stack import Embedding, Head, Stack

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny("llama", tmp_path_factory.mktemp("llama"), max_shard_bytes=20_000)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def index_of(folder: Path) -> Any:
    return json.loads((folder / "model.safetensors.index.json").read_text())


def all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_any_part_of_any_tensor_in_any_dtype(folder: Path) -> None:
    """Rows, columns and both, in float32 and bfloat16, equal what safetensors reads whole."""
    checkpoint = Checkpoint.open(folder)
    for name, tensor in all_tensors(folder).items():
        assert torch.equal(checkpoint.read(name), tensor)
        assert torch.equal(checkpoint.read(name, dtype=torch.bfloat16), tensor.bfloat16())
        if tensor.dim() == 2:
            for rows, columns in (
                (range(3, 9), None),
                (None, range(2, 7)),
                (range(1, 2), range(0, 1)),
                (range(0), None),
            ):
                part = tensor
                part = part if rows is None else part[rows.start : rows.stop]
                part = part if columns is None else part[:, columns.start : columns.stop]
                assert torch.equal(checkpoint.read(name, rows, columns), part)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_are_converted_as_torch_does(folder: Path, tmp_path: Path, dtype: Any) -> None:
    """float16 and bfloat16 tensors become float32 or bfloat16 with torch's rounding."""
    config = json.loads((folder / "config.json").read_text())
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_text(json.dumps({**config, "dtype": str(dtype).removeprefix("torch.")}))
    tensors = {name: tensor.to(dtype) for name, tensor in all_tensors(folder).items()}
    save_file(tensors, half / "model.safetensors")
    checkpoint = Checkpoint.open(half)
    for name, tensor in tensors.items():
        for wanted in (torch.float32, torch.bfloat16):
            assert torch.equal(checkpoint.read(name, dtype=wanted), tensor.to(wanted))


def test_loading_takes_exactly_the_bytes_of_the_slice(folder: Path) -> None:
    """`loaded_bytes` of a stack is `slice_bytes` of its slice."""
    checkpoint = Checkpoint.open(folder)
    for held in (Slice(0, 4), Slice(1, 3), Slice(2, 2), Slice(0, 2, kv_groups=range(1, 2), columns=range(5, 20))):
        for dtype in (torch.float32, torch.bfloat16):
            stack = Stack.load(checkpoint, held, dtype)
            assert stack.loaded_bytes == slice_bytes(checkpoint.spec, held, dtype)


def test_digest_knows_weights_config_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    """One changed weight or option changes it; token ids, file names and other files do not."""
    digest = Checkpoint.open(folder).digest()
    assert digest.startswith("sha256:") and len(digest) == 71

    config = json.loads((folder / "config.json").read_text())
    for changes, same in (
        ({"eos_token_id": 7}, True),
        ({"rms_norm_eps": 1e-3}, False),
        ({"hidden_act": "relu"}, False),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        assert (Checkpoint.open(folder).digest() == digest) is same
    (folder / "config.json").write_text(json.dumps(config))

    tensors = all_tensors(folder)
    single = tmp_path / "single"
    single.mkdir()
    shutil.copy(folder / "config.json", single)
    save_file({**tensors, "model.unused": torch.ones(3)}, single / "model.safetensors")
    assert Checkpoint.open(single).digest() == digest
    tensors["model.layers.2.mlp.down_proj.weight"][3, 5] += 1
    save_file(tensors, single / "model.safetensors")
    assert Checkpoint.open(single).digest() != digest


def test_names_without_the_leading_model_are_found(folder: Path, tmp_path: Path) -> None:
    """Files of the bare transformer name their tensors without "model."."""
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(folder / "config.json", bare)
    save_file({name.removeprefix("model."): t for name, t in all_tensors(folder).items()}, bare / "model.safetensors")
    assert Checkpoint.open(bare).digest() == Checkpoint.open(folder).digest()


@pytest.mark.parametrize(
    "shard",
    ["../evil.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", "x.bin", "a\\b.safetensors", 3, None],
)
def test_an_index_that_leaves_its_folder_is_refused(folder: Path, shard: Any) -> None:
    """Every path but a plain file of the same folder is BadCheckpoint."""
    index = index_of(folder)
    index["weight_map"]["model.norm.weight"] = shard
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadCheckpoint, match="no safetensors file of that folder"):
        Checkpoint.open(folder)


def test_missing_and_broken_files_say_what_to_do(folder: Path, tmp_path: Path) -> None:
    """Nothing there, no weights, a missing shard, a missing tensor, a wrong shape: each has its own words."""
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        Checkpoint.open(tmp_path / "nowhere")
    index = index_of(folder)
    lacking = index["weight_map"]["model.layers.3.mlp.up_proj.weight"]
    (folder / lacking).unlink()
    checkpoint = Checkpoint.open(folder)
    Stack.load(checkpoint, Slice(0, 1), torch.float32)
    with pytest.raises(BadCheckpoint, match=f"lacks {lacking}"):
        Stack.load(checkpoint, Slice(3, 4), torch.float32)
    with pytest.raises(BadCheckpoint, match=f"lacks {lacking}"):
        checkpoint.digest()
    with pytest.raises(BadCheckpoint, match="no tensor nonsense"):
        checkpoint.read("nonsense")

    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 43}))
    with pytest.raises(BadCheckpoint, match="the config says"):
        Stack.load(Checkpoint.open(folder), Slice(0, 1), torch.float32)
    for text in ("[", "[]", "\udcff", "[" * 100_000):
        (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ModelError):
            Checkpoint.open(folder)


def test_ranges_outside_a_tensor_are_value_errors(folder: Path) -> None:
    """Rows and columns are checked against the tensor."""
    checkpoint = Checkpoint.open(folder)
    name = "model.layers.0.mlp.up_proj.weight"
    for rows, columns in ((range(0, 45), None), (range(-1, 2), None), (None, range(0, 33)), (range(0, 4, 2), None)):
        with pytest.raises(ValueError):
            checkpoint.read(name, rows, columns)


# Each case is measured in a process of its own, forked from one that has imported what they need.
MEMORY_PROGRAM = """
import json, os, sys
import torch
import transformers
from split_model.checkpoint import Checkpoint, read_index
from split_model.matrix import Matrix
from split_model.slices import Slice, slice_bytes
from split_model.stack import Embedding, Head, Stack
torch.set_num_threads(1)

def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

def measure(folder, last, part, dtype):
    dtype = getattr(torch, dtype)
    checkpoint = Checkpoint.open(folder)
    held = Slice(0, last, range(0, 4), range(0, 1024)) if part == "shard" else Slice(0, last)
    with torch.inference_mode():
        # A child maps its libraries' pages anew as it comes to them: those are not loading's own.
        torch.zeros(4, 4).t().copy_(torch.ones(4, 4)); torch.ones(2).bfloat16().float()
        Matrix(torch.ones(512, 512, dtype=dtype))(torch.ones(2, 512, dtype=dtype))
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the high-water mark starts anew
    stack = Stack.load(checkpoint, held, dtype)
    print(resident("VmHWM") - before, slice_bytes(checkpoint.spec, held, dtype))

for case in json.loads(sys.argv[2]):
    child = os.fork()
    if child == 0:
        measure(sys.argv[1], *case)
        break
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
"""
MEMORY_CASES = [(1, "whole", "bfloat16"), (6, "whole", "bfloat16"), (6, "whole", "float32"), (6, "shard", "bfloat16")]
"""Layers, all of each or a tensor-parallel part, and the number format they are loaded in."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 200 MB of weights in bfloat16, in one file."""
    folder = tmp_path_factory.mktemp("large")
    config = {
        "model_type": "llama",
        "vocab_size": 1000,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 6,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    spec = ModelSpec.from_config(config)
    parts = slice_parts(spec, whole(spec))
    save_file({p.name: torch.ones(p.shape, dtype=torch.bfloat16) for p in parts}, folder / "model.safetensors")
    assert (folder / "model.safetensors").stat().st_size > 190_000_000
    return folder


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc/self/clear_refs")
def test_peak_memory_while_loading_is_the_slice_and_little_more(large: Path) -> None:
    """The most memory ever resident during loading exceeds what was there by the slice's bytes and 64 MB at most."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_PROGRAM, str(large), json.dumps(MEMORY_CASES)],
        cwd=ROOT,
        # Freed matrices go back at once, so that what is measured is what loading holds and not what malloc keeps.
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for case, line in zip(MEMORY_CASES, done.stdout.splitlines(), strict=True):
        peak, wanted = map(int, line.split())
        assert wanted <= peak + (4 << 20), case
        assert peak <= wanted + (64 << 20), case


def test_a_config_that_promises_more_than_the_file_has_takes_no_memory(folder: Path, tmp_path: Path) -> None:
    """Shapes are compared with the files before anything is allocated, however large the config says they are."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "vocab_size": 2**24, "hidden_size": 2**15, "head_dim": 8}))
    checkpoint = Checkpoint.open(copy)
    for load in (
        lambda: Embedding.load(checkpoint, torch.float32),
        lambda: Head.load(checkpoint, checkpoint.spec, torch.float32),
        lambda: Stack.load(checkpoint, whole(checkpoint.spec), torch.float32),
    ):
        with pytest.raises(BadCheckpoint, match="shape"):
            load()


def test_names_longer_than_any_file_has_are_typed_errors(tmp_path: Path) -> None:
    """No OSError of the file system reaches the caller."""
    with pytest.raises(ModelNotFound):
        Checkpoint.open(tmp_path / ("x" * 300))
    with pytest.raises(ModelNotFound):
        resolve("x" * 5000)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "x" * 300 + ".safetensors"}}))
    with pytest.raises(BadCheckpoint):
        read_index(index)


@pytest.mark.parametrize("equal", [True, False])
def test_a_tied_head_that_was_trained_on_its_own(tmp_path: Path, equal: bool) -> None:
    """Its config ties it to the embedding, and the files have one: transformers takes what is there where the two are
    not the same."""
    path = build_tiny("llama-tied", tmp_path)
    tensors = load_file(path / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].clone()
    if not equal:
        head[-1, 0] += 0.5
    save_file({**tensors, "lm_head.weight": head}, path / "model.safetensors", {"format": "pt"})
    checkpoint, before = Checkpoint.open(path), Checkpoint.open(build_tiny("llama-tied", tmp_path / "before"))
    assert (checkpoint.digest() == before.digest()) is equal
    assert torch.equal(FrozenHead.load(checkpoint).matrix, head), "what drafters are taught by"
    embedding = Embedding.load(checkpoint, torch.float32)
    found = Head.load(checkpoint, checkpoint.spec, torch.float32, embedding)
    assert checkpoint.has_own_head() is not equal and bool(found.loaded_bytes - found.norm.nbytes) is not equal
    oracle = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    rows = torch.randn(3, checkpoint.spec.hidden_size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = oracle.lm_head(oracle.model.norm(rows))
    torch.testing.assert_close(found.forward(rows), wanted, rtol=0, atol=1e-5)


def test_a_pooler_that_was_not_saved(tiny_folder: Path, tmp_path: Path) -> None:
    """Models for vectors are saved without, and nothing that is served of them needs one; a classifier's is missed."""
    for name, says_nothing in (("bert", True), ("bert-classifier", False)):
        path = tmp_path / name
        shutil.copytree(built(name, tiny_folder), path)
        tensors = load_file(path / "model.safetensors")
        left = {key: value for key, value in tensors.items() if "pooler" not in key}
        assert len(left) < len(tensors)
        save_file(left, path / "model.safetensors", {"format": "pt"})
        checkpoint = Checkpoint.open(path, None)
        if says_nothing:
            assert checkpoint.spec.pooled_size == 0 and checkpoint.digest()
            assert (
                Pooling.load(checkpoint, torch.float32).pooled(torch.zeros(2, checkpoint.spec.hidden_size), [2]) is None
            )
        else:
            with pytest.raises(BadCheckpoint, match="pooler"):
                Pooling.load(checkpoint, torch.float32)
