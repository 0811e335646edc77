"""Prompts of the length that is wanted, by the tokenizer of the device."""

from __future__ import annotations

import json

import pytest
from bench.hat import prompts
from bench.hat.lengths import DATASETS, draw
from bench.hat.prompts import DIFFERENT, SHORTEST, TOLERANCE, Prompt, demo_prompts, real_prompts
from checkpoints import DATA, DEMO
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.prompt import read_prompt
from device_agent.tokenizer import Tokenizer
from models.demo.recipe.sample import is_heldout
from wire.messages import ChatTurn, Generate

MOST = 1900


def ids_of(prompt: Prompt) -> list[int]:
    """What a device makes of the messages."""
    turns = [ChatTurn(each["role"], each["content"]) for each in prompt.messages]
    request = Generate(1, "test", "demo", turns, max_tokens=128)
    return read_prompt(request, tokenizer(), 2048, 128, 2048).ids


def tokenizer() -> Tokenizer:
    """The one that is loaded already."""
    return prompts.demo_tokenizer()


@settings(max_examples=5, deadline=None)
@given(lengths=st.lists(st.integers(SHORTEST, MOST), min_size=1, max_size=12), seed=st.integers(0, 1000))
def test_any_length(lengths: list[int], seed: int) -> None:
    """Within the tolerance, as the device counts, and as the prompt itself says."""
    found = demo_prompts(lengths, seed)
    assert len(found) == len(lengths)
    for wanted, prompt in zip(lengths, found, strict=True):
        assert len(ids_of(prompt)) == prompt.tokens
        assert abs(prompt.tokens - wanted) <= TOLERANCE


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


def test_seeds() -> None:
    """The same seed, the same prompts; another, others."""
    assert demo_prompts([40, 300], 1) == demo_prompts([40, 300], 1)
    assert not {json.dumps(each.messages) for each in demo_prompts([40, 300], 1)} & {
        json.dumps(each.messages) for each in demo_prompts([40, 300], 2)
    }


def test_too_short_to_be_made() -> None:
    """No prompt is quietly longer than was asked for."""
    with pytest.raises(ValueError, match=f"{SHORTEST}"):
        demo_prompts([300, SHORTEST - 1], 0)


def test_the_template_is_the_device_s() -> None:
    """Counting is what a freshly loaded tokenizer of the demo model says."""
    prompt = demo_prompts([200], 9)[0]
    turns = [ChatTurn(each["role"], each["content"]) for each in prompt.messages]
    assert len(Tokenizer.load(DEMO, ()).chat(turns)) == prompt.tokens


@pytest.mark.parametrize("name", ["spec_bench", "superglue_boolq_val", "mt_bench_reference", "gsm8k_test", "humaneval"])
def test_real_prompts(name: str) -> None:
    """As many as asked for, none too long, each one of the set's own."""
    if not (DATA / "prompts" / f"{name}.jsonl").exists():
        pytest.skip("the published prompts are not at hand: measured data is kept apart from the product")
    found = real_prompts(name, 12, 3, MOST)
    assert len(found.prompts) == 12 and found == real_prompts(name, 12, 3, MOST)
    text = (DATA / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8")
    for prompt in found.prompts:
        assert len(ids_of(prompt)) == prompt.tokens <= MOST
        assert json.dumps(prompt.messages[0]["content"], ensure_ascii=False)[1:21] in text


def test_too_long_ones_are_counted() -> None:
    """Each is taken or left out."""
    path = DATA / "prompts" / "spec_bench.jsonl"
    if not path.exists():
        pytest.skip("the published prompts are not at hand: measured data is kept apart from the product")
    rows = len(path.read_text(encoding="utf-8").splitlines())
    found = real_prompts("spec_bench", rows + 1, 0, 100)
    assert found.left_out > 0 and len(found.prompts) + found.left_out == rows
    assert max(each.tokens for each in found.prompts) <= 100


def test_a_set_without_prompts() -> None:
    """Rows that have none are an error, not an empty prompt; so is a set that is not there."""
    if (DATA / "prompts" / "superglue_wic_val.jsonl").exists():
        with pytest.raises(ValueError, match="sentence1"):
            real_prompts("superglue_wic_val", 1, 0, MOST)
    with pytest.raises(FileNotFoundError):
        real_prompts("nothing", 1, 0, MOST)
