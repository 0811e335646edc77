"""Models that read one text and write another, with both halves in a group; and what transformers writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from device_agent.chain.chain import Chain
from device_agent.chain.model_ends import DeviceParts
from device_agent.chain.source import Sources
from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.sharing.compute import Compute
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay
from drafting.choosing import Chooser
from service.draft_settings import DraftSettings
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams

TOKENS = 24


def ids(count: int, seed: int = 0) -> list[int]:
    """A text of so many tokens."""
    return torch.randint(3, 97, (count,), generator=torch.Generator().manual_seed(100 * seed + count)).tolist()


@torch.inference_mode()
def oracle_written(path: Path, text: Sequence[int], tokens: int = TOKENS) -> list[int]:
    """What transformers writes greedily of a text."""
    kind: Any = transformers.T5ForConditionalGeneration
    model = kind.from_pretrained(path, dtype=torch.float32).eval()
    found: list[int] = model.generate(
        torch.tensor([text]),
        attention_mask=torch.ones(1, len(text), dtype=torch.long),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
    )[0, 1:].tolist()
    return found


@dataclass
class Written:
    """What a chain writes whose layers, both halves of them, are in a group."""

    chain: Chain

    @classmethod
    def over(cls, path: Path, group: GroupSubmodel, compute: Compute) -> Written:
        """Of the model in a folder."""
        checkpoint = Checkpoint.open(path, "cross")
        parts = DeviceParts.load(checkpoint, 0, 0, torch.float32)
        sources, _ = Sources.over(checkpoint, parts.embedding, group, torch.float32, compute)
        return cls(Chain(parts, group, compute, 0, sources=sources))

    async def of(
        self, text: Sequence[int], tokens: int = TOKENS, at: int = 0, then: Callable[[], object] | None = None
    ) -> list[int]:
        """What is written of a text; ``then`` is done when so many tokens are there."""
        sources = self.chain.sources
        assert sources is not None
        source = await sources.read(text)
        session = self.chain.open(1 + tokens, 1, source=source)
        chooser = Chooser(SamplingParams(), [sources.start], 0, max_tokens=tokens)
        found: list[int] = []
        try:
            async for each in Generation(session, chooser, DraftingWay.of(None, DraftSettings())).run():
                found.append(each.token)
                if then is not None and len(found) == at:
                    then()
        finally:
            session.close()
        return found
