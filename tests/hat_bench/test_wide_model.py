"""The wide model: what follows a token is certain however it is computed, and computing it is as dear as it looks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench.hat.wide_model import (
    FIRST,
    MARK,
    SMALL,
    SPECIAL,
    SPLIT,
    TINY_WIDE,
    WIDE,
    is_wide,
    made,
    next_token,
    prompt,
    small_model,
    small_shape,
)
from bench.random_llama import Shape
from oracle import oracle_logits
from safetensors.torch import load_file

from device_agent.answering.tokenizer import Tokenizer
from device_agent.chain.model_ends import DeviceParts
from device_agent.speculative.drafters import load_drafters
from split_model.checkpoint import Checkpoint
from split_model.reference import Reference
from split_model.stack import Span
from wire.request_messages import ChatTurn

VOCAB = TINY_WIDE.vocab


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small one."""
    return made(tmp_path_factory.mktemp("wide") / "wide", TINY_WIDE)


def cycle(token: int, count: int) -> list[int]:
    """So many tokens behind one."""
    found = []
    for _ in range(count):
        token = next_token(token, VOCAB)
        found.append(token)
    return found


@pytest.mark.parametrize("vocab", [VOCAB, WIDE.vocab])
def test_the_text_comes_by_every_word_before_any_twice(vocab: int) -> None:
    """So an answer never ends, and repeats nothing that lookup could find. A special token leads into it too."""
    token, seen = FIRST, set()
    for _ in range(vocab - FIRST):
        token = next_token(token, vocab)
        seen.add(token)
    assert token == FIRST and seen == set(range(FIRST, vocab))
    assert {next_token(token, vocab) for token in range(FIRST)} <= seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_next_token_is_certain(wide: Path, dtype: torch.dtype) -> None:
    """At every position of a random text, by a margin that no rounding comes near."""
    text = torch.randint(VOCAB, (200,), generator=torch.Generator().manual_seed(1)).tolist()
    best = Reference.load(wide, dtype).logits(text).topk(2)
    assert best.indices[:, 0].tolist() == [next_token(token, VOCAB) for token in text]
    assert float((best.values[:, 0] / best.values[:, 1]).min()) > 1.3


def test_transformers_finds_the_same_text(wide: Path) -> None:
    """The file is an ordinary checkpoint."""
    text = (5, 7, *cycle(7, 40))
    assert oracle_logits(wide, text)[1:-1].argmax(-1).tolist() == list(text[2:])


def test_no_element_is_cheaper_than_a_trained_one(wide: Path) -> None:
    """No zeros, nothing denormal, nothing infinite; and what the layers add stays small beside the embedding."""
    for name, tensor in load_file(wide / "model.safetensors").items():
        size = tensor.float().abs()
        assert size.min() >= torch.finfo(torch.bfloat16).tiny and size.max() < 10, name
    reference = Reference.load(wide)
    rows = reference.embedding.forward(list(range(FIRST, 100)))
    cache = reference.stack.new_cache(len(rows))
    added = reference.stack.forward(rows, [Span(cache, len(rows))]) - rows
    assert 0.05 < float(added.std() / rows.std()) < 0.5


@pytest.mark.parametrize("tokens", [5, 6, 100, 333])
def test_prompts_have_the_length_that_is_asked_for(wide: Path, tokens: int) -> None:
    """In tokens, template included; another seed makes another prompt, and an answer is text again."""
    tokenizer = Tokenizer.load(wide, ())
    ids = [tokenizer.chat([ChatTurn("user", prompt(tokens, seed, VOCAB))]) for seed in (1, 2)]
    assert [len(each) for each in ids] == [tokens, tokens] and ids[0] != ids[1]
    assert SPECIAL.index("<|unknown|>") not in ids[0]
    answer = cycle(ids[0][-1], 12)
    assert tokenizer.text(tokenizer.decode(answer)) == answer


def test_all_kinds_of_drafters_load(wide: Path) -> None:
    """With the sizes that the shipped ones have, beside their model's."""
    checkpoint = Checkpoint.open(wide)
    parts = DeviceParts.load(checkpoint, SPLIT, 0, torch.bfloat16)
    wanted = ["adapter", "fused", "medusa", "hybrid", "lookup", str(small_model(wide))]
    loaded = load_drafters(wanted, wide / "drafters", checkpoint, SPLIT, torch.bfloat16, parts)
    sizes = {name: drafter.parameters for name in loaded.names if (drafter := loaded.get(name)) is not None}
    assert sizes["fused"] / sizes["adapter"] == pytest.approx(1.5, abs=0.02)
    assert sizes["hybrid"] == sizes["fused"] and sizes["lookup"] == 0
    assert sizes["medusa"] == 4 * TINY_WIDE.hidden * (TINY_WIDE.hidden + 1 + VOCAB)
    assert SMALL in sizes


def test_the_wide_one_has_200_million_parameters_and_the_small_one_a_hundredth() -> None:
    """No heads that share keys and values; rows as wide as the paper's are beside their model."""

    def parameters(shape: Shape) -> int:
        return shape.layer_parameters + shape.head_parameters

    assert parameters(WIDE) + WIDE.head_parameters == pytest.approx(204e6, rel=0.01)
    assert parameters(small_shape(WIDE)) / parameters(WIDE) == pytest.approx(67 / 7000, rel=0.35)
    assert WIDE.heads == WIDE.kv_heads


def test_it_is_made_once(tmp_path: Path) -> None:
    """Again for another shape alone."""
    folder = made(tmp_path / "wide", TINY_WIDE)
    before = (folder / MARK).stat().st_mtime_ns
    made(folder, TINY_WIDE)
    assert (folder / MARK).stat().st_mtime_ns == before
    made(folder, replace(TINY_WIDE, layers=2))
    assert Checkpoint.open(folder).spec.num_layers == 2
    assert is_wide(folder) and not is_wide(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["wide"]
