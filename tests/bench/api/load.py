"""The figures of ``trilby bench`` beside guidellm's, of the same load on the same server, one after the other."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.page import table
from bench.runs import spread
from processes import ROOT, Process, free_port, with_paths
from serving import Serving

WITHIN_S: Final = 170.0
"""guidellm takes half a minute to start."""

BAR: Final = 0.05
WHO: Final = ("trilby bench", "guidellm")

SHORT: Final = 1
"""guidellm sends one request less than it is asked for, now and then, and says nothing of it."""

LIMITS: Final = {"ttft": 1500.0, "itl": 60.0}
"""Of a good answer, in ms. guidellm judges its TPOT by what is ITL here."""


@dataclass(frozen=True)
class Case:
    """A load: a rate, constant, for so long; answers of so many tokens. ``paced``: the words of the server whose times
    are known; none: the demo model, all of it on one device."""

    name: str
    rate: float
    seconds: float
    tokens: int
    paced: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        """In all."""
        return round(self.rate * self.seconds)


CASES: Final = (
    Case("kept", 10, 12, 32, ("--first-ms", "100", "--gap-ms", "10")),
    Case("queued", 8, 10, 32, ("--first-ms", "100", "--gap-ms", "10", "--slots", "2")),
    Case("demo", 1, 15, 32),
)

TIMES: Final = ("TTFT p50", "TTFT p90", "ITL p50", "E2E p50", "E2E p90")
MEASURES: Final = (*TIMES, "answers a second", "tokens a second", "good")

Found = dict[str, float]


def ours(url: str, case: Case, prompts: Path, out: Path) -> Found:
    """What ``trilby bench`` finds; times in ms."""
    limits = ",".join(f"{name}:{limit:g}" for name, limit in LIMITS.items())
    words = ["--rate", f"{case.rate:g}", "--seconds", f"{case.seconds:g}", "--arrivals", "constant", "--ignore-eos"]
    words += ["--max-tokens", str(case.tokens), "--prompts", str(prompts), "--goodput", limits, "--json", str(out)]
    finish([sys.executable, "-m", "service.command", "bench", url, *words], with_paths())
    (told,) = json.loads(out.read_text())["rates"]
    times = {f"{name} {at}": told[name.lower()][at] for name in ("TTFT", "ITL", "E2E") for at in ("p50", "p90")}
    return times | {
        "answers a second": told["answered_s"],
        "tokens a second": told["tokens_s"],
        "good": told["good"] / told["due"],
        "answered": told["answered"],
    }


def theirs(program: str, url: str, model: str, case: Case, prompts: Path, out: Path) -> Found:
    """What guidellm finds."""
    limits = {"ttft_ms": LIMITS["ttft"], "tpot_ms": LIMITS["itl"]}
    words = [
        "--backend", f"kind=openai_http,target={url.removesuffix('/v1')},model={model},max_tokens={case.tokens}",
        "--profile", f"kind=constant,rate={case.rate:g}",
        "--constraint", f"kind=max_requests,count={case.requests}",
        "--data", f"kind=json_file,path={prompts}",
        "--metrics", json.dumps({"kind": "generative", "slo": limits}),
        "--output", f"kind=json,path={out}",
        "--disable-console",
    ]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "GUIDELLM__LOGGING__DISABLED": "true"}
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        environment.pop(name, None)
    finish([program, "run", *words], environment)
    (told,) = json.loads(out.read_text())["benchmarks"]
    all_of_them: dict[str, Any] = told["metrics"]
    by_name = {name: each for name, each in all_of_them.items() if isinstance(each, dict)}
    metrics: dict[str, Any] = {name: each.get("successful") for name, each in by_name.items()}
    names = {"TTFT": "time_to_first_token_ms", "ITL": "inter_token_latency_ms", "E2E": "request_latency"}
    times = {
        f"{name} {at}": metrics[full]["percentiles"][at] * (1e3 if name == "E2E" else 1)
        for name, full in names.items()
        for at in ("p50", "p90")
    }
    return times | {
        "answers a second": metrics["requests_per_second"]["mean"],
        "tokens a second": metrics["output_tokens_per_second"]["mean"],
        "good": all_of_them["slo_attainment"],
        "answered": all_of_them["request_totals"]["successful"],
    }


def finish(words: Sequence[str], environment: dict[str, str]) -> None:
    """Run a program to its end. Raises RuntimeError where that is no good one."""
    result = subprocess.run(words, capture_output=True, text=True, timeout=WITHIN_S, cwd=ROOT, env=environment)
    if result.returncode:
        raise RuntimeError(f"{words[0]} ended with {result.returncode}:\n{(result.stdout + result.stderr)[-3000:]}")


@contextmanager
def served(case: Case, folder: Path) -> Iterator[tuple[str, str]]:
    """The server of a case: its URL, and its model."""
    if case.paced:
        port = free_port()
        with Process("paced_server", "--port", str(port), *case.paced, log=folder / "paced.log", port=port):
            yield f"http://127.0.0.1:{port}/v1", "paced"
    else:
        with Serving(folder / "serve.log", "--mode", "local", "--draft", "none", until="trilby chat") as serving:
            yield serving.base, "trilby-demo"


def compared(case: Case, program: str, rounds: int, folder: Path) -> dict[str, tuple[list[float], list[float]]]:
    """Of each measure the figures of all rounds, ours and guidellm's.

    Raises:
        RuntimeError: one of them did not get all its answers.
    """
    prompts = folder / "prompts.jsonl"
    lines = [{"prompt": f"Tell me story number {number}, about a fox and a lost letter."} for number in range(400)]
    prompts.write_text("".join(json.dumps({**each, "output_tokens_count": case.tokens}) + "\n" for each in lines))
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in MEASURES}
    with served(case, folder) as (url, model):
        asks: list[Callable[[], Found]] = [
            lambda: ours(url, case, prompts, folder / "ours.json"),
            lambda: theirs(program, url, model, case, prompts, folder / "theirs.json"),
        ]
        for number in range(rounds):
            pair: list[Found] = [{}, {}]
            for who in (0, 1) if number % 2 else (1, 0):
                pair[who] = asks[who]()
                answered = pair[who]["answered"]
                if answered < case.requests - (SHORT if who else 0):
                    raise RuntimeError(f"{case.name}: {answered:g} of {case.requests} were answered, {WHO[who]}")
            for name in MEASURES:
                for who in (0, 1):
                    found[name][who].append(pair[who][name])
    return found


def rows(found: dict[str, tuple[list[float], list[float]]]) -> list[list[str]]:
    """Of the table, a measure each."""
    made = []
    for name, (one, two) in found.items():
        both = f"{statistics.median(one):.2f} : {statistics.median(two):.2f}"
        if not any(two):
            made.append([name, both, "–", "met" if not any(one) else "missed"])
            continue
        ratios = [a / b for a, b in zip(one, two, strict=True)]
        word = "met" if abs(statistics.median(ratios) - 1) <= BAR else "missed"
        made.append([name, both, spread(ratios, 3), word])
    return made


def run(case: Case, program: str | None, rounds: int, folder: Path) -> str:
    """The figures of a case for docs/benchmarks.md."""
    if program is None:
        return "not compared: guidellm is not installed."
    made = rows(compared(case, program, rounds, folder))
    return (
        f"rounds in turns: {rounds}; {case.requests} requests, {case.rate:g} a second, constant, answers of "
        f"{case.tokens} tokens; good: TTFT of at most {LIMITS['ttft']:g} ms, ITL of at most {LIMITS['itl']:g} ms. "
        f"Bar: within {BAR:.0%} at the median.\n\n"
        + table("figure | trilby bench : guidellm (ms, a second, share) | ratio | bar", made)
    )
