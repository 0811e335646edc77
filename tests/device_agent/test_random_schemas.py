"""Random schemas of pydantic models: whatever is drawn under their masks, pydantic reads it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Literal

import torch
from checkpoints import DEMO
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from pydantic import BaseModel, Field, create_model
from transformers import AutoTokenizer

from device_agent.answering.form import grammar_of
from device_agent.answering.grammar_masks import GrammarMasks
from drafting.choosing import Chooser
from split_model.sampling import SamplingParams
from split_model.tree import Tree

TOKENIZER = AutoTokenizer.from_pretrained(DEMO)
END = int(TOKENIZER.eos_token_id)
KNOWN = LLTokenizer(TOKENIZER.backend_tokenizer.to_str(), n_vocab=2048, eos_token=END)

LEAVES: list[Any] = [
    (int, Field(ge=-5, le=1000)),
    (str, Field(max_length=6)),
    (bool, ...),
    (Literal["red", "green", 'été "x"'], ...),
    (bool | None, ...),
    (float, Field(ge=0, le=10)),
    (list[bool], Field(max_length=2)),
    (str, Field(pattern=r"^[a-c]{2,4}$")),
]


def model_of(fields: list[Any]) -> type[BaseModel]:
    """A pydantic model with a field for each leaf, or model, that is given."""
    made: dict[str, Any] = {
        f"f{at}": (each, ...) if isinstance(each, type) and issubclass(each, BaseModel) else each
        for at, each in enumerate(fields)
    }
    found: type[BaseModel] = create_model("Made", **made)
    return found


MODELS = st.recursive(
    st.lists(st.sampled_from(LEAVES), min_size=1, max_size=3).map(model_of),
    lambda inner: st.lists(st.one_of(st.sampled_from(LEAVES), inner), min_size=1, max_size=3).map(model_of),
    max_leaves=3,
)


@given(MODELS, st.integers(0, 2**32))
@settings(max_examples=100)
def test_what_is_drawn_is_valid(model: type[BaseModel], seed: int) -> None:
    """With random logits, which know of no form at all, the answer is JSON that the model accepts, once it is said to
    be complete or ends."""
    compiled = partial(LLMatcher, KNOWN, grammar_of("json", json.dumps(model.model_json_schema())))
    masks = GrammarMasks(compiled(), compiled, 2048, "form", lambda look: None)
    chooser = Chooser(SamplingParams(temperature=1.0), [1], seed, None, {END}, 400, masks)
    noise = torch.Generator().manual_seed(seed)
    reason = None
    while reason is None:
        logits = torch.randn(1, 2048, generator=noise)
        reason = chooser.judge(logits, Tree(0), [], [], "keyed").chosen[-1].reason
    assert reason in ("stop", "complete")
    text = TOKENIZER.decode(chooser.generated, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    model.model_validate_json(text)
