"""Independent small models that the drafters are compared with: plain Llamas with the demo model's tokenizer.

They share nothing with the demo model and are trained on the same text, towards the demo model's distributions, over
as many tokens as the drafters. `counted` has no more parameters than the fused drafter, its embedding included; `body`
has as many without it.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from drafting.distill.batches import TrainingBatch, assembled, places, planned
from drafting.distill.features import FeatureFiles
from drafting.distill.losses import cross_entropy
from drafting.distill.network import FrozenHead
from drafting.distill.training import CLIP, rate_share
from split_model.spec import ModelSpec

RATE = 4e-3
BATCH_TOKENS = 1024
SHAPES = {
    "counted": {"hidden_size": 64, "intermediate_size": 216, "num_hidden_layers": 3},
    "body": {"hidden_size": 96, "intermediate_size": 240, "num_hidden_layers": 3},
}


def small_model(name: str, spec: ModelSpec, seed: int) -> LlamaForCausalLM:
    """An untrained one."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=spec.max_positions,
        rms_norm_eps=spec.norm_eps,
        tie_word_embeddings=True,
        bos_token_id=spec.bos_token_id,
        eos_token_id=list(spec.eos_token_ids),
        **SHAPES[name],
    )
    return LlamaForCausalLM(config)


def logits(model: LlamaForCausalLM, batch: TrainingBatch, here: Tensor) -> Tensor:
    """Of the tokens behind the chosen places, [places, vocab]."""
    found: Tensor = model.lm_head(model.model(input_ids=batch.ids).last_hidden_state[here])
    return found


def train_small(
    model: LlamaForCausalLM, head: FrozenHead, files: FeatureFiles, tokens: int, seed: int, told: Callable[[int], None]
) -> None:
    """Train in place, towards KL(demo model || small model), with the batches of the drafters."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.0)
    read = step = epoch = 0
    while read < tokens:
        for group in planned(files.lengths, BATCH_TOKENS, seed, epoch):
            batch = assembled(files, group, random.Random(f"{seed}-{step}"))
            here = places(batch.own, 0)
            with torch.no_grad():
                p = head.logits(head.normed(batch.rows.deep[here])).softmax(-1)
            loss = cross_entropy(logits(model, batch, here).log_softmax(-1), p)
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            for settings in optimizer.param_groups:
                settings["lr"] = RATE * rate_share(read / tokens)
            optimizer.step()
            step += 1
            read += sum(files.lengths[number] for number in group)
            told(read)
            if read >= tokens:
                return
        epoch += 1


def save_small(model: LlamaForCausalLM, demo: Path, out: Path) -> None:
    """Write the model as a checkpoint folder in bfloat16, with the demo model's tokenizer."""
    out.mkdir(parents=True, exist_ok=True)
    narrow = {
        name: value.detach().to(torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(narrow, out / "model.safetensors", metadata={"format": "pt"})
    config = {**model.config.to_dict(), "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(demo / name, out / name)
