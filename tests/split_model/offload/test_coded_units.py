"""Units whose files are coded: the same weights, fewer bytes read, and a damaged file fails one pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from streamed_units import loading, units_of
from tiny_models import build_tiny

from split_model.checkpoint import Checkpoint
from split_model.offload import file_pieces as pieces_module
from split_model.offload.errors import ReadFailed
from split_model.offload.layout import Cut, unit_bytes
from split_model.offload.loader import Loader
from split_model.offload.units import Unit
from split_model.slices import whole
from split_model.stack import Span, Stack

UNITS = units_of(4)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """With matrices of more than a page."""
    return Checkpoint.open(build_tiny("llama", tmp_path / "model", hidden_size=128, intermediate_size=352))


def run(stack: Stack) -> torch.Tensor:
    hidden = torch.randn(5, stack.spec.hidden_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    return stack.forward(hidden, [Span(stack.new_cache(5), 5)])


def stack_of(checkpoint: Checkpoint, loader: Loader | None) -> Stack:
    return Stack.load(checkpoint, whole(checkpoint.spec), torch.bfloat16, loader=loader)


@pytest.mark.parametrize("rings", [1, 2.5])
def test_a_coded_stack_is_bit_equal(
    rings: float, checkpoint: Checkpoint, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through small rings, in pieces of two pages and of less, pass after pass; plain files lie beside unharmed."""
    monkeypatch.setattr(pieces_module, "CODED_FROM_BYTES", 1 << 15)
    wanted = run(stack_of(checkpoint, None))
    with loading(checkpoint, UNITS, torch.bfloat16, rings, coded=True) as loader:
        stack = stack_of(checkpoint, loader)
        for _ in range(3):
            assert torch.equal(run(stack), wanted)
        counts = loader.counts
        assert counts.decoding_s > 0
    with loading(checkpoint, UNITS, torch.bfloat16, rings) as loader:
        assert torch.equal(run(stack_of(checkpoint, loader)), wanted)
    sizes = sorted(path.stat().st_size for path in cache.glob("*/*-mlp-*.unit"))
    assert len(sizes) == 8 and max(sizes[:4]) < 0.85 * min(sizes[4:])


def as_published(folder: Path, narrow: bool = True) -> Checkpoint:
    """A tiny checkpoint in bfloat16, or one whose config says so and is wrong."""
    build_tiny("llama", folder, hidden_size=128, intermediate_size=352)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    tensors = load_file(folder / "model.safetensors")
    if narrow:
        save_file({name: each.bfloat16() for name, each in tensors.items()}, folder / "model.safetensors")
    return Checkpoint.open(folder)


@pytest.mark.parametrize("narrow", [True, False])
def test_what_was_bfloat16_is_read_as_that_and_widened(
    narrow: bool, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model in bfloat16 that computes in float32 has the same weights, from less than half of the bytes. Where the
    config is wrong and numbers have more digits they stay as they are."""
    monkeypatch.setattr(pieces_module, "CODED_FROM_BYTES", 1 << 16)
    checkpoint = as_published(tmp_path / "model", narrow)
    hidden = torch.randn(5, checkpoint.spec.hidden_size, generator=torch.Generator().manual_seed(1))
    found = []
    for coded in (False, True):
        with loading(checkpoint, UNITS, torch.float32, 1.5, coded=coded) as loader:
            stack = Stack.load(checkpoint, whole(checkpoint.spec), torch.float32, loader=loader)
            found += [stack.forward(hidden, [Span(stack.new_cache(5), 5)]) for _ in range(2)]
            assert (loader.counts.decoding_s > 0) is (coded and narrow)
    assert all(torch.equal(each, found[0]) for each in found[1:])
    sizes = sorted(path.stat().st_size for path in cache.glob("*/*-mlp-*.unit"))
    assert len(sizes) == 8 and (max(sizes[:4]) < 0.45 * min(sizes[4:])) is narrow


def test_only_bfloat16_is_coded(checkpoint: Checkpoint) -> None:
    """Others are read as they are."""
    with loading(checkpoint, UNITS[:1], coded=True) as loader:
        with loader.using(UNITS[0]):
            pass
        read = loader.counts.bytes_read
        assert read and read % unit_bytes(checkpoint.spec, UNITS[0], Cut(), torch.float32) == 0
        assert loader.counts.decoding_s == 0


def changed(file: bytes) -> bytes:
    return file[:30_000] + b"harm" + file[30_004:]


def pages_swapped(file: bytes) -> bytes:
    return file[:28_672] + file[32_768:36_864] + file[28_672:32_768] + file[36_864:]


def pieces_swapped(file: bytes) -> bytes:
    """The third and the fourth, which are equally long."""
    lengths = json.loads(file[:4096])["pieces"]
    assert lengths[2] == lengths[3]
    begin, length = 4096 + sum(lengths[:2]), lengths[2]
    third, fourth = file[begin : begin + length], file[begin + length : begin + 2 * length]
    return file[:begin] + fourth + third + file[begin + 2 * length :]


@pytest.mark.parametrize("harm", [changed, pages_swapped, pieces_swapped])
def test_a_damaged_file_fails_one_pass_and_is_made_anew(
    harm: Callable[[bytes], bytes], checkpoint: Checkpoint, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its midst, which nothing but the checksums tell."""
    monkeypatch.setattr(pieces_module, "CODED_FROM_BYTES", 1 << 15)
    wanted = run(stack_of(checkpoint, None))
    with loading(checkpoint, UNITS, torch.bfloat16, rings=1, coded=True) as loader:
        stack = stack_of(checkpoint, loader)
        assert torch.equal(run(stack), wanted)
        [path] = cache.glob("*/2-mlp-*.unit")
        sound = path.read_bytes()
        with open(path, "r+b") as file:
            file.write(harm(sound))
        with pytest.raises(ReadFailed, match=r"mlp of layer 2 cannot be read from .* damaged") as failed:
            for _ in range(2):
                run(stack)
        assert (failed.value.unit, failed.value.path) == (Unit(2, "mlp"), path)
        for _ in range(2):
            assert torch.equal(run(stack), wanted)
        assert path.read_bytes() == sound


@pytest.mark.parametrize("lengths", [[], "none", [4096], [True, 4096], [-4096, 1 << 20], [10, 10], None])
def test_lengths_that_cannot_be_are_told_when_a_file_is_opened(
    lengths: object, checkpoint: Checkpoint, cache: Path
) -> None:
    """Whatever the head says of its pieces; the file is made anew."""
    wanted = run(stack_of(checkpoint, None))
    with loading(checkpoint, UNITS, torch.bfloat16, coded=True):
        pass
    [path] = cache.glob("*/1-mlp-*.unit")
    sound = path.read_bytes()
    head = json.loads(sound[:4096])
    head["pieces"] = lengths
    path.write_bytes(json.dumps(head).encode().ljust(4096) + sound[4096:])
    with loading(checkpoint, UNITS, torch.bfloat16, coded=True) as loader:
        assert torch.equal(run(stack_of(checkpoint, loader)), wanted)
    assert path.read_bytes() == sound
