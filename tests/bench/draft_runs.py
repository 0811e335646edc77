"""One answer in this process, drafted or not, and what is counted of the rounds that made it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import cast

import torch
from clouds import chain_over, local_middle

from device_agent.chain.chain import Chain
from device_agent.sharing.compute import Compute
from device_agent.speculative.generation import Generation
from device_agent.speculative.way import DraftingWay, DraftSettings
from drafting.choosing import Chooser
from drafting.drafter import Drafter, DraftSession, Guess, TreeDraftSession
from drafting.length import DraftLength
from split_model.sampling import SamplingParams
from split_model.tree import Tree

DEEPEST = 6
"""Depths of a draft that acceptance is counted for."""

CHUNK = 64


@dataclass
class Counts:
    """Of rounds, and of answers.

    Attributes:
        tokens: generated, those that a prompt's last row gave included.
        tried, kept: by depth, drafted tokens whose predecessors were accepted, and of these those that were themselves.
    """

    answers: int = 0
    tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    tried: list[int] = field(default_factory=lambda: [0] * DEEPEST)
    kept: list[int] = field(default_factory=lambda: [0] * DEEPEST)

    @property
    def tau(self) -> float:
        """Tokens a verification, its own included; 1 without drafts."""
        return 1 + self.accepted / self.rounds if self.rounds else 1.0

    @property
    def by_depth(self) -> list[float]:
        """Share accepted at each depth that was reached."""
        return [kept / tried for kept, tried in zip(self.kept, self.tried, strict=True) if tried]

    def round(self, proposed: int, accepted: int, deepest: int = DEEPEST) -> None:
        """Count a round, whose drafts are at most ``deepest`` deep."""
        self.rounds += 1
        self.proposed += proposed
        self.accepted += accepted
        for depth in range(min(proposed, accepted + 1, deepest)):
            self.tried[depth] += 1
            self.kept[depth] += depth < accepted

    def add(self, other: Counts) -> None:
        """Count another's in."""
        for name in ("answers", "tokens", "rounds", "proposed", "accepted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, its in ((self.tried, other.tried), (self.kept, other.kept)):
            mine[:] = [a + b for a, b in zip(mine, its, strict=True)]


class CountedLength:
    """A rule for the length of drafts as it is, which counts the rounds that it is told of.

    Args:
        deepest: most depths of a draft that are counted: of trees, which have more nodes, as many as they have.

    Attributes:
        counts: where to; may be exchanged between answers.
        seconds: of each round; rounds: its drafted and accepted tokens.
    """

    def __init__(self, rule: DraftLength, deepest: int = DEEPEST) -> None:
        self._deepest = deepest
        self.counts = Counts()
        self.seconds: list[float] = []
        self.rounds: list[tuple[int, int]] = []
        self._rule = rule

    @property
    def calibrated(self) -> bool:
        return self._rule.calibrated

    def begins(self) -> bool:
        return self._rule.begins()

    def takes(self, chances: Sequence[float]) -> bool:
        return self._rule.takes(chances)

    def goes_on(self, chances: Sequence[float]) -> bool:
        return self._rule.goes_on(chances)

    def foreseen(self) -> int:
        return self._rule.foreseen()

    def seen(self, proposed: int, accepted: int, seconds: float, drafted: bool = True) -> None:
        self._rule.seen(proposed, accepted, seconds, drafted)
        self.counts.round(proposed, accepted, self._deepest)
        self.rounds.append((proposed, accepted))
        self.seconds.append(seconds)


class TimedDrafter:
    """A drafter as it is, and what its own work takes; prompts are left out.

    Attributes:
        seconds, steps: of its answers to what follows a token, or for Medusa a text.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self.parameters = drafter.parameters
        self.tree_nodes = drafter.tree_nodes
        self.seconds = 0.0
        self.steps = 0
        self._drafter = drafter

    def apart(self) -> TimedDrafter:
        """Itself: of use to one tenant."""
        return self

    def open(self, positions: int, earlier: Sequence[int] = ()) -> TimedSession:
        return TimedSession(self, self._drafter.open(positions, earlier))

    def took(self, seconds: float) -> None:
        """A step has taken this long."""
        self.seconds += seconds
        self.steps += 1


class TimedSession:
    """A session of it. The first step is not counted: with it the prompt is run."""

    def __init__(self, owner: TimedDrafter, session: DraftSession) -> None:
        self._owner = owner
        self._session = session
        self._warm = False

    @property
    def position(self) -> int:
        return self._session.position

    @property
    def nbytes(self) -> int:
        return self._session.nbytes

    def observe(self, tokens: Sequence[int], shallow: torch.Tensor, before: torch.Tensor | None) -> None:
        self._session.observe(tokens, shallow, before)

    def guess(self) -> Guess | None:
        began = perf_counter()
        guess = self._session.guess()
        self._took(began)
        return guess

    def extend(self, tree: Tree, shallow: torch.Tensor, tokens: torch.Tensor | None = None) -> list[Guess | None]:
        began = perf_counter()
        guesses = self._session.extend(tree, shallow, tokens)
        self._took(began)
        return guesses

    def levels(self) -> list[Guess]:
        began = perf_counter()
        guesses = cast(TreeDraftSession, self._session).levels()
        self._took(began)
        return guesses

    def truncate(self, position: int) -> None:
        self._session.truncate(position)

    def fork(self, position: int) -> TimedSession:
        return TimedSession(self._owner, self._session.fork(position))

    def close(self) -> None:
        self._session.close()

    def _took(self, began: float) -> None:
        if self._warm:
            self._owner.took(perf_counter() - began)
        self._warm = True


@dataclass(frozen=True)
class Answered:
    """An answer's tokens, and when each was known."""

    tokens: tuple[int, ...]
    times: tuple[float, ...]

    @property
    def per_second(self) -> float:
        """Tokens a second behind the first."""
        return (len(self.tokens) - 1) / (self.times[-1] - self.times[0])


async def answer(
    chain: Chain,
    prompt: Sequence[int],
    tokens: int,
    params: SamplingParams,
    way: DraftingWay | None,
    ends: Collection[int] = (),
) -> Answered:
    """At most ``tokens`` tokens after ``prompt``; ``way`` None: without drafting."""
    way = way or DraftingWay.of(None, DraftSettings())
    session = chain.open(len(prompt) + tokens, len(prompt), len(prompt) + tokens, way.drafter)
    chooser = Chooser(params, prompt, params.seed or 0, None, ends, tokens)
    found, times = [], []
    try:
        async with aclosing(Generation(session, chooser, way).run()) as answered:
            async for chosen in answered:
                found.append(chosen.token)
                times.append(perf_counter())
    finally:
        session.close()
    return Answered(tuple(found), tuple(times))


@asynccontextmanager
async def chain_here(model: Path, split: int) -> AsyncIterator[Chain]:
    """All layers in this process, float32."""
    compute = Compute()
    try:
        yield chain_over(model, split, 0, local_middle(model, split, 0, compute), compute, CHUNK)
    finally:
        compute.stop()
