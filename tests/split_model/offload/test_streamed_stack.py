"""Stacks whose weights come from the disk at each use compute what those compute that keep them: bit for bit where
those are not packed, which rounds otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from elsewhere import elsewhere
from encoder_decoder import EncoderDecoder
from stand_in import watched
from streamed_units import loading, units_of
from tiny_models import READER_NAMES, TINY_NAMES, TRANSLATOR_NAMES, build_tiny

from split_model.blocks import Block
from split_model.checkpoint import Checkpoint
from split_model.encoder import whole_texts
from split_model.offload import file_pieces as pieces_module
from split_model.offload.layout import Cut
from split_model.offload.units import Unit
from split_model.reference import Reference
from split_model.slices import Slice, shards, slice_bytes, whole
from split_model.stack import Embedding, Head, Span, Stack


@pytest.fixture(autouse=True)
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays multiplies as it lies, as what is lent does."""
    monkeypatch.setattr("split_model.matrix.packs", lambda *of: False)


def rows(count: int, hidden: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(count, hidden, generator=torch.Generator().manual_seed(count)).to(dtype)


def passes(stack: Stack, dtype: torch.dtype) -> list[torch.Tensor]:
    """A prompt and three steps of one session behind it."""
    cache = stack.new_cache(40)
    return [stack.forward(rows(count, stack.spec.hidden_size, dtype), [Span(cache, count)]) for count in (23, 1, 4, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TINY_NAMES)
def test_every_family_is_bit_equal(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """All halves streamed through a ring of two."""
    checkpoint = Checkpoint.open(build_tiny(name, tmp_path / name))
    held = whole(checkpoint.spec)
    with loading(checkpoint, units_of(held.num_layers), dtype) as loader:
        streamed = Stack.load(checkpoint, held, dtype, loader=loader)
        resident = Stack.load(checkpoint, held, dtype)
        for found, wanted in zip(passes(streamed, dtype), passes(resident, dtype), strict=True):
            assert torch.equal(found, wanted)
        assert loader.counts.uses == 4 * len(loader.units)
        assert streamed.loaded_bytes < resident.loaded_bytes / 2


@pytest.mark.parametrize("name", READER_NAMES)
def test_models_that_read_are_bit_equal(name: str, tmp_path: Path) -> None:
    """Encoders: whole texts, each row seeing all of its own."""
    checkpoint = Checkpoint.open(build_tiny(name, tmp_path / name), None)
    held = whole(checkpoint.spec)
    with loading(checkpoint, units_of(held.num_layers), torch.float32) as loader:
        found, wanted = (
            stack.run(rows(11, stack.spec.hidden_size, torch.float32), whole_texts(stack, [7, 4]))
            for stack in (
                Stack.load(checkpoint, held, torch.float32, loader=loader),
                Stack.load(checkpoint, held, torch.float32),
            )
        )
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", TRANSLATOR_NAMES)
def test_a_decoder_with_cross_attention_is_bit_equal(name: str, tmp_path: Path) -> None:
    """All halves of both halves of the model are streamed, and with a decoder's attention its cross-attention; tokens
    are transformers', and what is read behind a text's tokens is the decoder's, not the encoder's."""
    folder = build_tiny(name, tmp_path / name)
    checkpoint = Checkpoint.open(folder, None)
    spec = checkpoint.spec
    oracle = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    plain = EncoderDecoder.load(checkpoint)
    with loading(checkpoint, units_of(spec.reader_layers + spec.num_layers), torch.float32, rings=3) as loader:
        streamed = EncoderDecoder.load(checkpoint, loader=loader)
        assert streamed.loaded_bytes < plain.loaded_bytes / 2
        for text in ([5, 6, 7, 8, 9, 10, 11], [12, 13]):
            given = torch.tensor([text])
            mask = torch.ones_like(given)
            wanted = oracle.generate(given, attention_mask=mask, max_new_tokens=20, do_sample=False, eos_token_id=None)
            assert streamed.generate(text, 20)[: wanted.shape[1] - 1] == wanted[0, 1:].tolist()
            assert torch.equal(*(each.logits(each.read([text])[0], text) for each in (streamed, plain)))
        ahead = {slot.unit.layer for slot in loader._slots._live}
        assert ahead and min(ahead) >= spec.reader_layers


@pytest.mark.parametrize("name", ["llama", "gpt2-untied", "qwen3"])
@pytest.mark.parametrize("apart", [False, True])
def test_some_halves_of_shards_are_bit_equal(name: str, apart: bool, tmp_path: Path) -> None:
    """Three members' shards, of whose layers one half each is streamed, queries in a matrix of their own or not."""
    checkpoint = Checkpoint.open(build_tiny(name, tmp_path / name))
    spec = checkpoint.spec
    units = [Unit(layer, "mlp" if layer % 2 else "attention") for layer in range(spec.num_layers)]
    for shard in shards(spec, whole(spec), [1, 1], [1, 2]):
        cut = Cut(shard.kv_groups, shard.columns, apart)
        with loading(checkpoint, units, torch.float32, 2, cut) as loader:
            stacks = [Stack.load(checkpoint, shard, torch.float32, apart=apart, loader=each) for each in (loader, None)]
            hidden = rows(6, spec.hidden_size, torch.float32)
            found, wanted = (
                stack.forward(hidden, [Span(stack.new_cache(6), 6)], combine=lambda partial: partial)
                for stack in stacks
            )
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_tokens_are_transformers(name: str, tmp_path: Path) -> None:
    """All halves streamed, a ring as small as it can be: 24 greedy tokens behind a prompt."""
    folder = build_tiny(name, tmp_path / name)
    checkpoint = Checkpoint.open(folder)
    spec = checkpoint.spec
    prompt = torch.randint(3, spec.vocab_size, (17,), generator=torch.Generator().manual_seed(5))
    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    wanted = oracle.generate(
        prompt[None], attention_mask=torch.ones(1, 17), max_new_tokens=24, do_sample=False, pad_token_id=0
    )[0, 17:].tolist()
    with loading(checkpoint, units_of(spec.num_layers), torch.float32, rings=1) as loader:
        embedding = Embedding.load(checkpoint, torch.float32)
        stack = Stack.load(checkpoint, whole(spec), torch.float32, loader=loader)
        head = Head.load(checkpoint, spec, torch.float32, embedding)
        assert Reference(embedding, stack, head).generate(prompt.tolist(), 24) == wanted


@elsewhere
@pytest.mark.parametrize("coded", [False, True])
def test_another_device_is_given_units_beside_what_it_computes(
    coded: bool, device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a ring there, and a few buffers here: to the last bit what is computed where all stays, in passes that
    follow one another at once. Nothing but weights goes there meanwhile, and nothing comes back."""
    monkeypatch.setattr(pieces_module, "CODED_FROM_BYTES", 1 << 14)
    dtype = torch.bfloat16
    checkpoint = Checkpoint.open(build_tiny("llama", tmp_path / "model", hidden_size=128, intermediate_size=352))
    held = whole(checkpoint.spec)
    hidden = rows(5, checkpoint.spec.hidden_size, dtype).to(device)
    resident = Stack.load(checkpoint, held, dtype, device)
    wanted = resident.forward(hidden, [Span(resident.new_cache(5), 5)])
    with loading(checkpoint, units_of(held.num_layers), dtype, 1.5, coded=coded, device=device) as loader:
        streamed = Stack.load(checkpoint, held, dtype, device, loader=loader)
        found = []
        with watched() as seen:
            for _ in range(4):
                found.append(streamed.forward(hidden, [Span(streamed.new_cache(5), 5)]))
        assert not seen.to_host and all(len(each) == 1 for each in seen.to_device if each)
        assert all(torch.equal(each.cpu(), wanted.cpu()) for each in found)
        assert (loader.counts.decoding_s > 0) is coded


def test_a_half_is_let_go_of_while_it_serves(tiny: Path) -> None:
    """A block that held both halves streams one, and then the other, from then on; results stay the same."""
    checkpoint = Checkpoint.open(tiny)
    hidden = rows(3, checkpoint.spec.hidden_size, torch.float32)
    block = Block(checkpoint, 1, torch.float32)
    whole_bytes = block.loaded_bytes
    wanted = block.qkv(hidden), block.mlp(hidden)
    with loading(checkpoint, [Unit(1, "mlp")], torch.float32) as loader:
        block.stream("mlp", loader)
        with block.using("mlp"):
            assert torch.equal(block.mlp(hidden), wanted[1])
        loader.follow([Unit(1, "attention"), Unit(1, "mlp")])
        block.stream("attention", loader)
        with block.using("attention"):
            assert all(torch.equal(*each) for each in zip(block.qkv(hidden), wanted[0], strict=True))
        with block.using("mlp"):
            assert torch.equal(block.mlp(hidden), wanted[1])
    assert block.loaded_bytes < whole_bytes / 10


def test_what_stays_counts_its_own_bytes(tiny: Path) -> None:
    """With every half streamed, a stack holds norms alone: what the planner calls the rest."""
    checkpoint = Checkpoint.open(tiny)
    held = Slice(0, 2)
    with loading(checkpoint, units_of(2), torch.float32) as loader:
        stack = Stack.load(checkpoint, held, torch.float32, loader=loader)
        streamed = sum(matrix.nbytes for unit in loader.units for matrix in loader._store.matrices(unit))
        assert stack.loaded_bytes == slice_bytes(checkpoint.spec, held, torch.float32) - streamed
