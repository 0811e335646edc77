"""Models that read one text and write another: T5 in both of its versions, whole and in shards, beside transformers."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from encoder_decoder import EncoderDecoder
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_models import TRANSLATOR_NAMES, build_tiny

from split_model.checkpoint import Checkpoint
from split_model.cross import Memory
from split_model.errors import UnsupportedModel
from split_model.families.architecture import Relative
from split_model.reference import Reference
from split_model.relative import RelativeBias
from split_model.sampling import SamplingParams
from split_model.slices import Slice, shards, slice_bytes, whole
from split_model.stack import Span, Stack
from split_model.tree import Tree

TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=TRANSLATOR_NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder: Path) -> EncoderDecoder:
    return EncoderDecoder.load(folder)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


def ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 97, (count,), generator=torch.Generator().manual_seed(100 * seed + count)).tolist()


def oracle_logits(oracle: Any, text: list[int], written: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = oracle(torch.tensor([text]), decoder_input_ids=torch.tensor([written])).logits[0]
    return logits


@torch.inference_mode()
def test_rows_logits_and_tokens_are_transformers(model: EncoderDecoder, oracle: Any) -> None:
    """What the encoder reads, what the decoder says of a given text, and 64 greedy tokens of three texts."""
    said: set[int] = set()
    for seed, length in enumerate((40, 1, 23)):
        text, written = ids(length, seed), ids(30, seed)
        rows = model.encoder.texts([text]).rows[0]
        torch.testing.assert_close(rows, oracle.encoder(torch.tensor([text]))[0][0], rtol=0, atol=TOLERANCE)
        found = model.logits(model.read([text])[0], written)
        torch.testing.assert_close(found, oracle_logits(oracle, text, written), rtol=0, atol=TOLERANCE)
        output = oracle.generate(
            torch.tensor([text]),
            attention_mask=torch.ones(1, length, dtype=torch.long),
            max_new_tokens=64,
            min_new_tokens=64,
            do_sample=False,
            eos_token_id=None,
        )
        tokens = model.generate(text, 64)
        assert tokens == output[0, 1:].tolist()
        said |= set(tokens)
    assert len(said) > 5, "texts of one token would say little"
    halves = [model.spec, model.encoder.spec]
    held = sum(slice_bytes(half, whole(half), "float32") for half in halves)
    assert model.loaded_bytes == held - model.embedding.loaded_bytes, "which they share"


def test_a_seed_says_a_text_again(model: EncoderDecoder) -> None:
    """Sampled with a seed twice, and with another."""
    texts = [model.generate(ids(9), 20, SamplingParams(temperature=3.0, seed=seed)) for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


def test_a_head_of_its_own(tmp_path: Path) -> None:
    """T5 1.1 as it was published: the head is not tied, and rows are not scaled."""
    folder = build_tiny("t5-gated", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["scale_decoder_outputs"]
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn(97, 32, generator=torch.Generator().manual_seed(5))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    oracle = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    assert torch.equal(oracle.lm_head.weight, tensors["lm_head.weight"])
    model = EncoderDecoder.load(folder)
    text, written = ids(20), ids(10)
    found, wanted = model.logits(model.read([text])[0], written), oracle_logits(oracle, text, written)
    torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE * max(1.0, float(wanted.abs().max()) / 10))


def test_other_names_and_a_start_that_only_generation_knows(tmp_path: Path) -> None:
    """Of tied matrices a file may keep the decoder's name alone; where answers begin generation_config.json may say."""
    folder = build_tiny("t5", tmp_path)
    model, text, written = EncoderDecoder.load(folder), ids(20), ids(10)
    wanted = model.logits(model.read([text])[0], written)
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "embed_tokens" not in name and name != "shared.weight"}
    kept.pop("lm_head.weight", None)
    save_file({**kept, "decoder.embed_tokens.weight": tensors["shared.weight"]}, folder / "model.safetensors")
    (folder / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": 7}))
    assert Checkpoint.open(folder, None).spec.bos_token_id == 7
    renamed = EncoderDecoder.load(folder)
    torch.testing.assert_close(renamed.logits(renamed.read([text])[0], written), wanted, rtol=0, atol=0)


def as_transformers(folder: Path) -> bool:
    """Whether logits of files as they are now are transformers'."""
    oracle = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    model, text, written = EncoderDecoder.load(folder), ids(20), ids(10)
    found, wanted = model.logits(model.read([text])[0], written), oracle_logits(oracle, text, written)
    return torch.allclose(found, wanted, rtol=0, atol=TOLERANCE * max(1.0, float(wanted.abs().max()) / 10))


@pytest.mark.parametrize(
    "said",
    [
        {"feed_forward_proj": "gated-gelu", "dense_act_fn": "relu"},
        {"feed_forward_proj": "gated-silu", "dense_act_fn": "gelu_new", "is_gated_act": None},
        {"feed_forward_proj": "gelu_new", "is_gated_act": True},
    ],
)
def test_an_mlp_that_is_described_twice(said: dict[str, Any], tmp_path: Path) -> None:
    """Where the fields contradict each other, the special ones hold, as in transformers."""
    folder = build_tiny("t5-gated", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for field in ("dense_act_fn", "is_gated_act"):
        config.pop(field, None)
    said = {field: value for field, value in said.items() if value is not None}
    (folder / "config.json").write_text(json.dumps({**config, **said}))
    assert as_transformers(folder)


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_halves_that_look_tokens_up_in_tables_of_their_own_are_refused(half: str, tmp_path: Path) -> None:
    """transformers 5 takes both where they differ; the same table twice is one."""
    folder = build_tiny("t5-gated", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors[f"{half}.embed_tokens.weight"] = tensors["shared.weight"].clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert as_transformers(folder)
    tensors[f"{half}.embed_tokens.weight"] += 1
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedModel, match=rf"{half}\.embed_tokens\.weight and shared\.weight differ"):
        Checkpoint.open(folder, None)


def test_a_head_beside_the_encoders_table(tmp_path: Path) -> None:
    """Tied by the config, and the file has another head, and no shared table by that name: each is what it is."""
    folder = build_tiny("t5", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "embed_tokens" not in name and name != "shared.weight"}
    kept["encoder.embed_tokens.weight"] = tensors["shared.weight"]
    kept["lm_head.weight"] = torch.randn(97, 32, generator=torch.Generator().manual_seed(5))
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    assert Checkpoint.open(folder, None).has_own_head() and as_transformers(folder)
    before = Checkpoint.open(folder, None).digest()
    kept["lm_head.weight"] += 1
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    assert Checkpoint.open(folder, None).digest() != before


def test_sessions_in_one_step_are_as_alone(model: EncoderDecoder) -> None:
    """Texts of different lengths, each with a source of its own, in chunks of different sizes."""
    lengths, steps = (12, 5, 1), ((3, 1, 0), (1, 4, 1), (5, 1, 6))
    sources = model.read([ids(length, 1) for length in lengths])
    texts = [ids(sum(step[each] for step in steps), 2 + each) for each in range(3)]
    caches = [model.stack.new_cache(20) for _ in texts]
    found: list[list[torch.Tensor]] = [[], [], []]
    for step in steps:
        spans = [Span(cache, rows) for cache, rows in zip(caches, step, strict=True)]
        tokens = [text[span.start : span.start + span.rows] for text, span in zip(texts, spans, strict=True)]
        hidden = model.embedding.forward([token for part in tokens for token in part])
        logits = model.head.forward(model.stack.forward(hidden, spans, sources=sources))
        for of_text, part in zip(found, logits.split_with_sizes(list(step)), strict=True):
            of_text.append(part)
    for text, source, parts in zip(texts, sources, found, strict=True):
        torch.testing.assert_close(torch.cat(parts), model.logits(source, text), rtol=0, atol=1e-5)


def test_rows_may_branch(model: EncoderDecoder) -> None:
    """Distances are those along each row's own path."""
    [source] = model.read([ids(9)])
    trunk, nodes = ids(6), ids(5)
    cache = model.stack.new_cache(40)
    model.stack.forward(model.embedding.forward(trunk), [Span(cache, 6)], sources=[source])
    tree = Tree(6)
    span = Span(cache, 5, tree.add((-1, -1, 0, 1, 2)))
    found = model.head.forward(model.stack.forward(model.embedding.forward(nodes), [span], sources=[source]))
    for node in range(5):
        path = [nodes[each] for each in tree.path(node)]
        torch.testing.assert_close(found[node], model.logits(source, [*trunk, *path])[-1], rtol=0, atol=1e-5)


def test_shards_add_up(model: EncoderDecoder, folder: Path) -> None:
    """Members with uneven parts of heads and columns, one with nothing: three sums a layer give the whole's rows."""
    checkpoint = Checkpoint.open(folder, "cross")
    held = Slice(0, model.spec.num_layers)
    members = [Stack.load(checkpoint, each, torch.float32) for each in shards(model.spec, held, [1, 0, 3], [20, 0, 24])]
    for member in members:
        assert member.loaded_bytes == slice_bytes(model.spec, member.slice, "float32")
    read = model.encoder.texts([ids(11)]).rows[0]
    hidden = torch.randn(7, model.spec.hidden_size, generator=torch.Generator().manual_seed(1))
    wanted = model.stack.forward(hidden, [Span(model.stack.new_cache(9), 7)], sources=[model.stack.source(read)])
    partials: list[torch.Tensor | None] = [None] * len(members)
    barrier, sums = threading.Barrier(len(members), timeout=60), [0] * len(members)

    def run(number: int) -> torch.Tensor:
        def combine(partial: torch.Tensor) -> torch.Tensor:
            sums[number] += 1
            barrier.wait()
            partials[number] = partial
            barrier.wait()
            return torch.stack([each for each in partials if each is not None]).sum(0)

        member = members[number]
        return member.forward(hidden, [Span(member.new_cache(9), 7)], combine, [member.source(read)])

    with ThreadPoolExecutor(len(members)) as threads:
        for found in threads.map(run, range(len(members))):
            torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE)
    assert sums == [3 * model.spec.num_layers] * 3


def test_the_digest_is_of_both_halves(folder: Path, tmp_path: Path) -> None:
    """A weight of the encoder or of the decoder makes another model."""
    digests = {Checkpoint.open(folder, "cross").digest()}
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    for name in ("encoder.block.1.layer.0.SelfAttention.k.weight", "decoder.block.1.layer.1.EncDecAttention.k.weight"):
        tensors = load_file(folder / "model.safetensors")
        tensors[name][2, 3] += 1
        save_file(tensors, tmp_path / "model.safetensors")
        digests.add(Checkpoint.open(tmp_path, "cross").digest())
    assert len(digests) == 3


def test_who_has_no_memory_is_refused(model: EncoderDecoder, folder: Path, tmp_path: Path) -> None:
    """A decoder without sources, a memory for a model that has no use for it, and whoever writes on from one text."""
    hidden = torch.zeros(1, model.spec.hidden_size)
    with pytest.raises(ValueError, match="memory"):
        model.stack.forward(hidden, [Span(model.stack.new_cache(2), 1)])
    with pytest.raises(ValueError, match="2 sources"):
        Memory(model.read([ids(3), ids(4)]), [1])
    plain = Reference.load(build_tiny("llama", tmp_path))
    with pytest.raises(ValueError, match="memory"):
        plain.stack.forward(hidden, [Span(plain.stack.new_cache(2), 1)], sources=model.read([ids(3)]))
    with pytest.raises(UnsupportedModel, match="writes another"):
        Reference.load(folder)
    with pytest.raises(ValueError, match="each needs one"):
        model.generate([], 3)


@given(
    st.integers(4, 40),
    st.integers(21, 200),
    st.booleans(),
    st.lists(st.integers(-300, 300), min_size=1, max_size=20),
)
def test_buckets_are_transformers(buckets: int, farthest: int, both_ways: bool, distances: list[int]) -> None:
    """The bucket of any distance, either way."""
    bias = RelativeBias(Relative(buckets, farthest), torch.arange(float(buckets))[:, None], both_ways)
    relative = torch.tensor(distances)
    wanted = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket(
        relative, both_ways, buckets, farthest
    )
    if not both_ways:
        relative = relative.clamp(max=0)  # Nothing behind a row is seen.
    found = bias.between(torch.zeros(1, dtype=torch.int64), relative)[0, 0].long()
    assert found.tolist() == wanted.tolist()
