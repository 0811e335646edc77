"""What Hugging Face transformers gives for a checkpoint: the truth that every path is compared with."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TOLERANCE = 1e-4
"""Largest difference of two logits, in fp32, where logits are of the order of ten."""


def tolerance(logits: torch.Tensor) -> float:
    """The largest difference allowed beside these logits: rounding grows with them.

    The demo model's logits reach 32; there transformers itself is 1.3e-4 away from its own result in float64, and
    this code 1.1e-4.
    """
    return TOLERANCE * max(1.0, float(logits.abs().max()) / 10)


@lru_cache(maxsize=32)
def oracle_model(path: Path) -> Any:
    """The whole model, fp32."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@lru_cache(maxsize=1024)
def oracle_tokens(path: Path, prompt: tuple[int, ...], tokens: int) -> list[int]:
    """``tokens`` tokens of greedy ``generate`` after ``prompt``, end tokens not ending it."""
    with torch.inference_mode():
        model = oracle_model(path)
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return list(output[0, len(prompt) :].tolist())


@lru_cache(maxsize=1024)
def oracle_answer(path: Path, question: str, tokens: int, *, whole: bool = False) -> tuple[str, int]:
    """What the model says to a question, greedy, as text, and the tokens of the prompt; ``whole``: with all tokens,
    whatever would end it."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    turns = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ending = {"min_new_tokens": tokens, "eos_token_id": None, "pad_token_id": 0} if whole else {}
    with torch.inference_mode():
        output = oracle_model(path).generate(**inputs, max_new_tokens=tokens, do_sample=False, **ending)
    length = inputs["input_ids"].shape[1]
    return str(tokenizer.decode(output[0, length:], skip_special_tokens=True)), length


@lru_cache(maxsize=64)
def oracle_logits(path: Path, ids: tuple[int, ...]) -> torch.Tensor:
    """Logits ``[len(ids), vocab]`` of one forward pass."""
    with torch.inference_mode():
        logits: torch.Tensor = oracle_model(path)(torch.tensor([ids])).logits[0].float()
        return logits


def prompt_for(path: Path, length: int, seed: int = 0) -> tuple[int, ...]:
    """A prompt of random token ids of this model's vocabulary."""
    vocabulary = int(oracle_model(path).config.vocab_size)
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, vocabulary, (length,), generator=generator).tolist())
