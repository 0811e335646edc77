"""Ways to draft, timed side by side over one link: a real cloud process, and the device's chain in this process."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.draft_runs import Answered, CountedLength, Counts, answer, chain_here
from bench.draft_texts import Text, end_ids
from bench.testbed.relay import Relay
from checkpoints import DEMO
from clouds import chain_over, device_hello, remote_middle
from processes import cloud_process
from tqdm import tqdm

from device_agent.chain.chain import Chain
from device_agent.cloud.link import LinkPace
from device_agent.cloud.remote import RemoteSubmodel
from device_agent.sharing.compute import Compute
from device_agent.speculative.way import AUTO_CAP, PRIOR_ROUND_S, PRIOR_ROW_S, DraftingWay, Tally
from drafting.costs import RoundCosts
from drafting.drafter import Drafter
from drafting.length import CostAware
from service.draft_settings import DraftSettings
from split_model.sampling import SamplingParams

SPLIT = 2


@dataclass(frozen=True)
class Link:
    """What is between device and cloud: round trip in ms and megabytes a second each way; None: no cloud, all here."""

    rtt_ms: float | None
    mb_s: float = 0.0

    @property
    def name(self) -> str:
        return "local" if self.rtt_ms is None else f"{self.rtt_ms:g} ms, {self.mb_s:g} MB/s"


class Seen(NamedTuple):
    """An answer of the cloud: from its rows sent to it, and of that queue and step in the cloud."""

    seconds: float
    cloud_s: float


@dataclass(frozen=True)
class Mode:
    """How answers are drafted; an empty ``drafter``: not at all."""

    name: str
    drafter: str = ""
    settings: DraftSettings = field(default_factory=DraftSettings)


class SeenCosts(RoundCosts):
    """The costs of rounds as the device learns them.

    Attributes:
        waited_s: of each round, from its last row sent to its last answer.
    """

    def __init__(self) -> None:
        super().__init__(PRIOR_ROUND_S, PRIOR_ROW_S)
        self.waited_s: list[float] = []

    def verified(self, rows: int, seconds: float) -> None:
        self.waited_s.append(seconds)
        super().verified(rows, seconds)


class Run:
    """A mode over one link, with nothing learned yet.

    Attributes:
        way: None without drafting.
        per_second: tokens a second of each round, without those that prompts gave.
        wrong: of ``answers``, those that are not transformers'.
        gaps_s, waited_s, cloud_s: of each verification: from one to the next; from its last row sent to its answer;
            queue and step in the cloud.
    """

    def __init__(self, mode: Mode, drafters: Mapping[str, Drafter]) -> None:
        self.mode = mode
        self.way: DraftingWay | None = None
        self._costs = SeenCosts()
        if mode.drafter:
            way = DraftingWay.of(drafters[mode.drafter], mode.settings)
            rule = (
                way.length
                if mode.settings.draft_length == "fixed"
                else CostAware(self._costs, mode.settings.draft_cap or AUTO_CAP)
            )
            self._length = CountedLength(rule)
            self.way = replace(way, length=self._length, costs=self._costs)
        self.begin()

    def begin(self) -> None:
        """What was learned stays, what was seen goes."""
        self.per_second: list[float] = []
        self.answers = self.wrong = 0
        self.gaps_s: list[float] = []
        self.waited_s: list[float] = []
        self.cloud_s: list[float] = []
        if self.way is not None:
            self._length.seconds, self._length.counts = self.gaps_s, Counts()
            self._costs.waited_s = self.waited_s
            self.way.tally = Tally()

    @property
    def tau(self) -> float:
        """Tokens a verification."""
        return self._length.counts.tau if self.way is not None else 1.0

    def note(self, texts: Sequence[Text], found: Sequence[Answered], tokens: int, results: Sequence[Seen]) -> None:
        """A round is over."""
        decoded = sum(len(each.tokens) - 1 for each in found)
        self.per_second.append(decoded / sum(each.times[-1] - each.times[0] for each in found))
        self.answers += len(found)
        self.wrong += sum(each.tokens != text.truth[:tokens] for text, each in zip(texts, found, strict=True))
        self.cloud_s += [each.cloud_s for each in results]
        if self.way is None:
            self.gaps_s += [b - a for each in found for a, b in pairwise(each.times)]
            self.waited_s += [each.seconds for each in results]


@asynccontextmanager
async def chain_through(link: Link) -> AsyncIterator[tuple[Chain, list[Seen]]]:
    """The demo model over this link, and what is seen of each answer of the cloud."""
    results: list[Seen] = []
    if link.rtt_ms is None:
        async with chain_here(DEMO, SPLIT) as chain:
            yield chain, results
        return
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cloud = stack.enter_context(cloud_process(DEMO, SPLIT, 0, folder / "cloud.log", "--threads", "1"))
        far = Relay("", "127.0.0.1", cloud.port, link.rtt_ms / 2e3, bytes_s=link.mb_s * 1e6)
        relay = stack.enter_context(far)
        hello = device_hello(DEMO, SPLIT, 0)
        middle = await stack.enter_async_context(remote_middle(f"ws://127.0.0.1:{relay.port}", hello))
        compute = Compute()
        stack.callback(compute.stop)
        _watch(middle, results)
        yield chain_over(DEMO, SPLIT, 0, middle, compute, 0), results


def _watch(middle: RemoteSubmodel, results: list[Seen]) -> None:
    """Note every result that comes."""

    def watched(pace: LinkPace) -> None:
        answered = pace.answered

        def seen(posted: float, now: float, up: int, down: int, queue_s: float, step_s: float, *more: Any) -> None:
            results.append(Seen(now - posted, queue_s + step_s))
            answered(posted, now, up, down, queue_s, step_s, *more)

        pace.answered = seen  # type: ignore[assignment, method-assign]

    for link in middle.clouds.links:
        watched(link.pace)


async def measure(
    link: Link,
    modes: Sequence[Mode],
    drafters: Mapping[str, Drafter],
    groups: Sequence[Sequence[Text]],
    tokens: int,
) -> list[Run]:
    """Each group of texts is a round, in which all modes answer it, every round in another order; the first group warms
    up and is not counted."""
    runs = [Run(mode, drafters) for mode in modes]
    ends = end_ids(DEMO)
    async with chain_through(link) as (chain, results):
        for number, group in enumerate(tqdm(groups, desc=link.name, leave=False)):
            turn = number % len(runs)
            for run in runs[turn:] + runs[:turn]:
                if number == 1:
                    run.begin()
                results.clear()
                found = [await answer(chain, text.prompt, tokens, SamplingParams(), run.way, ends) for text in group]
                run.note(group, found, tokens, results)
    return runs


def ratios(run: Run, base: Run) -> list[float]:
    """Speed to that of another mode, round by round."""
    return [a / b for a, b in zip(run.per_second, base.per_second, strict=True)]


def median_ms(seconds: Sequence[float]) -> float | None:
    """In ms; None of nothing."""
    return statistics.median(seconds) * 1e3 if seconds else None


def groups_of(texts: Sequence[Text], rounds: int) -> list[list[Text]]:
    """Rounds of one text of each kind, and one to warm up; where a kind has too few, they come again."""
    kinds: dict[str, list[Text]] = {}
    for text in texts:
        kinds.setdefault(text.kind, []).append(text)
    return [[of_kind[number % len(of_kind)] for of_kind in kinds.values()] for number in range(rounds + 1)]
