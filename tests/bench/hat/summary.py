"""Records over their repeats: medians with spread, and ratios taken within each repeat. Pure.

Machines are noisy, and what is compared was measured side by side; so a ratio is taken between two cells of the same
repeat, and only the ratios are summarised over repeats. Two cells of a repeat that different machines measured are not
compared at all: links and quotas follow each machine's own speed. What was not measured is ``None``, never guessed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from bench.hat.cells import RATES, WIDE_RATES, middle
from bench.hat.records import Place, Record

TTFT, TBT = "latency.ttft.mean", "latency.tbt.mean"
MEANS = {"TTFT": "TTFT, mean of requests", "TBT": "TBT, mean of requests"}
"""What both are called above a column: a request's TBT is its own mean, and percentiles of TBT are of single tokens."""

STEP, STEP_STD = "cloud.step_mean_s", "cloud.step_std_s"
DECODE_TOKENS_S, TOKENS_S = "latency.decode_tokens_s", "latency.tokens_s"
"""Tokens a second while a request decodes, and from the first request to the last token."""

QUARTILES_FROM = 5
"""So many repeats are needed before quartiles are shown; of fewer it is the lowest and the highest."""


@dataclass(frozen=True)
class Spread:
    """A median of ``count`` values between ``low`` and ``high``."""

    median: float
    low: float
    high: float
    count: int

    def line(self, factor: float, offset: float = 0.0) -> Spread:
        """The spread of ``factor * value + offset``."""
        low, high = sorted((factor * self.low + offset, factor * self.high + offset))
        return Spread(factor * self.median + offset, low, high, self.count)

    @property
    def below(self) -> Spread:
        """Of a ratio: how many per cent it is below 1."""
        return self.line(-100.0, 100.0)


def spread(values: Iterable[float]) -> Spread | None:
    """Their median; low and high are the extremes, or the quartiles where there are at least ``QUARTILES_FROM``."""
    ordered = sorted(values)
    if not ordered:
        return None
    low, high = ordered[0], ordered[-1]
    if len(ordered) >= QUARTILES_FROM:
        low, _, high = quantiles(ordered, n=4, method="inclusive")
    return Spread(median(ordered), low, high, len(ordered))


UNEVEN = 1.2
"""Runs of a repeat in which the cores took more than so many times as long for the same work were not run side by side.
On a quiet machine all of 61 runs but one, of a few seconds, were within 1.17 times of each other."""

WORK = "machine.work_s"


class Measured:
    """All records, by place and repeat."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._at: dict[Place, dict[int, Record]] = {}
        for record in records:
            self._at.setdefault(record.place, {})[record.repeat] = record
        self.places = tuple(sorted(self._at))

    def repeats(self, place: Place) -> Mapping[int, Record]:
        """The records of a place, none if it was not measured."""
        return self._at.get(place, {})

    def select(self, **fields: object) -> list[Place]:
        """The places whose fields have these values."""
        return [each for each in self.places if all(getattr(each, name) == value for name, value in fields.items())]

    def values(self, field: str, **fields: object) -> list[float]:
        """The different values a number of a place has among those selected, sorted."""
        return sorted({float(getattr(each, field)) for each in self.select(**fields)})

    def pairs(self) -> list[tuple[str, str]]:
        """Every setting with every dataset measured in it."""
        return sorted({(each.setting, each.dataset) for each in self.places})

    def middle_rate(self, setting: str, dataset: str) -> float | None:
        """The middle one of the rates that the experiment ``rates`` is for, or of those measured where that is not."""
        rates = self.values("rate", experiment="rates", setting=setting, dataset=dataset)
        planned = middle((RATES if setting == "demo" else WIDE_RATES).get(dataset, (0.0,)))
        return planned if planned in rates else middle(rates) if rates else None

    def numbers(self, place: Place, name: str) -> dict[int, float]:
        """A number of a place by repeat, where it was measured."""
        return {
            repeat: record.numbers[name] for repeat, record in self.repeats(place).items() if name in record.numbers
        }

    def spread(self, place: Place, name: str) -> Spread | None:
        """A number of a place over its repeats."""
        return spread(self.numbers(place, name).values())

    def ratio(self, place: Place, base: Place, name: str, under: str = "") -> Spread | None:
        """A number over the same (or the number ``under``) of ``base``, within each repeat that has both."""
        ours, others = self.numbers(place, name), self.numbers(base, under or name)
        return spread(ours[each] / others[each] for each in self._shared(place, base, ours, others) if others[each] > 0)

    def middle_repeat(self, place: Place, base: Place, name: str, under: str = "") -> int | None:
        """The repeat whose ratio (see ``ratio``) is the median; of an even number the higher of the two in the middle.

        What is told of one repeat adds up, as medians of parts do not.
        """
        ours, others = self.numbers(place, name), self.numbers(base, under or name)
        known = [each for each in self._shared(place, base, ours, others) if others[each] > 0]
        known.sort(key=lambda each: ours[each] / others[each])
        return known[len(known) // 2] if known else None

    def _shared(
        self, one: Place, other: Place, numbers: Mapping[int, float], others: Mapping[int, float]
    ) -> Iterator[int]:
        """The repeats of which both have a number that the same machine measured."""
        for repeat in sorted(numbers.keys() & others.keys()):
            if self._at[one][repeat].machine == self._at[other][repeat].machine:
                yield repeat

    def same_texts(self, place: Place, base: Place) -> tuple[int, int]:
        """How many requests were answered the same text in both, and of how many that both answered."""
        same = asked = 0
        for repeat, record in self.repeats(place).items():
            other = self._at.get(base, {}).get(repeat)
            shared = [
                text == other.texts[request]
                for request, text in record.texts.items()
                if other is not None and text and other.texts.get(request)
            ]
            same, asked = same + sum(shared), asked + len(shared)
        return same, asked

    def middle(self, setting: str, dataset: str) -> dict[str, Place]:
        """The places of the experiment ``rates`` at its middle rate, by method."""
        rate = self.middle_rate(setting, dataset)
        return {
            each.method: each for each in self.select(experiment="rates", setting=setting, dataset=dataset, rate=rate)
        }

    def over_repeats(self, places: Sequence[Place], count: Callable[..., float | None]) -> Spread | None:
        """What ``count`` makes of the records of all ``places`` in one repeat, where the same machine measured them."""
        shared = set.intersection(*(set(self.repeats(each)) for each in places))
        together = ([self.repeats(each)[repeat] for each in places] for repeat in sorted(shared))
        found = [count(*records) for records in together if len({each.machine for each in records}) == 1]
        return spread(each for each in found if each is not None)

    def failed(self, places: Iterable[Place]) -> tuple[int, int]:
        """How many requests failed, and of how many."""
        records = [record for place in places for record in self.repeats(place).values()]
        failed, requests = (
            int(sum(record.numbers.get(name, 0) for record in records))
            for name in ("latency.failed", "latency.requests")
        )
        return failed, requests

    def bottlenecks(self, places: Iterable[Place]) -> list[str]:
        """What the machine itself was short of, one sentence for each record where it was."""
        return [
            record.bottleneck
            for place in places
            for _, record in sorted(self.repeats(place).items())
            if record.bottleneck
        ]

    def doubts(self, places: Sequence[Place]) -> list[str]:
        """Why what is compared may be the machine's doing: where it was short, and where its speed was not the same."""
        compared: dict[tuple[int, str], list[float]] = {}
        for place in places:
            for repeat, work_s in self.numbers(place, WORK).items():
                compared.setdefault((repeat, self._at[place][repeat].machine), []).append(work_s)
        slower = [max(each) / min(each) for each in compared.values() if min(each) > 0]
        uneven = [
            f"in one run its cores took {times:.2f} times as long for the same work as in another"
            for times in slower
            if times > UNEVEN
        ]
        return [*self.bottlenecks(places), *uneven]


def compliance(record: Record, phase: str, seconds: float) -> float | None:
    """The share of requests that met an SLA of so many seconds in ``prefill`` or ``decode``; a failed one did not."""
    times = record.prefill_sla if phase == "prefill" else record.decode_sla
    asked = len(times) + record.numbers.get("latency.failed", 0)
    return bisect_right(times, seconds) / asked if asked else None


def met_by(record: Record, phase: str, share: float) -> float | None:
    """The strictest SLA, in seconds, that at least this share of the requests met; ``None`` where too many failed."""
    times = record.prefill_sla if phase == "prefill" else record.decode_sla
    asked = len(times) + int(record.numbers.get("latency.failed", 0))
    needed = max(1, math.ceil(share * asked - 1e-9))
    return times[needed - 1] if needed <= len(times) else None
