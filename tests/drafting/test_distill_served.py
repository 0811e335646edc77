"""A card says what a user gets: what `trilby distill` measures is what real processes count on prompts of others."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from checkpoints import DATA, DEMO, real_model
from click.testing import CliRunner
from installation import Installation

from drafting.distill import portions, served
from drafting.distill.__main__ import main
from drafting.distill.served import ANSWER, Question, Rule, Served, Serving, StatedCosts
from drafting.drafter_file import read_drafter
from drafting.lookup import LookupDrafter
from service.draft_settings import DraftSettings
from split_model.checkpoint import Checkpoint

pytestmark = pytest.mark.system

WITHIN = 0.1
"""Of what is served: how far off a card may be, where chance alone does not take it further."""

ERRORS = 3.0
"""Standard errors of the difference that chance may take it."""


def stories() -> list[str]:
    """The stories of the sample: each begins at a line right behind another's last. Skips where it is not there."""
    path = DATA / "text" / "tinystories_sample.txt"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    lines = path.read_text(encoding="utf-8").split("\n")
    starts = [number for number in range(1, len(lines)) if lines[number] and lines[number - 1]]
    return ["\n".join(lines[begin:end]) for begin, end in pairwise(starts)]


def distilled(folder: Path, *options: str) -> dict[str, Any]:
    """The card of a drafter for the story model, made of the sample's first stories."""
    told = stories()
    text, out = folder / "stories.txt", folder / "drafters"
    text.write_text("\n".join(told[: 9 * len(told) // 10]), encoding="utf-8")
    arguments = ["--model", str(real_model("tinystories-656k")), "--split", "1", "--threads", "1"]
    done = CliRunner().invoke(main, [*arguments, "--text", str(text), "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    return read_drafter(out / "fused.safetensors").card


def unseen(count: int) -> list[str]:
    """How stories that no drafter was trained on begin."""
    told = stories()
    return [each[:120] for each in told[9 * len(told) // 10 :] if len(each) > 400][:count]


def asked(base: str, draft: str, prompts: list[str], temperature: float) -> Served:
    """What real processes count for these prompts; the first token of an answer takes no verification."""
    answers, proposed, accepted = [], 0, 0
    listed = httpx.get(f"{base}/models", timeout=60, trust_env=False, verify=False).json()["data"]
    model = listed[0]["id"]
    for seed, prompt in enumerate(prompts):
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": ANSWER,
            "temperature": temperature,
            "seed": seed,
            "draft": draft,
        }
        reply = httpx.post(f"{base}/completions", json=body, timeout=60, trust_env=False, verify=False)
        assert reply.status_code == 200, reply.text
        usage = reply.json()["usage"]
        details = usage.get("completion_tokens_details") or {}
        kept = details.get("accepted_prediction_tokens", 0)
        answers.append((usage["completion_tokens"] - 1, usage["completion_tokens"] - 1 - kept))
        proposed += kept + details.get("rejected_prediction_tokens", 0)
        accepted += kept
    return Served(tuple(answers), proposed, accepted)


def agree(card: dict[str, Any], draft: str, rule: str, temperature: float, found: Served) -> None:
    """The line of the card is within 10 % of what was served, or within what chance explains."""
    [line] = [
        each
        for each in card["served"]
        if each["draft"] == draft and each["rule"].startswith(rule) and each["temperature"] == temperature
    ]
    allowed = max(WITHIN * found.tau, ERRORS * math.hypot(line["error"], found.error))
    print(f"{draft}, {rule}, T = {temperature:g}: card {line['tau']} served {found.tau:.3f} ± {found.error:.3f}")
    assert abs(line["tau"] - found.tau) <= allowed, (draft, rule, temperature, line, found.tau, found.error)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_card_of_plain_text_is_what_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter made of plain stories in some seconds: its card is right for other stories, greedy and at T = 1."""
    fixed = [each for each in served.RULES if each.settings.draft_length == "fixed"]
    monkeypatch.setattr("drafting.distill.making.RULES", fixed)
    monkeypatch.setattr(served, "ENOUGH_S", 100.0)  # So that no clock says how many answers count.
    monkeypatch.setattr(portions, "MEASURED", 16)
    card = distilled(tmp_path, "--tokens", "24000", "--answer-tokens", "64")
    assert card["data"]["loops"] < 0.5 and card["heldout"]["tau"] < 4
    settings = ("--drafters", str(tmp_path / "drafters"), "--draft", "hybrid", "--draft-length", "fixed")
    model = real_model("tinystories-656k")
    with Installation(tmp_path, model=model, split=1, forked=True, device_settings=settings) as running:
        for draft in ("fused", "hybrid"):
            for temperature in (0.0, 1.0):
                found = asked(running.base, draft, unseen(12), temperature)
                assert found.tau > 1.1
                agree(card, draft, "fixed", temperature, found)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_card_of_a_longer_training_is_what_is_served(tmp_path: Path) -> None:
    """The same with the rule that nobody has to ask for, over a link that is as slow as the card says; and the drafter
    is worth its training."""
    card = distilled(tmp_path, "--tokens", "1000000")
    settings = ("--drafters", str(tmp_path / "drafters"), "--draft", "hybrid")
    model = real_model("tinystories-656k")
    with far_cloud(StatedCosts().round_s) as far:
        running = Installation(tmp_path, model=model, split=1, forked=True, device_settings=settings)
        far.port = running.cloud_port
        running.cloud_url = f"ws://127.0.0.1:{far.listening}"
        with running:
            for draft in ("fused", "hybrid"):
                for temperature in (0.0, 1.0):
                    found = asked(running.base, draft, unseen(40), temperature)
                    agree(card, draft, "auto", temperature, found)
                    if (draft, temperature) == ("fused", 0.0):
                        assert found.tau > 2


def test_this_process_counts_what_the_device_counts(tmp_path: Path) -> None:
    """With a rule that no clock has part in, the very same prompts give the very same rounds, with the demo model's own
    drafters, greedy and at T = 1."""
    checkpoint = Checkpoint.open(DEMO)
    serving = Serving(checkpoint, 2, DEMO / "drafters", ["hybrid", "medusa"])
    rule = Rule("fixed", DraftSettings(draft_length="fixed"))
    with Installation(
        tmp_path,
        forked=True,
        device_settings=("--draft", "hybrid", "--draft", "medusa", "--draft-length", "fixed", "--prepare", "none"),
    ) as running:
        prompts = [f"Tell me a story about a {each}." for each in ("fox", "boat", "bear")]
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(DEMO), local_files_only=True)
        ids = [Question(tokenizer.encode(each)) for each in prompts]
        for draft in ("fused", "medusa"):
            for temperature in (0.0, 1.0):
                here = serving.answers(draft, rule, ids, temperature)
                there = asked(running.base, draft, prompts, temperature)
                assert here == there


def test_how_busy_the_machine_is_does_not_show() -> None:
    """By stated costs rounds weigh the same however long they took; where they are said to be longer it drafts on."""
    [rule] = [each for each in served.RULES if each.costs is not None]
    quick, slow = (rule.way(LookupDrafter()).length for _ in range(2))
    dear = Rule("dear", rule.settings, StatedCosts(round_s=0.2)).way(LookupDrafter()).length
    for length, seconds in ((quick, 0.001), (slow, 9.0), (dear, 9.0)):
        for _ in range(40):
            length.seen(4, 2, seconds)
    chances = [0.05, 0.1, 0.2, 0.3, 0.5, 0.9]
    assert [quick.takes([each]) for each in chances] == [slow.takes([each]) for each in chances]
    assert quick.begins() and not quick.takes([0.05]) and dear.takes([0.05])


def test_error_says_how_far_chance_goes() -> None:
    """Answers that are all alike leave none, and a single one says nothing of it."""
    assert Served(((10, 5), (10, 5)), 20, 10).error == 0 == Served(((10, 5),), 9, 5).error
    assert Served(((10, 5), (10, 10)), 20, 5).error == pytest.approx(math.sqrt(2 * 2 * (10 / 3) ** 2) / 15, rel=1e-6)
    assert Served((), 0, 0).tau == 1.0


class _Relay:
    """A TCP relay to ``port`` that holds every piece for half of ``away_s``."""

    def __init__(self, away_s: float) -> None:
        self.port = self.listening = 0
        self._late_s = away_s / 2

    async def serve(self, ready: threading.Event, ended: asyncio.Event) -> None:
        server = await asyncio.start_server(self._joined, "127.0.0.1", 0)
        self.listening = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await ended.wait()

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                loop.call_later(self._late_s, writer.write, data)
        loop.call_later(self._late_s, writer.close)


@contextmanager
def far_cloud(away_s: float) -> Iterator[_Relay]:
    """A relay on a thread of its own; its ``port`` may be set until something is dialled."""
    relay, ready = _Relay(away_s), threading.Event()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(relay.serve(ready, ended)))
    thread.start()
    assert ready.wait(10)
    try:
        yield relay
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()
