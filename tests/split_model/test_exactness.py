"""Every supported architecture, against transformers, whole and in every kind of piece."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from samples import sample
from tiny_models import TINY_NAMES, build_tiny

from split_model.checkpoint import Checkpoint
from split_model.reference import Reference
from split_model.slices import input_slice, middle_slice, output_slice
from split_model.stack import Embedding, Head, Span, Stack

DATA = Path(__file__).parents[3] / "shared" / "data"
REAL_NAMES = ("tinystories-656k", "stories-260k", "draft-180k")
LOGITS_TOLERANCE = 1e-4
PROMPT_ROWS = 70
NEW_TOKENS = 64


@pytest.fixture(scope="module", params=[*TINY_NAMES, *REAL_NAMES])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name: str = request.param
    if name in TINY_NAMES:
        return build_tiny(name, tmp_path_factory.mktemp(name))
    path = DATA / "models" / name
    if not path.is_dir():
        pytest.skip(f"the real model {name} is not beside this checkout")
    return path


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference.load(folder)


def prompt(vocab_size: int, rows: int = PROMPT_ROWS, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab_size, (rows,), generator=generator).tolist()


def oracle_logits(oracle: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = oracle(torch.tensor([ids])).logits
    return logits[0].float()


def assert_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = LOGITS_TOLERANCE) -> None:
    scale = max(1.0, float(wanted.abs().max()) / 10)
    torch.testing.assert_close(found, wanted, rtol=0, atol=tolerance * scale)


def test_logits_are_those_of_transformers(oracle: Any, reference: Reference) -> None:
    """Every position's logits agree within 1e-4 in float32."""
    ids = prompt(reference.spec.vocab_size)
    assert_close(reference.logits(ids), oracle_logits(oracle, ids))


def test_greedy_tokens_are_those_of_transformers(oracle: Any, reference: Reference) -> None:
    """Sixty-four greedy tokens are equal."""
    ids = prompt(reference.spec.vocab_size, rows=20)
    with torch.inference_mode():
        wanted = oracle.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
    assert reference.generate(ids, NEW_TOKENS) == wanted[0, len(ids) :].tolist()


def test_every_cut_gives_the_same_logits(folder: Path, oracle: Any, reference: Reference) -> None:
    """Input, middle and output submodels one after the other equal the whole, for every m and k."""
    checkpoint = Checkpoint.open(folder)
    spec = checkpoint.spec
    ids = prompt(spec.vocab_size, rows=30)
    wanted = oracle_logits(oracle, ids)
    embedding = Embedding.load(checkpoint, torch.float32)
    head = Head.load(checkpoint, spec, torch.float32, embedding)
    for m in range(spec.num_layers + 1):
        for k in range(spec.num_layers - m + 1):
            hidden = embedding.forward(ids)
            for held in (input_slice(spec, m), middle_slice(spec, m, k), output_slice(spec, k)):
                stack = Stack.load(checkpoint, held, torch.float32)
                cache = stack.new_cache(len(ids))
                hidden = stack.forward(hidden, [Span(cache, len(ids))])
                assert cache.length == len(ids)
            assert_close(head.forward(hidden), wanted)


@pytest.mark.parametrize("chunk", sample([1, 7, 64, PROMPT_ROWS], "7 64"))
def test_chunks_give_the_same_logits(oracle: Any, reference: Reference, chunk: int) -> None:
    """A prompt run in chunks of any size equals the prompt run at once."""
    ids = prompt(reference.spec.vocab_size)
    cache = reference.stack.new_cache(len(ids))
    found = []
    for first in range(0, len(ids), chunk):
        hidden = reference.embedding.forward(ids[first : first + chunk])
        found.append(reference.head.forward(reference.stack.forward(hidden, [Span(cache, len(hidden))])))
    assert_close(torch.cat(found), oracle_logits(oracle, ids))


def test_ragged_batch_equals_each_session_alone(oracle: Any, reference: Reference) -> None:
    """Eight sessions of different lengths, run in shared steps of uneven rows, each get their own logits."""
    spec, stack = reference.spec, reference.stack
    prompts = [prompt(spec.vocab_size, rows=5 + 8 * index, seed=index) for index in range(8)]
    caches = [stack.new_cache(len(ids)) for ids in prompts]
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    step = 0
    while any(cache.length < len(ids) for cache, ids in zip(caches, prompts, strict=True)):
        rows = [
            min(1 + (index * 5 + step) % 9, len(ids) - cache.length)
            for index, (cache, ids) in enumerate(zip(caches, prompts, strict=True))
        ]
        ids = [
            token
            for cache, all_ids, count in zip(caches, prompts, rows, strict=True)
            for token in all_ids[cache.length : cache.length + count]
        ]
        spans = [Span(cache, count) for cache, count in zip(caches, rows, strict=True)]
        logits = reference.head.forward(stack.forward(reference.embedding.forward(ids), spans))
        for index, part in enumerate(logits.split_with_sizes(rows)):
            found[index].append(part)
        step += 1
    for parts, ids in zip(found, prompts, strict=True):
        assert_close(torch.cat(parts), oracle_logits(oracle, ids))


def test_bfloat16_is_as_close_as_transformers_in_bfloat16(folder: Path, reference: Reference) -> None:
    """In bfloat16 the logits are no further from float32 than twice transformers' own in bfloat16."""
    ids = prompt(reference.spec.vocab_size)
    exact = reference.logits(ids)
    found = Reference.load(folder, torch.bfloat16).logits(ids)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    theirs = oracle_logits(oracle, ids)
    assert found.dtype == torch.float32
    their_error = (theirs - exact).pow(2).mean().sqrt()
    assert (found - exact).pow(2).mean().sqrt() <= 2 * their_error
    assert (found - theirs).pow(2).mean().sqrt() <= 3 * their_error


@pytest.mark.parametrize("name", ["llama-biases", "qwen2", "qwen3", "llama-tied"])
def test_sharded_files_give_the_same_logits(name: str, tmp_path: Path) -> None:
    """A checkpoint of many files with an index is the same model as one file, and has the same digest."""
    one = build_tiny(name, tmp_path / "one")
    many = build_tiny(name, tmp_path / "many", max_shard_bytes=20_000)
    assert len(list(many.glob("*.safetensors"))) > 2
    ids = prompt(97)
    assert torch.equal(Reference.load(one).logits(ids), Reference.load(many).logits(ids))
    assert Checkpoint.open(one).digest() == Checkpoint.open(many).digest()


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("llama-llama3-rope", {"rope_theta": 10000.0, "rope_scaling": None}),
        ("llama-linear-rope", {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 3.0}}),
    ],
)
def test_old_config_layout_gives_the_same_logits(name: str, old: dict[str, Any], tmp_path: Path) -> None:
    """`rope_theta`, `rope_scaling` and `torch_dtype` say the same as `rope_parameters` and `dtype`."""
    folder = build_tiny(name, tmp_path)
    ids = prompt(97)
    wanted = Reference.load(folder).logits(ids)
    config = json.loads((folder / "config.json").read_text())
    new = config.pop("rope_parameters")
    config.pop("dtype")
    theta = new.pop("rope_theta")
    scaling = old["rope_scaling"] or new
    config.update(rope_theta=theta, rope_scaling=scaling, torch_dtype="float32")
    (folder / "config.json").write_text(json.dumps(config))
    assert torch.equal(Reference.load(folder).logits(ids), wanted)


def test_wrong_result_would_be_seen(tmp_path: Path) -> None:
    """The oracle is sensitive: a model without its window, its biases or its rope scaling differs by far more."""
    ids = prompt(97)
    for name, field, value in (
        ("mistral-window", "sliding_window", None),
        ("llama-linear-rope", "rope_parameters", {"rope_type": "default", "rope_theta": 10000.0}),
    ):
        folder = build_tiny(name, tmp_path / name)
        right = Reference.load(folder).logits(ids)
        config = json.loads((folder / "config.json").read_text())
        config[field] = value
        (folder / "config.json").write_text(json.dumps(config))
        assert (Reference.load(folder).logits(ids) - right).abs().max() > 0.1
