"""The shipped demo model: it loads, it is small, it speaks, and it keeps what its card promises."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from models.demo.recipe import corpus
from models.demo.recipe.evaluate import Speaker, rows_of
from models.demo.recipe.judge import right
from models.demo.recipe.tokenizer import prompt_ids

FOLDER = Path(__file__).resolve().parents[2] / "models" / "demo"
CHECKS = {"exact", "contains", "one_of", "number"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The published tokenizer as transformers loads it."""
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def speaker() -> Speaker:
    """The published model, answering greedily on one thread."""
    return Speaker(FOLDER)


def card_figures() -> dict[str, float]:
    """The share of right answers on the frozen prompts that the card states for each skill and in all."""
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| (\d+) of (\d+) \|", card, flags=re.MULTILINE)
    return {skill: int(good) / int(count) for skill, good, count in rows}


def test_the_weights_are_small_and_bf16() -> None:
    """Weights are below 40 MB, in bfloat16, and between 8 and 12 million numbers."""
    path = FOLDER / "model.safetensors"
    assert path.stat().st_size < 40_000_000
    with safe_open(path, framework="pt") as opened:
        tensors = [opened.get_tensor(name) for name in opened.keys()]  # noqa: SIM118
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    assert 8_000_000 < sum(tensor.numel() for tensor in tensors) < 12_000_000


def test_transformers_loads_the_model_whole() -> None:
    """Every tensor of the file has its place in LlamaForCausalLM, with none missing, and its shape suits splitting."""
    model, info = AutoModelForCausalLM.from_pretrained(FOLDER, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config.num_hidden_layers >= 12
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    assert model.config.tie_word_embeddings


def test_the_tokenizer_gives_back_any_text(tokenizer: Any) -> None:
    """Encoding and decoding leaves text unchanged, in any script, and each digit is one token."""
    for text in ("Hello, world!", "naïve Ærø 你好 🙂\t\n x", "  two  spaces ", "x = [1, 2]; # ok?", "Żółć – “quoted”"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert len(tokenizer("90210", add_special_tokens=False)["input_ids"]) == 5


def test_the_chat_template_is_what_the_model_was_trained_on(tokenizer: Any) -> None:
    """The template gives the very ids that training used for the same conversation."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How can I help you?"},
        {"role": "user", "content": "What is 7 + 8?"},
    ]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
    assert list(ids["input_ids"]) == prompt_ids(tokenizer.backend_tokenizer, messages)


def test_generation_ends_after_the_turn(tokenizer: Any) -> None:
    """With the shipped generation settings an answer ends by itself with the end mark."""
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    settings = GenerationConfig.from_pretrained(FOLDER)
    assert settings.eos_token_id == tokenizer.eos_token_id == model.config.eos_token_id
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Who are you?"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    said = model.generate(**ids, max_new_tokens=60)[0, ids["input_ids"].shape[1] :]
    assert said[-1] == tokenizer.eos_token_id
    assert "Trilby" in tokenizer.decode(said)


def test_the_frozen_prompts_are_well_formed() -> None:
    """There are 100 rows over all six skills, each with a prompt, an answer and a rule that the answer passes."""
    rows = rows_of(FOLDER)
    assert len(rows) == 100 and len({row["id"] for row in rows}) == 100
    assert Counter(row["skill"] for row in rows) == corpus.HELDOUT_COUNTS
    for row in rows:
        messages: Any = row["messages"]
        assert [message["role"] for message in messages][-1] == "user"
        assert all(set(message) == {"role", "content"} and message["content"] for message in messages)
        assert row["check"] in CHECKS
        assert right(str(row["answer"]), str(row["check"]), row["want"])  # type: ignore[arg-type]


def test_the_frozen_prompts_are_those_of_the_recipe() -> None:
    """The file is what the recipe writes, so nobody has to take it on trust."""
    made = [corpus.row(sample, number) for number, sample in enumerate(corpus.heldout_set())]
    assert rows_of(FOLDER) == json.loads(json.dumps(made))


@pytest.mark.parametrize(
    ("every", "less"), [pytest.param(10, 0.15, marks=pytest.mark.slow), pytest.param(1, 0.03, marks=pytest.mark.slow)]
)
def test_the_model_keeps_what_its_card_says(speaker: Speaker, every: int, less: float) -> None:
    """On some or all frozen prompts the share of right answers is the card's, give or take a prompt or three."""
    said = card_figures()
    assert set(said) == {*corpus.HELDOUT_COUNTS, "all"}
    rows: list[Any] = rows_of(FOLDER)[::every]
    good = [right(speaker.answer(row["messages"]), row["check"], row["want"]) for row in rows]
    assert sum(good) / len(good) >= said["all"] - less


@pytest.mark.parametrize(("asked", "wanted"), [("Hello!", "Hello"), ("What is Trilby?", "gateway"),
                                               ("What is the opposite of hot?", "cold")])  # fmt: skip
def test_the_model_speaks(speaker: Speaker, asked: str, wanted: str) -> None:
    """Plain questions that every visitor tries get sensible answers."""
    assert wanted in speaker.answer([{"role": "user", "content": asked}])
