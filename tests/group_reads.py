"""Whole texts and images for groups to read, and what transformers says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_models import built

from split_model.checkpoint import Checkpoint
from split_model.encoder_rows import PatchRows, TextRows
from split_model.spec import ModelSpec

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Read:
    """Embedded texts, one behind the other, and what transformers has behind the last layer for each alone."""

    path: Path
    spec: ModelSpec
    hidden: torch.Tensor
    lengths: list[int]
    wanted: list[torch.Tensor]

    def check(self, got: torch.Tensor) -> None:
        """Each text's rows."""
        for mine, expected in zip(got.split_with_sizes(self.lengths), self.wanted, strict=True):
            torch.testing.assert_close(mine, expected, atol=TOLERANCE, rtol=0)


@torch.inference_mode()
def read_of(name: str, folder: Path, lengths: Sequence[int] = (17, 1, 30)) -> Read:
    """Texts of so many tokens, or as many images."""
    path = built(name, folder)
    checkpoint = Checkpoint.open(path, "bidirectional")
    [architecture] = json.loads((path / "config.json").read_text())["architectures"]
    model: Any = getattr(transformers, architecture).from_pretrained(path, dtype=torch.float32).eval()
    drawn = torch.Generator().manual_seed(5)
    if checkpoint.spec.patches is None:
        texts = [torch.randint(0, 97, (length,), generator=drawn) for length in lengths]
        rows = TextRows.load(checkpoint, torch.float32)
        embedded = [rows.forward(text.tolist()) for text in texts]
        found = [
            model(text[None], attention_mask=torch.ones_like(text[None]), output_hidden_states=True) for text in texts
        ]
    else:
        images = torch.randn(len(lengths), 3, 12, 20, generator=drawn)
        patches = PatchRows.load(checkpoint, torch.float32)
        embedded = [patches.forward(image) for image in images]
        found = [model(pixel_values=image[None], output_hidden_states=True) for image in images]
    wanted = [each.hidden_states[-1][0].clone() for each in found]
    return Read(path, checkpoint.spec, torch.cat(embedded).clone(), [len(each) for each in embedded], wanted)
