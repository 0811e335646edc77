"""Rules that keep the distribution keep it through whole rounds: drafts are sent, judged, taken back, and made anew."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
import torch
from oracle import prompt_for
from tiny_models import built

from device_agent.chain.chain import Chain
from device_agent.chain.model_ends import DeviceParts
from device_agent.sharing.compute import Compute
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay
from drafting.choosing import Chooser
from drafting.drafter import Drafter
from drafting.hybrid import HybridDrafter
from drafting.lookup import LookupDrafter
from drafting.small_model import SmallModel, SmallModelDrafter
from service.draft_settings import DraftSettings
from split_model.checkpoint import Checkpoint
from split_model.reference import Reference
from split_model.sampling import SamplingParams, probabilities
from split_model.slices import whole
from split_model.stack import Embedding, Head, Stack

TEXTS, TOKENS = 4000, 3
FEWEST = 5
PARAMS = SamplingParams(temperature=0.4, top_k=3)
SETTINGS = DraftSettings(draft_length="fixed", draft_threshold=0.0, draft_cap=3)


class Flatter(SmallModel):
    """The model itself, less sure of what it says: drafts that are right about as often as not."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """A third of its own."""
        return super().logits(hidden) / 3


def drafter_of(path: Path, kind: str) -> Drafter:
    """``silent``: one that repeats the text, and mostly says nothing; ``flatter``; or both."""
    checkpoint = Checkpoint.open(path)
    embedding = Embedding.load(checkpoint, torch.float32)
    stack = Stack.load(checkpoint, whole(checkpoint.spec), torch.float32)
    head = Head.load(checkpoint, checkpoint.spec, torch.float32, embedding)
    flatter = SmallModelDrafter("flatter", Flatter(embedding, stack, head, checkpoint.spec.vocab_size), 0)
    found: dict[str, Drafter] = {
        "silent": LookupDrafter(),
        "flatter": flatter,
        "both": HybridDrafter(flatter, LookupDrafter()),
    }
    return found[kind]


def chance_of(counts: Counter[tuple[int, ...]], path: Path, prompt: tuple[int, ...]) -> float:
    """The p-value of the texts under the model's own distribution (chi-square, cells under ``FEWEST`` together)."""
    reference = Reference.load(path)
    exact: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(TOKENS):
        further = {}
        for text, chance in exact.items():
            following = probabilities(reference.logits([*prompt, *text])[-1], PARAMS, prompt, text)
            for token in following.nonzero().flatten().tolist():
                longer = (*text, token)
                further[longer] = chance * float(following[token])
        exact = further
    assert set(counts) <= set(exact), "a token came that the warpers rule out"
    cells = [(counts[text], TEXTS * chance) for text, chance in exact.items() if TEXTS * chance >= FEWEST]
    rest = TEXTS - sum(seen for seen, _ in cells), TEXTS - sum(wanted for _, wanted in cells)
    cells += [rest] if rest[1] >= FEWEST else []
    assert len(cells) > 8
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    return float(torch.special.gammaincc(torch.tensor((len(cells) - 1) / 2).double(), torch.tensor(statistic / 2)))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("kind", ["silent", "flatter", "both"])
async def test_texts_are_distributed_as_the_models(
    rule: Literal["rejection", "block"], kind: str, tiny_folder: Path
) -> None:
    """Texts of many seeds, drafted in rounds by who says nothing now and then: as often as the model would say them."""
    path = built("llama", tiny_folder)
    compute, prompt = Compute(), prompt_for(path, 12)
    layers = Checkpoint.open(path).spec.num_layers
    chain = Chain(DeviceParts.load(Checkpoint.open(path), layers, 0, torch.float32), None, compute, 16)
    way = DraftingWay.of(drafter_of(path, kind), DraftSettings(**{**vars(SETTINGS), "verify": rule}))
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = proposed = 0
    for seed in range(TEXTS):
        session = chain.open(len(prompt) + TOKENS + 8, len(prompt), 0, way.drafter)
        generation = Generation(session, Chooser(PARAMS, prompt, seed, max_tokens=TOKENS), way)
        try:
            counts[tuple([chosen.token async for chosen in generation.run()])] += 1
        finally:
            session.close()
        accepted, proposed = accepted + generation.tally.accepted, proposed + generation.tally.proposed
    compute.stop()
    assert kind == "silent" or 0.1 * proposed < accepted < 0.9 * proposed, (accepted, proposed)
    assert chance_of(counts, path, prompt) > 0.001
