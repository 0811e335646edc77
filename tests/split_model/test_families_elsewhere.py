"""Models that read, in half precision and on a device that is not the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from elsewhere import elsewhere
from encoder_decoder import EncoderDecoder
from tiny_models import READER_NAMES, TRANSLATOR_NAMES, built

from split_model.encoder import Encoded, Encoder
from split_model.reference import Reference

TEXTS = [[5, 9, 80, 7], [44, 3], [11, 12, 13, 14]]


def encoded(encoder: Encoder) -> Encoded:
    """Of three texts, or two images."""
    if encoder.spec.patches is None:
        return encoder.texts(TEXTS)
    return encoder.images(list(torch.randn(2, 3, 12, 20, generator=torch.Generator().manual_seed(1))))


def all_of(found: Encoded) -> list[torch.Tensor]:
    """On the host, as float32."""
    rest = [each for each in (found.pooled, found.logits) if each is not None]
    return [each.float().cpu() for each in (*found.rows, *rest)]


@elsewhere
@pytest.mark.parametrize("name", READER_NAMES)
def test_readers_elsewhere(name: str, tiny_folder: Path, device: torch.device) -> None:
    """Rows, pooled rows and classes are the CPU's."""
    folder = built(name, tiny_folder)
    found = encoded(Encoder.load(folder, device=device))
    assert found.rows[0].device == device
    for there, here in zip(all_of(found), all_of(encoded(Encoder.load(folder))), strict=True):
        torch.testing.assert_close(there, here, rtol=0, atol=1e-4)


@elsewhere
@pytest.mark.parametrize("name", TRANSLATOR_NAMES)
def test_texts_are_written_elsewhere(name: str, tiny_folder: Path, device: torch.device) -> None:
    """The tokens are the CPU's."""
    folder = built(name, tiny_folder)
    assert EncoderDecoder.load(folder, device=device).generate(TEXTS[0], 12) == EncoderDecoder.load(folder).generate(
        TEXTS[0], 12
    )


@pytest.mark.parametrize("name", ["gpt2", "opt-post-norm", *READER_NAMES, *TRANSLATOR_NAMES])
def test_half_precision_is_near(name: str, tiny_folder: Path) -> None:
    """Every part of every family computes in bfloat16, and differs by rounding alone."""
    folder, found = built(name, tiny_folder), []
    for dtype in (torch.bfloat16, torch.float32):
        if name in READER_NAMES:
            found.append(torch.cat([each.flatten() for each in all_of(encoded(Encoder.load(folder, dtype)))]))
        elif name in TRANSLATOR_NAMES:
            model = EncoderDecoder.load(folder, dtype)
            found.append(model.logits(model.read(TEXTS[:1])[0], TEXTS[0]).flatten())
        else:
            found.append(Reference.load(folder, dtype).logits(TEXTS[0]).flatten())
    assert torch.nn.functional.cosine_similarity(found[0], found[1], 0) > 0.99
