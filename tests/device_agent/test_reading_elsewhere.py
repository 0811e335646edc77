"""What is read on a device that is not the CPU, and in half precision: the same vectors, chances and texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from elsewhere import elsewhere
from encoder_decoder import EncoderDecoder
from tiny_models import TRANSLATOR_NAMES, build_tiny

from device_agent.chain.chain import Chain
from device_agent.chain.local import LocalSubmodel
from device_agent.chain.model_ends import DeviceParts
from device_agent.chain.reader import Reader
from device_agent.chain.source import Sources
from device_agent.sharing.compute import Compute
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay
from drafting.choosing import Chooser
from service.draft_settings import DraftSettings
from split_model.checkpoint import Checkpoint
from split_model.dense import Dense
from split_model.device import fetched
from split_model.encoder import Encoder
from split_model.sampling import SamplingParams
from split_model.text_vectors import POOLINGS, TextVectors

TEXTS = [[5, 9, 80, 7], [44, 3], [11, 12, 13, 14]]


@elsewhere
@pytest.mark.parametrize("name", ["bert", "qwen3"])
async def test_vectors_elsewhere(tmp_path: Path, compute: Compute, name: str, device: torch.device) -> None:
    """Of every pooling there is, through a dense matrix, of length 1; what comes out is in the host's memory."""
    folder, inputs = build_tiny(name, tmp_path), len(POOLINGS) * 32
    weight = torch.randn(6, inputs, generator=torch.Generator().manual_seed(1))
    vectors = TextVectors(tuple(POOLINGS), (Dense(weight, torch.ones(6), "Tanh"),), normalized=True)
    found = []
    for where in (device, torch.device("cpu")):
        encoder = Encoder.load(Checkpoint.open(folder, None), device=where)
        layers = LocalSubmodel(encoder.stack, compute)
        reader = Reader(encoder.embedding, layers, encoder.pooling, compute)
        texts = [(text, None) for text in TEXTS]
        found.append(await reader.read(texts, lambda rows, lengths: fetched(vectors.vectors(rows, lengths))[0]))
    assert found[0].is_cpu
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-4)


async def written(chain: Chain, prompt: list[int], tokens: int) -> list[int]:
    assert chain.sources is not None
    chooser = Chooser(SamplingParams(), [chain.sources.start], 0, max_tokens=tokens)
    session = chain.open(1 + tokens, 1, source=await chain.sources.read(prompt))
    try:
        return [each.token async for each in Generation(session, chooser, DraftingWay.of(None, DraftSettings())).run()]
    finally:
        session.close()


def chain_of(folder: Path, compute: Compute, dtype: torch.dtype, device: torch.device | str) -> Chain:
    checkpoint = Checkpoint.open(folder, "cross")
    parts = DeviceParts.load(checkpoint, checkpoint.spec.num_layers, 0, dtype, device)
    sources, _ = Sources.load(checkpoint, parts.embedding, parts.front, compute)
    return Chain(parts, None, compute, 0, sources=sources)


@elsewhere
@pytest.mark.parametrize("name", TRANSLATOR_NAMES)
async def test_texts_are_written_elsewhere(tmp_path: Path, compute: Compute, name: str, device: torch.device) -> None:
    """By the one generation loop: the tokens are the library's."""
    folder = build_tiny(name, tmp_path)
    chain = chain_of(folder, compute, torch.float32, device)
    assert await written(chain, TEXTS[0], 12) == EncoderDecoder.load(folder).generate(TEXTS[0], 12)


async def test_texts_are_written_in_half_precision(tmp_path: Path, compute: Compute) -> None:
    """The same, row by row."""
    folder = build_tiny("t5", tmp_path)
    chain = chain_of(folder, compute, torch.bfloat16, "cpu")
    assert await written(chain, TEXTS[0], 24) == EncoderDecoder.load(folder, torch.bfloat16).generate(TEXTS[0], 24)
