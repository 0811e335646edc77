"""What of a served model's accuracy is measured through its API, question by question, and how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from tqdm import tqdm

from models.demo.recipe.corpus import HELDOUT_COUNTS, heldout_sample
from models.demo.recipe.judge import right
from models.demo.recipe.sample import Sample

Asked = TypeVar("Asked")
Told = TypeVar("Told")

Z: Final = 1.96
"""Standard deviations of an interval of 95 %."""

AT_ONCE: Final = 4
"""Requests under way."""

LONGEST: Final = 220
"""Tokens of an answer."""

WINDOW: Final = 512
"""Tokens of a text that are scored as one prompt, where the model reads as many."""

SEED: Final = "accuracy"
DRAWS: Final = 2
"""For each question that is wanted, since some come twice."""


@dataclass(frozen=True)
class Figure:
    """One figure of a model.

    Attributes:
        values: of each question 1 or 0, or of each window its mean log-probability a token; kept so that two runs over
            the same can be compared pair by pair.
    """

    what: str
    unit: str
    values: tuple[float, ...]

    @property
    def value(self) -> float:
        """The share of right answers in per cent, or the perplexity."""
        mean = statistics.fmean(self.values)
        return 100 * mean if self.unit == "%" else math.exp(-mean)

    @property
    def interval(self) -> tuple[float, float]:
        """Where it lies with 95 %: Wilson's for a share, by the windows' spread for a perplexity."""
        if self.unit == "%":
            low, high = wilson(statistics.fmean(self.values), len(self.values))
            return 100 * low, 100 * high
        mean, half = statistics.fmean(self.values), _half(self.values)
        return math.exp(-mean - half), math.exp(-mean + half)

    def above(self, other: Figure) -> tuple[float, float] | None:
        """How much this is above another run's figure over the same questions, and half of the 95 % interval of that
        difference, pair by pair: points, or for a perplexity per cent. None where the questions are others."""
        if (self.what, len(self.values)) != (other.what, len(other.values)):
            return None
        pairs = [mine - theirs for mine, theirs in zip(self.values, other.values, strict=True)]
        sign = 100 if self.unit == "%" else -100
        return sign * statistics.fmean(pairs), 100 * _half(pairs)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share that was found in ``count`` questions."""
    middle = (share + Z * Z / (2 * count)) / (1 + Z * Z / count)
    half = Z / (1 + Z * Z / count) * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return middle - half, middle + half


def _half(values: Sequence[float]) -> float:
    return Z * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf


class Api:
    """A running server's API.

    Args:
        url: with ``/v1`` or without.

    Attributes:
        model: what it serves first; ``longest``: tokens that prompt and answer may have.
    """

    def __init__(self, url: str, key: str = "") -> None:
        base = url.rstrip("/").removesuffix("/v1") + "/v1"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=base, headers=headers, timeout=600.0, trust_env=False)
        self.base = base
        [served, *_] = self._http.get("/models").raise_for_status().json()["data"]
        self.model = str(served["id"])
        self.longest = int(served["max_model_len"])

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def answer(self, messages: Sequence[Any], **more: Any) -> str:
        """The greedy answer to a conversation. Raises httpx.HTTPStatusError."""
        body = {"messages": messages, "temperature": 0, "max_tokens": LONGEST, **more}
        return str(self._post("/chat/completions", body)["choices"][0]["message"]["content"])

    def scores(self, ids: Sequence[int], **more: Any) -> list[float]:
        """The log-probabilities of all tokens of a text but the first. Raises httpx.HTTPStatusError."""
        body = {"prompt": list(ids), "max_tokens": 0, "echo": True, "logprobs": 0, **more}
        told = self._post("/completions", body)["choices"][0]["logprobs"]["token_logprobs"]
        return [float(each) for each in told[1:]]

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._http.post(path, json={"model": self.model, **body}).raise_for_status().json()


def questions(count: int) -> list[Sample]:
    """Fresh held-out questions, the same in every run: the skills in the shares of the frozen set, none asked twice."""
    total = sum(HELDOUT_COUNTS.values())
    return [each for skill, share in HELDOUT_COUNTS.items() for each in _fresh(skill, max(1, count * share // total))]


def _fresh(skill: str, count: int) -> Iterator[Sample]:
    """As many as there are in some draws: of a skill with few different ones there may be fewer."""
    drawn = {(each := heldout_sample(skill, f"{SEED}-{number}")).key: each for number in range(DRAWS * count)}
    return islice(drawn.values(), count)


def skills(api: Api, count: int, **more: Any) -> list[Figure]:
    """The demo model's skills, each and all together."""
    asked = questions(count)

    def judged(sample: Sample) -> float:
        return float(right(api.answer(sample.prompt, **more), sample.check, sample.want))

    good = list(_side_by_side(judged, asked, "questions"))
    of = {
        skill: tuple(value for value, sample in zip(good, asked, strict=True) if sample.skill == skill)
        for skill in HELDOUT_COUNTS
    }
    return [Figure("all skills", "%", tuple(good)), *(Figure(skill, "%", values) for skill, values in of.items())]


def perplexity(api: Api, text: Path, encode: Callable[[str], Sequence[int]], windows: int, **more: Any) -> Figure:
    """The perplexity of a text's beginning, in windows of which each begins anew."""
    size = min(WINDOW, api.longest)
    ids = encode(text.read_text(encoding="utf-8")[: 16 * size * windows])
    cut = [ids[at : at + size] for at in range(0, len(ids) - size + 1, size)][:windows]

    def mean(window: Sequence[int]) -> float:
        return statistics.fmean(api.scores(window, **more))

    return Figure(f"perplexity of {text.name}", "", tuple(_side_by_side(mean, cut, "windows")))


def _side_by_side(ask: Callable[[Asked], Told], asked: Iterable[Asked], what: str) -> Iterator[Told]:
    asked = list(asked)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from tqdm(pool.map(ask, asked), what, len(asked), leave=False)
