"""The demo model as a device serves it, without the processes around it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from checkpoints import DEMO
from clouds import chain_over
from oracle import oracle_tokens

from device_agent.answering.answer import ServedChain
from device_agent.answering.conversations import Conversations
from device_agent.answering.grammars import Grammars
from device_agent.answering.tokenizer import Tokenizer
from device_agent.sharing.compute import Compute, FairThreads
from device_agent.sharing.permits import Permits
from device_agent.speculative.drafters import Drafters
from device_agent.speculative.way import DraftingWays
from service.draft_settings import DraftSettings
from split_model.checkpoint import Checkpoint
from split_model.submodel import Submodel

DRAFTLESS = Drafters({"none": None}, 0)
LONG_DRAFTS = DraftSettings(draft_length="fixed", draft_threshold=0.0, draft_cap=6)


@asynccontextmanager
async def served(
    middle: Submodel | None,
    drafters: Drafters = DRAFTLESS,
    settings: DraftSettings = LONG_DRAFTS,
    *,
    split: int | None = None,
    tail: int = 0,
    permits: int = 8,
    conversations: int = 4,
    compute: Compute | None = None,
) -> AsyncIterator[ServedChain]:
    """The demo model, its middle layers where ``middle`` has them, or all of it here; ``compute`` is ended with it."""
    compute, layers = compute or Compute(), Checkpoint.open(DEMO).spec.num_layers
    if split is None:
        split = 2 if middle is not None else layers
    chain = chain_over(DEMO, split, tail, middle, compute, 0)
    tokenizer = Tokenizer.load(DEMO, chain.parts.spec.eos_token_ids)
    kept, readers = Conversations(conversations, 2**30, 60.0), FairThreads(1, "prompt")
    ways, grammars = DraftingWays(drafters, settings), Grammars.of(tokenizer, chain.parts.spec.vocab_size)
    try:
        yield ServedChain(chain, tokenizer, 1024, 64, Permits(permits), kept, ways, readers, grammars)
        kept.close()
    finally:
        if grammars is not None:
            grammars.stop()
        readers.stop()
        compute.stop()


def expected(model: ServedChain, ids: tuple[int, ...], tokens: int) -> bytes:
    """The bytes of the greedy tokens after a prompt, as transformers says them."""
    return b"".join(model.tokenizer.piece(token)[1] for token in oracle_tokens(DEMO, ids, tokens))
