"""Layers here that read whole texts: the same rows as the encoder in one process, and refusals that take nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_models import build_tiny

from device_agent.chain.local import MAX_ROWS, LocalSubmodel
from device_agent.sharing.compute import Compute
from split_model.encoder import Encoder
from split_model.encoder_rows import TextRows


async def test_rows_are_those_of_the_encoder(tmp_path: Path, compute: Compute) -> None:
    """Several texts at once, with learned positions and relative ones; what comes behind the layers is the caller's."""
    for name in ("bert", "t5-encoder"):
        encoder = Encoder.load(build_tiny(name, tmp_path / name))
        assert isinstance(encoder.embedding, TextRows)
        texts = [[5, 6, 7], [8], [9, 10, 11, 12]]
        assert isinstance(encoder.embedding, TextRows)
        embedded = torch.cat([encoder.embedding.forward(each) for each in texts])
        found = await LocalSubmodel(encoder.stack, compute).read(embedded, [3, 1, 4])
        assert torch.equal(encoder.pooling.rows(found), torch.cat(encoder.texts(texts).rows))


@pytest.mark.parametrize(
    ("shape", "lengths"),
    [((3, 32), [2, 2]), ((3, 31), [3]), ((3, 32), [3, 0]), ((0, 32), []), ((MAX_ROWS + 1, 32), [MAX_ROWS + 1])],
)
async def test_what_is_no_texts_is_refused_before_anything_is_begun(
    tmp_path: Path, compute: Compute, shape: tuple[int, int], lengths: list[int]
) -> None:
    """Rows that the lengths do not add up to, rows of another width, an empty text, none at all, and too many."""
    reading = LocalSubmodel(Encoder.load(build_tiny("bert", tmp_path)).stack, compute)
    with pytest.raises(ValueError, match="rows"):
        reading.read(torch.zeros(shape), lengths)
    assert compute.queue.idle
