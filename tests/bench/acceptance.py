"""How many drafted tokens are accepted: every drafter of a model on all its texts, and what is compared meanwhile."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from bench.draft_models import Target
from bench.draft_runs import DEEPEST, CountedLength, Counts, TimedDrafter, answer, chain_here
from bench.draft_texts import Text, end_ids, margin
from bench.overhead import reference_ms
from tqdm import tqdm

from device_agent.chain.chain import Chain
from device_agent.speculative.way import DraftingWay
from drafting.drafter import Drafter
from drafting.medusa import HEADS
from drafting.verification import Rule
from service.draft_settings import DraftSettings
from split_model.checkpoint import Checkpoint
from split_model.reference import Reference
from split_model.sampling import SamplingParams

HAT = DraftSettings(draft_length="fixed", draft_threshold=0.6, draft_cap=8, prepare="none", stream_rows="off")
CHAIN = replace(HAT, draft_threshold=0.0, draft_cap=6)
LENGTHS = {"hat": HAT, "chain": CHAIN}
PLAIN_ROWS = 16
"""Of each of the texts that a plain row is timed on, between the cases."""


@dataclass(frozen=True)
class Case:
    """One way to answer all texts: the drafter's name, a name of ``LENGTHS``, at temperature 1 or greedy, the rule."""

    drafter: str
    length: str
    sampled: bool = False
    rule: Rule = "keyed"


@dataclass
class Measured:
    """A model's results.

    Attributes:
        parameters: by drafter.
        step_ratio: by drafter, what one of its steps takes as a share of a plain row through all layers and the head.
        counts: by case and kind of text.
        greedy, keyed: answers compared with transformers' and, sampled, with those of their seed.
        wrong: those that differ, greedy ones (False) and sampled ones (True).
    """

    target: Target
    parameters: dict[str, int] = field(default_factory=dict)
    step_ratio: dict[str, float] = field(default_factory=dict)
    counts: dict[Case, dict[str, Counts]] = field(default_factory=dict)
    greedy: int = 0
    keyed: int = 0
    wrong: dict[bool, list[str]] = field(default_factory=lambda: {False: [], True: []})
    plain_ms: float = 0.0

    def total(self, case: Case, kinds: Sequence[str] = ()) -> Counts | None:
        """Of all kinds of the model's own texts, or some; None where it was not measured."""
        if case not in self.counts:
            return None
        own = {text.kind for text in self.target.texts}
        every = Counts()
        for kind, counts in self.counts[case].items():
            if kind in (kinds or own):
                every.add(counts)
        return every


def cases(drafters: Mapping[str, Drafter]) -> Iterator[Case]:
    """What is measured of a model, plain decoding first."""
    for sampled in (False, True):
        yield Case("none", "hat", sampled)
        for name, drafter in drafters.items():
            for length in ("hat",) if drafter.tree_nodes else LENGTHS:
                yield Case(name, length, sampled)
    for name, drafter in drafters.items():
        if drafter.parameters and not drafter.tree_nodes:
            for rule in ("rejection", "block"):
                yield Case(name, "hat", True, rule)


async def measure(target: Target, drafters: Mapping[str, Drafter], tokens: int) -> Measured:
    """All cases of a model."""
    measured = Measured(target, {name: drafter.parameters for name, drafter in drafters.items()})
    timed = {name: TimedDrafter(drafter) for name, drafter in drafters.items()}
    plain: dict[int, tuple[int, ...]] = {}
    every = list(cases(drafters))
    reference = Reference.load(Checkpoint.open(target.path), torch.float32)
    plain_ms = []
    answers = sum(len(texts_of(target, case)) for case in every)
    with tqdm(total=answers, desc=target.name, leave=False) as bar:
        async with chain_here(target.path, target.split) as chain:
            for number, case in enumerate(every):
                text = target.texts[number % len(target.texts)]
                plain_ms.append(reference_ms(reference, list(text.prompt), PLAIN_ROWS))
                await run_case(measured, chain, case, timed.get(case.drafter), tokens, plain, bar)
    measured.plain_ms = statistics.median(plain_ms)
    for name, drafter in timed.items():
        measured.step_ratio[name] = drafter.seconds / max(1, drafter.steps) / (measured.plain_ms / 1e3)
    return measured


def texts_of(target: Target, case: Case) -> list[Text]:
    """What is answered in a case."""
    return target.texts + (target.foreign if case.length == "hat" and not case.sampled else [])


async def run_case(
    measured: Measured,
    chain: Chain,
    case: Case,
    drafter: Drafter | None,
    tokens: int,
    plain: dict[int, tuple[int, ...]],
    bar: tqdm[None],
) -> None:
    """One case on its texts; ``plain`` has the sampled answers without drafting, by number, once that case has run."""
    path = measured.target.path
    ends = end_ids(path)
    kinds = measured.counts[case] = {}
    way = counted = None
    if drafter is not None:
        way = DraftingWay.of(drafter, replace(LENGTHS[case.length], verify=case.rule))
        way.length = counted = CountedLength(way.length, HEADS if drafter.tree_nodes else DEEPEST)
    for number, text in enumerate(texts_of(measured.target, case)):
        counts = kinds.setdefault(text.kind, Counts())
        if counted is not None:
            counted.counts = counts
        params = SamplingParams(temperature=1.0, seed=number) if case.sampled else SamplingParams()
        found = (await answer(chain, text.prompt, tokens, params, way, ends)).tokens
        counts.answers += 1
        counts.tokens += len(found)
        if drafter is None and case.sampled:
            plain[number] = found
        elif not case.sampled or case.rule == "keyed":
            compare(measured, case, number, text, found, plain[number] if case.sampled else text.truth)
        bar.update()


def compare(
    measured: Measured, case: Case, number: int, text: Text, found: tuple[int, ...], truth: tuple[int, ...]
) -> None:
    """Note that an answer was compared, and where it differs."""
    measured.greedy += not case.sampled
    measured.keyed += case.sampled
    if found != truth:
        path = measured.target.path
        how = "not the text of its seed" if case.sampled else margin(path, text.prompt, truth, found)
        measured.wrong[case.sampled].append(f"{measured.target.name}, {case}, text {number} ({text.kind}): {how}")
