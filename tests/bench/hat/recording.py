"""Records what the demo model's drafters say along its own greedy answers, to be replayed on a model that costs more.

    PYTHONPATH=tests python -m bench.hat.recording

The model is the one with stretched positions, its drafters those that were made for it, and the prompts are as long as
those that are measured. Behind every token of every answer each drafter drafts as it would in service, with the
product's own arithmetic, but as deep as anybody might want. Answers are token for token the model's own; float32, split
behind layer 2.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from bench.draft_models import Target, drafters_of
from bench.draft_runs import answer, chain_here
from bench.draft_texts import end_ids
from bench.hat.lengths import CNN_DM, POSITIONS, SPECBENCH, draw
from bench.hat.long_demo import long_demo
from bench.hat.long_drafters import SPLIT, digest, drafted
from bench.hat.prompts import TOLERANCE, demo_prompts
from bench.hat.tape import DEEPEST, LEAST_CHANCE, LEAST_DEEP, RECORDED, RUNNERS_UP, Draft, Heads, encoded, likely
from bench.hat.wide_model import small_model
from checkpoints import DEMO
from tqdm import tqdm

from device_agent.answering.tokenizer import Tokenizer
from device_agent.chain.chain import Chain, ChainSession
from device_agent.chain.prefill import prefill
from device_agent.speculative.ahead import Ahead
from device_agent.speculative.whole_drafts import SIBLINGS
from drafting.drafter import Drafter, TreeDraftSession
from drafting.proposing import Proposer
from split_model.sampling import SamplingParams
from split_model.tree import TRUNK
from wire.request_messages import ChatTurn

PROMPTS, TOKENS = 24, 128
"""How many, and most tokens of an answer."""

SEED = 9000
"""Of prompts; no seed of a measured prompt is near it."""


class Recorder:
    """One drafter along one answer. All but ``record`` is for the compute thread.

    Args:
        truth: the answer, no end token.
        deep: hidden states of the prompt's last token and the answer's, ``[1 + len(truth), hidden_size]``.
    """

    def __init__(self, session: ChainSession, truth: Sequence[int], deep: torch.Tensor, ends: Collection[int]) -> None:
        assert session.drafts is not None
        self.shares: list[tuple[float, ...]] = []
        """Of what the drafted token leaves, what its runners-up have."""
        self._drafts = session.drafts
        self._session = session
        self._ahead = Ahead(session)
        self._proposer = Proposer(SamplingParams(), (), 0, "keyed")
        self._truth = truth
        self._deep = deep
        self._ends = ends

    def chains(self) -> list[Draft]:
        """What is drafted behind every token but the last."""
        found = []
        for at in range(len(self._truth) - 1):
            self._go_on(at)
            found.append(self._chain(self._truth[at + 1 :]))
        return found

    def trees(self) -> list[Heads]:
        """The same of Medusa's heads."""
        found = []
        for at in range(len(self._truth) - 1):
            self._go_on(at)
            found.append(self._heads(self._truth[at + 1 :]))
        return found

    def _go_on(self, at: int) -> None:
        """The text has its next token, and what was drafted behind it so far is forgotten."""
        front = self._session.front
        assert front.cache is not None
        front.cache.truncate(front.position)
        self._ahead = Ahead(self._session)
        self._ahead.settle((), self._truth[at], self._deep[at : at + 1])

    def _chain(self, truth: Sequence[int]) -> Draft:
        weights: list[float] = []
        lookups: list[bool] = []
        drafted: list[int] = []
        right = rank = 0
        guess = self._ahead.guess(TRUNK)
        while guess is not None and len(drafted) < DEEPEST:
            if len(drafted) >= LEAST_DEEP and likely(weights, lookups) < LEAST_CHANCE:
                break
            found = self._proposer.candidates(guess, (), drafted, 1 + RUNNERS_UP)
            if not found or found[0].token in self._ends:
                break
            others = [each for each in found[1:] if each.token not in self._ends]
            if found[0].weight < 1:
                left = 1 - found[0].weight
                self.shares.append(tuple(each.weight / left for each in others))
            on = len(drafted) == right and right < len(truth)  # All before it were right.
            drafted.append(found[0].token)
            weights.append(found[0].weight)
            lookups.append(found[0].source == "lookup")
            if on and found[0].token == truth[right]:
                right += 1
            elif on:
                rank = next((at for at, each in enumerate(others, 1) if each.token == truth[right]), 0)
            if right == len(truth):
                break  # As far as the answer goes; a tape goes on with the next one.
            [node] = self._ahead.add([len(drafted) - 2], found[:1], [found[0].weight])
            guess = self._ahead.guess(node)
        return Draft(tuple(weights), tuple(lookups), right, rank)

    def _heads(self, truth: Sequence[int]) -> Heads:
        weights: list[tuple[float, ...]] = []
        right: list[int] = []
        for depth, guess in enumerate(cast(TreeDraftSession, self._drafts).levels()):
            found = self._proposer.candidates(guess, (), (), SIBLINGS)
            tokens = [each.token for each in found if each.token not in self._ends]
            weights.append(tuple(each.weight for each in found if each.token not in self._ends))
            wanted = truth[depth] if depth < len(truth) else None
            right.append(tokens.index(wanted) if wanted in tokens else -1)
        return Heads(tuple(weights), tuple(right))


async def record(
    chain: Chain, drafters: Mapping[str, Drafter], prompts: Sequence[Sequence[int]], tokens: int, ends: Collection[int]
) -> dict[str, Any]:
    """The file's ``drafters``: along the answers to all prompts, those without a second token left out."""
    found: dict[str, Any] = {
        name: {"parameters": drafter.parameters, "tree": bool(drafter.tree_nodes), "shares": [], "answers": []}
        for name, drafter in drafters.items()
    }
    for prompt in tqdm(prompts, desc="recording", unit="answer"):
        truth = list((await answer(chain, prompt, tokens, SamplingParams(), None, ends)).tokens)
        if truth[-1] in ends:
            truth.pop()
        if len(truth) < 2:
            continue
        plain = chain.open(len(prompt) + len(truth))
        deep = await prefill(plain, [*prompt, *truth], 1 + len(truth))
        plain.close()
        for name, drafter in drafters.items():
            session = chain.open(len(prompt) + len(truth), drafter=drafter)
            await prefill(session, prompt, 1)
            recorder = Recorder(session, truth, deep, ends)
            play = recorder.trees if drafter.tree_nodes else recorder.chains
            drafts = await chain.compute.submit(cast(Any, play))
            found[name]["answers"].append(encoded(drafts))
            found[name]["shares"] += recorder.shares
            session.close()
    for each in found.values():
        shares = each["shares"] or [()]  # Medusa's candidates are kept one by one.
        each["shares"] = [round(fmean(_at(share, rank) for share in shares), 3) for rank in range(RUNNERS_UP)]
    return found


def _at(share: Sequence[float], rank: int) -> float:
    return share[rank] if rank < len(share) else 0.0


def asked(lengths: Sequence[int]) -> list[list[int]]:
    """Prompts of about so many tokens."""
    tokenizer = Tokenizer.load(DEMO, ())
    turns = [
        [ChatTurn(turn["role"], turn["content"]) for turn in prompt.messages] for prompt in demo_prompts(lengths, SEED)
    ]
    return [tokenizer.chat(each) for each in turns]


async def recorded(model: Path, prompts: int, tokens: int) -> dict[str, Any]:
    """What the file has."""
    drafters, missing = drafters_of(Target("demo", model, SPLIT, [], []), small=[small_model(model)])
    if missing:
        raise SystemExit(f"cannot record without {'; '.join(missing)}")
    each = [draw(lengths, prompts // 2, SEED, POSITIONS - tokens - TOLERANCE) for lengths in (SPECBENCH, CNN_DM)]
    async with chain_here(model, SPLIT) as chain:
        mixed = asked([length for pair in zip(*each, strict=True) for length in pair])
        found = await record(chain, drafters, mixed, tokens, end_ids(model))
    return {
        "about": "What drafters of the stretched demo model say along its greedy answers to long prompts; see tape.py",
        "digest": digest(model / "drafters"),
        "split": SPLIT,
        "tokens": tokens,
        "prompts": prompts,
        "drafters": found,
    }


def main() -> None:
    """Write the file."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="recording.") as folder:
        model = drafted(long_demo(Path(folder) / "model"))
        found = asyncio.run(recorded(model, PROMPTS, TOKENS))
    RECORDED.write_text(json.dumps(found, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
