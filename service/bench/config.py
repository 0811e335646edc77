"""Settings of ``trilby bench``."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from service.api_server import ApiSettings
from service.bench.figures import MEASURES
from service.settings import changed, setting, tuning

MINUTE_S: Final = 60.0

DRAWN: Final = -1
"""As a seed: it is drawn. A server that keeps prompts would know those of a seed from the load before."""
MOST_SEED: Final = 10**6

MOST_REQUESTS: Final = 100_000
MOST_EVENTS: Final = 50_000_000
"""Of one rate: when each came is kept, in 8 bytes, until its figures are made."""


@dataclass(frozen=True)
class LoadSettings:
    """The load."""

    rate: str = setting("1,2,4", "requests a second; of several, one after the other", variable="bench_rate")
    arrivals: Literal["poisson", "constant"] = setting(
        "poisson", "how they come: by chance, as many people's do, or at equal distances"
    )
    seconds: float = setting(
        0.0, "seconds that each rate is sent for; 0: a minute for all of them", minimum=0, maximum=86400,
        variable="bench_seconds",
    )  # fmt: skip
    drain_s: float = tuning(
        30.0, "seconds for what is open when a rate is over; the rest is given up", minimum=0,
        variable="bench_drain_s",
    )  # fmt: skip
    seed: int = tuning(
        DRAWN, f"what chance begins with: the same seed, the same load; {DRAWN}: another each time, which is said",
        minimum=DRAWN, variable="bench_seed",
    )  # fmt: skip


@dataclass(frozen=True)
class AskSettings:
    """What is asked."""

    model: str = setting("", "model to ask; empty: the first one the server has", variable="bench_model")
    prompts: str = setting(
        "", 'file with a prompt a line: text, or JSON with "prompt" or "messages"; empty: sentences of its own',
        variable="bench_prompts",
    )  # fmt: skip
    words: int = setting(
        40, "words of a prompt made of its own sentences", minimum=1, maximum=100_000, variable="bench_words"
    )
    max_tokens: int = setting(64, "longest answer, in tokens", minimum=1)
    ignore_eos: bool = setting(
        False, "ask for answers of exactly that length, which not every server can", variable="bench_ignore_eos"
    )
    body: str = tuning("{}", "JSON object put over each request's body; null takes a field out", variable="bench_body")


@dataclass(frozen=True)
class ShownSettings:
    """What is shown."""

    goodput: str = setting(
        "ttft:2000,tbt:200",
        "limits in ms that a good answer keeps, of ttft, tbt (99 in 100 of its gaps), itl (its mean) and e2e",
    )
    json: str = setting("", "file for all figures, as JSON", variable="bench_json")
    plot: str = setting("", "file for a plot, as SVG", variable="bench_plot")


@dataclass(frozen=True)
class BenchConfig(ShownSettings, AskSettings, LoadSettings, ApiSettings):
    """Load an OpenAI-compatible server and say how fast it answers, and up to which rate.

    Requests are sent when they are due, however many are still open: a server that is too slow is not waited for.
    """

    url: str = changed(ApiSettings, "url", "http://127.0.0.1:8000/v1", argument=True)

    def __post_init__(self) -> None:
        """Raises ValueError where a setting makes no sense."""
        super().__post_init__()
        self.more(), self.limits()
        most = max(self.rates()) * self.seconds_each
        if most > MOST_REQUESTS or most * self.max_tokens > MOST_EVENTS:
            raise ValueError(
                f"{most:.0f} requests at a rate are too many: at most {MOST_REQUESTS}, and {MOST_EVENTS} tokens; "
                "lower --rate, --seconds or --max-tokens"
            )

    def seeded(self) -> BenchConfig:
        """With a seed, whatever was given."""
        return self if self.seed != DRAWN else replace(self, seed=random.randrange(MOST_SEED))

    def rates(self) -> list[float]:
        """Requests a second, one rate after the other. Raises ValueError."""
        try:
            found = [float(each) for each in self.rate.split(",")]
        except ValueError:
            found = []
        if not found or not all(0 < each < math.inf for each in found):
            raise ValueError(f"--rate {self.rate} is no list of rates: give one, or several with commas: 0.5,2,8")
        return found

    @property
    def seconds_each(self) -> float:
        """Seconds that each rate is sent for."""
        return self.seconds or MINUTE_S / len(self.rates())

    def limits(self) -> dict[str, float]:
        """Milliseconds by names of ``MEASURES``. Raises ValueError."""
        found: dict[str, float] = {}
        for each in filter(None, self.goodput.replace(",", " ").split()):
            name, _, limit = each.partition(":")
            try:
                found[name] = float(limit)
            except ValueError:
                found[name] = math.nan
            if name not in MEASURES or not found[name] > 0:
                raise ValueError(f"--goodput {self.goodput}: {each} is no limit; give ttft:2000,tbt:200, in ms")
        return found

    def more(self) -> dict[str, Any]:
        """What is put over each request's body. Raises ValueError."""
        try:
            found = json.loads(self.body)
        except ValueError as error:
            raise ValueError(f"--body is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise ValueError("--body is no JSON object")
        return found

    def asks(self, model: str, messages: list[dict[str, Any]], max_tokens: int | None) -> dict[str, Any]:
        """The body of one request."""
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": max_tokens or self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= {"ignore_eos": True} if self.ignore_eos else {}
        return {name: value for name, value in (body | self.more()).items() if value is not None}
