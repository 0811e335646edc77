"""Every mode on the same processes: its greedy answer is transformers', and the cloud's metrics show how it went."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from checkpoints import DEMO
from installation import Installation
from oracle import oracle_answer

from service.modes import PAPER_STEP_ROWS
from service.setting_names import command_line
from split_model.checkpoint import Checkpoint

pytestmark = pytest.mark.system

TOKENS = 32
QUESTION = " ".join(f"My friend number {number} lives in a small house by the sea." for number in range(45))
ROW_BYTES = 4 * Checkpoint.open(DEMO).spec.hidden_size


@dataclass(frozen=True)
class Run:
    """One answer of an installation of its own.

    Attributes:
        prompt, tokens: their numbers of tokens.
        accepted: drafted tokens that were.
        received, sent: bytes of the cloud's frames.
        steps, rows: of the cloud: how many, and rows in all of them.
        within: how many steps had at most so many rows.
    """

    text: str
    prompt: int
    tokens: int
    accepted: int
    received: float
    sent: float
    steps: float
    rows: float
    within: dict[int, float]


def run(folder: Path, mode: str, split: int = 2, **settings: Any) -> Run:
    """Start everything with the flags of ``mode``, ask once, look at the cloud's metrics."""
    whole = bool(settings.get("whole_prompts"))
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    with Installation(
        folder,
        split=split,
        forked=True,
        device_settings=tuple(command_line(mode=mode, **settings)),
        cloud_settings=("--kv-mb", "64", *command_line(mode=mode, whole_prompts=whole)),
    ) as installation:
        reply = httpx.post(installation.base + "/chat/completions", json=body, timeout=60, trust_env=False).json()
        metric = installation.cloud_metric
        usage, seconds = reply["usage"], "step_seconds"
        mean, squares = metric(f"{seconds}_sum") / metric(f"{seconds}_count"), metric(f"{seconds}_squares_total")
        assert squares / metric(f"{seconds}_count") >= mean**2 * 0.999, "a mean of squares is no less than the mean's"
        assert squares <= metric(f"{seconds}_sum") ** 2 * 1.001
        return Run(
            text=reply["choices"][0]["message"]["content"],
            prompt=usage["prompt_tokens"],
            tokens=usage["completion_tokens"],
            accepted=(usage.get("completion_tokens_details") or {}).get("accepted_prediction_tokens", 0),
            received=metric("received_bytes_total"),
            sent=metric("sent_bytes_total"),
            steps=metric("iteration_tokens_total_count"),
            rows=metric("iteration_tokens_total_sum"),
            within={
                rows: metric(f'iteration_tokens_total_bucket{{le="{rows:.1f}"}}') for rows in (1, PAPER_STEP_ROWS, 512)
            },
        )


def check_answer(ran: Run) -> None:
    """The text, and as many tokens."""
    text, prompt = oracle_answer(DEMO, QUESTION, TOKENS, whole=True)
    assert (ran.text, ran.prompt, ran.tokens) == (text, prompt, TOKENS)
    assert prompt > 512, "a prompt that nothing cuts by chance"


@pytest.mark.slow
def test_ushape_with_last_row_and_full_download(tmp_path: Path) -> None:
    """The prompt runs in one step, then every token in one; all its rows come back where that is asked for, and the
    answer is the same."""
    last, full = (run(tmp_path, "ushape", download=rows) for rows in ("last", "all"))
    for ran in (last, full):
        check_answer(ran)
        assert (ran.steps, ran.rows) == (TOKENS, ran.prompt + TOKENS - 1)
        assert ran.within[512] == ran.within[1] == ran.steps - 1
        assert ran.received > ran.rows * ROW_BYTES
    more = full.sent - last.sent - (last.prompt - 1) * ROW_BYTES
    assert abs(more) < 2000, "the prompt's other rows, and hardly anything else"


@pytest.mark.slow
def test_u_sarathi(tmp_path: Path) -> None:
    """One forward of the device, which the cloud cuts into steps of its budget."""
    ran = run(tmp_path, "u-sarathi")
    check_answer(ran)
    assert ran.within[PAPER_STEP_ROWS] == ran.steps
    assert ran.steps == -(-ran.prompt // PAPER_STEP_ROWS) + TOKENS - 1
    assert ran.rows == ran.prompt + TOKENS - 1


@pytest.mark.parametrize(
    ("mode", "draft"), [("u-medusa", "medusa"), pytest.param("u-small", str(DEMO), marks=pytest.mark.slow)]
)
def test_drafting_modes(mode: str, draft: str, tmp_path: Path) -> None:
    """The prompt in one step, all of its rows downloaded; some of what is drafted is accepted, so that there are fewer
    steps than tokens."""
    ran = run(tmp_path, mode, draft=[draft], download="all")
    check_answer(ran)
    assert ran.accepted > 0 and ran.steps == TOKENS - ran.accepted
    assert ran.within[PAPER_STEP_ROWS] == ran.within[512] == ran.steps - 1
    assert ran.sent > ran.prompt * ROW_BYTES


@pytest.mark.slow
def test_cloud(tmp_path: Path) -> None:
    """The whole model in the cloud."""
    ran = run(tmp_path, "cloud", split=0)
    check_answer(ran)
    assert ran.rows == ran.prompt + TOKENS - 1


def test_hat_without_chunks(tmp_path: Path) -> None:
    """Drafting, whether or not it pays on a machine that is busy, and the prompt in one step, all of its rows
    downloaded. Rows of a round leave together: sent as they are made, a busy cloud may run them in two steps."""
    ran = run(tmp_path, "hat", whole_prompts=True, download="all", stream_rows="off", draft_length="fixed")
    check_answer(ran)
    assert ran.steps == TOKENS - ran.accepted and ran.within[512] == ran.steps - 1
    assert ran.within[1] < ran.within[512], "something was drafted"
    assert ran.sent > ran.prompt * ROW_BYTES
