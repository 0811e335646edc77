"""The check that a chain of submodels is the model: transformers' tokens, and its logits within 1e-4, in fp32."""

from __future__ import annotations

from pathlib import Path

import pytest
from clouds import greedy, logits_of
from oracle import oracle_logits, oracle_tokens, prompt_for, tolerance

from device_agent.chain.chain import Chain
from split_model.checkpoint import Checkpoint

TOKENS = 64
PROMPT = 70
CHUNKS = (1, 7, 64, PROMPT)
CUTS = [("0", 0), ("1", 0), ("2", 0), ("all", 0), ("0", 1), ("1", 1), ("2", 1), ("all", 1)]


def layers_of(cut: tuple[str, int], path: Path) -> tuple[int, int]:
    """The cut's m and k for this model; a model with fewer layers skips the ones it has not."""
    layers = Checkpoint.open(path).spec.num_layers
    tail = cut[1]
    split = layers - tail if cut[0] == "all" else int(cut[0])
    if split + tail > layers:
        pytest.skip(f"{layers} layers cannot be cut at {cut}")
    return split, tail


async def check_exact(chain: Chain, path: Path, tokens: int = TOKENS, length: int = PROMPT) -> None:
    """Tokens and logits of the chain equal transformers'."""
    prompt = prompt_for(path, length)
    expected = oracle_tokens(path, prompt, tokens)
    assert await greedy(chain, list(prompt), tokens) == expected
    ids = prompt + tuple(expected)
    session = chain.open(len(ids))
    try:
        logits = await logits_of(session, ids, len(ids))
    finally:
        session.close()
    truth = oracle_logits(path, ids)
    assert float((logits - truth).abs().max()) < tolerance(truth)
