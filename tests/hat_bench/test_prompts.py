"""Prompts of the length that is wanted, by the tokenizer of the device."""

from __future__ import annotations

import json

import pytest
from bench.hat import prompts
from bench.hat.lengths import DATASETS, draw
from bench.hat.prompts import DIFFERENT, SHORTEST, TOLERANCE, Prompt, demo_prompts, real_prompts
from checkpoints import DATA
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.answering.prompt import read_prompt
from device_agent.answering.tokenizer import Tokenizer
from models.demo.recipe.sample import is_heldout
from wire.request_messages import ChatTurn, Generate

MOST = 1900


def ids_of(prompt: Prompt) -> list[int]:
    """What a device makes of the messages."""
    turns = [ChatTurn(each["role"], each["content"]) for each in prompt.messages]
    request = Generate(1, "test", "demo", turns, max_tokens=128)
    return read_prompt(request, tokenizer(), 2048, 128, 2048).ids


def tokenizer() -> Tokenizer:
    """The one that is loaded already."""
    return prompts.demo_tokenizer()


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(lengths=st.lists(st.integers(SHORTEST, MOST), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_any_length(lengths: list[int], seed: int) -> None:
    """Within the tolerance, as the device counts, and as the prompt itself says."""
    found = demo_prompts(lengths, seed)
    assert len(found) == len(lengths)
    for wanted, prompt in zip(lengths, found, strict=True):
        assert len(ids_of(prompt)) == prompt.tokens
        assert abs(prompt.tokens - wanted) <= TOLERANCE


def test_a_seed_has_its_prompts() -> None:
    """The same again, and others than another's."""
    one, again, other = (demo_prompts([40, 200], seed) for seed in (3, 3, 4))
    assert one == again != other


@pytest.mark.parametrize("name", DATASETS)
def test_no_two_begin_alike(name: str) -> None:
    """Nothing of one prompt can be used again for another."""
    found = [ids_of(each) for each in demo_prompts(draw(DATASETS[name], 48, 0, MOST), 5)]
    assert len({tuple(each[:DIFFERENT]) for each in found}) == len(found)


def test_what_they_end_with() -> None:
    """The last turn is a request that training never saw; turns alternate, and nearly every request is another."""
    found = demo_prompts(draw(DATASETS["specbench"], 48, 0, MOST), 6)
    for prompt in found:
        assert [each["role"] for each in prompt.messages] == ["user", "assistant"] * (len(prompt.messages) // 2) + [
            "user"
        ]
        assert is_heldout(prompt.messages[-1]["content"])
    assert len({prompt.messages[-1]["content"] for prompt in found}) > 40


def test_real_prompts() -> None:
    """As many as asked for, none too long, each one of the set's own; too long ones are passed over."""
    file = DATA / "prompts" / "spec_bench.jsonl"
    if not file.exists():
        pytest.skip("the published prompts are not at hand: measured data is kept apart from the product")
    found, text = real_prompts(12, 3, MOST), file.read_text(encoding="utf-8")
    assert len(found) == 12 and found == real_prompts(12, 3, MOST)
    for prompt in found:
        assert len(ids_of(prompt)) == prompt.tokens <= MOST
        assert json.dumps(prompt.messages[0]["content"], ensure_ascii=False)[1:21] in text
    short = real_prompts(10_000, 0, 100)
    assert 0 < len(short) < len(text.splitlines()) and max(each.tokens for each in short) <= 100
