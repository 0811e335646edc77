"""What a drafter brings where it serves: the device's own rounds, from prompt to answer, in this process.

The one module here that knows the device agent: a formula of its own for what is drafted, when a draft ends and what
stays of it would be a second truth.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch

from device_agent.chain.chain import Chain
from device_agent.chain.local import LocalSubmodel
from device_agent.chain.model_ends import DeviceParts
from device_agent.sharing.compute import Compute
from device_agent.speculative.drafters import Drafters, load_drafters
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import AUTO_CAP, DraftingWay, DraftSettings
from drafting.choosing import Chooser
from drafting.drafter import Drafter
from drafting.length import CostAware
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams
from split_model.slices import middle_slice
from split_model.stack import Stack

ANSWER = 128
"""Tokens of a measured answer."""

LEAST_ANSWERS = 8
ENOUGH_S = 15.0
"""Answers are measured until this long has passed, and so many at least: a large model's take minutes each."""


@dataclass(frozen=True)
class StatedCosts:
    """What ``auto`` weighs, stated instead of measured: seconds of a verification of one row, of each further row, and
    of a step of drafting. So a card says the same wherever it is made, and how busy that machine is does not show."""

    round_s: float = 0.02
    row_s: float = 0.0005
    draft_s: float = 0.001

    def __str__(self) -> str:
        return f"{1000 * self.round_s:g} ms a round, {1000 * self.row_s:g} a row, {1000 * self.draft_s:g} a step"


@dataclass(frozen=True)
class Rule:
    """When a draft ends, in words and as the device is told; where it goes by costs, those."""

    name: str
    settings: DraftSettings
    costs: StatedCosts | None = None

    def way(self, drafter: Drafter) -> DraftingWay:
        """A way of drafting that has learned nothing yet."""
        way = DraftingWay.of(drafter, self.settings)
        if self.costs is not None:
            way.length = _ByStatedCosts(self.costs, self.settings.draft_cap or AUTO_CAP)
        return way


class _ByStatedCosts(CostAware):
    """The device's rule, told that rounds take what was stated."""

    def __init__(self, costs: StatedCosts, cap: int) -> None:
        super().__init__(costs, cap)
        self._stated = costs

    def seen(self, proposed: int, accepted: int, seconds: float, drafted: bool = True) -> None:
        """See ``DraftLength``; ``seconds`` do not count."""
        row_s = self._stated.row_s + self._stated.draft_s
        super().seen(proposed, accepted, self._stated.round_s + proposed * row_s, drafted)


RULES = (
    Rule(f"auto, at {StatedCosts()}", DraftSettings(), StatedCosts()),
    Rule(f"fixed, threshold {DraftSettings.draft_threshold:g}", DraftSettings(draft_length="fixed")),
)
"""What ``trilby serve`` does where nobody says, and with ``--draft-length fixed``, which goes by the drafter's words
alone."""

TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True)
class Question:
    """A prompt, and how many tokens of the answer count: what comes behind them is a loop, or further than wanted."""

    prompt: Sequence[int]
    longest: int = ANSWER


@dataclass(frozen=True)
class Served:
    """What some answers took.

    Attributes:
        answers: of each, the tokens behind its first, and the verifications that chose them.
        proposed, accepted: drafted tokens, and those of them that stayed.
    """

    answers: tuple[tuple[int, int], ...]
    proposed: int
    accepted: int

    @property
    def tokens(self) -> int:
        return sum(tokens for tokens, _ in self.answers)

    @property
    def rounds(self) -> int:
        return sum(rounds for _, rounds in self.answers)

    @property
    def tau(self) -> float:
        """Mean tokens a verification, its own included; 1 without drafts."""
        return self.tokens / self.rounds if self.rounds else 1.0

    @property
    def error(self) -> float:
        """Standard error of ``tau``, by how much answers differ; 0 where there are too few to say."""
        count = len(self.answers)
        if count < 2 or not self.rounds:
            return 0.0
        squares = sum((tokens - self.tau * rounds) ** 2 for tokens, rounds in self.answers)
        return math.sqrt(squares * count / (count - 1)) / self.rounds


class Serving:
    """One model cut as device and cloud cut it, both on one thread of this process."""

    def __init__(self, checkpoint: Checkpoint, split: int, folder: Path, names: Sequence[str]) -> None:
        """``names``: the drafters, as ``--draft`` calls them, of the files in ``folder``.

        Raises ModelError, BadDrafter.
        """
        self._parts = DeviceParts.load(checkpoint, split, 0, torch.float32)
        self._middle = Stack.load(checkpoint, middle_slice(checkpoint.spec, split, 0), torch.float32)
        self.drafters: Drafters = load_drafters(names, folder, checkpoint, split, torch.float32, self._parts)

    def answers(
        self,
        name: str,
        rule: Rule,
        questions: Sequence[Question],
        temperature: float,
        told: Callable[[int], None] = lambda count: None,
    ) -> Served:
        """Answers them, one after the other, with nothing learned before the first; at least ``LEAST_ANSWERS``, and
        no more of them once ``ENOUGH_S`` have passed.

        name: the drafter. told: called with 1 for each question.
        """
        drafter = self.drafters.get(name)
        assert drafter is not None
        return asyncio.run(self._all(rule.way(drafter), questions, SamplingParams(temperature), told))

    async def _all(
        self,
        way: DraftingWay,
        questions: Sequence[Question],
        params: SamplingParams,
        told: Callable[[int], None],
    ) -> Served:
        compute = Compute()
        chain = Chain(self._parts, LocalSubmodel(self._middle, compute), compute, 0)
        found: list[tuple[int, int]] = []
        began = monotonic()
        try:
            for number, question in enumerate(questions):
                if number < LEAST_ANSWERS or monotonic() - began < ENOUGH_S:
                    found.append(await self._one(chain, way, question, params, number))
                told(1)
        finally:
            compute.stop()
        return Served(tuple(found), way.tally.proposed, way.tally.accepted)

    async def _one(
        self, chain: Chain, way: DraftingWay, question: Question, params: SamplingParams, seed: int
    ) -> tuple[int, int]:
        spec, prompt = self._parts.spec, question.prompt
        positions = min(len(prompt) + question.longest, spec.max_positions)
        session = chain.open(positions, len(prompt), positions, way.drafter)
        chooser = Chooser(params, prompt, seed, None, spec.eos_token_ids, positions - len(prompt))
        answer = Generation(session, chooser, way)
        try:
            async with aclosing(answer.run()) as tokens:
                async for _ in tokens:
                    pass
        finally:
            session.close()
        return len(chooser.generated) - 1, answer.tally.rounds
