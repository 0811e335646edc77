"""A member ends without a word in the middle of an answer: how long the next token takes, and whether any is wrong.

The real command serves the demo model with three processes; clients stream over HTTP, as in daily use.
"""

from __future__ import annotations

import json
import signal
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.page import machine, table
from psutil import NoSuchProcess
from serving import Serving
from streamed import Answer, stream_answer

FILE = "kills.json"
MODES = ("galaxy", "voltage", "tensor", "sequence", "pipeline")
SIGNALS = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}
DEVICES = 3
TOKENS = 120
AT = 30
"""After so many pieces of text."""


def measure(mode: str, fault: str) -> dict[str, Any]:
    """One answer undisturbed, then the same while a member ends."""
    body = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": TOKENS}
    body |= {"temperature": 0, "ignore_eos": True, "draft": "none"}
    with TemporaryDirectory() as folder:
        arguments = ("--mode", mode, "--devices", f"{DEVICES}", "--threads", "1")
        with Serving(Path(folder) / "log", *arguments) as serving:
            expected = stream_answer(serving.base, body)
            member = next(each for each in serving.children() if "device_agent.group.member" in each.cmdline())
            answer = stream_answer(
                serving.base, body, lambda count: member.send_signal(SIGNALS[fault]) if count == AT else None
            )
            with suppress(NoSuchProcess):  # A stopped one would not end with the others.
                member.kill()
    return {
        "mode": mode,
        "fault": fault,
        "usual_s": statistics.median(_pauses(expected)),
        "pause_s": max(_pauses(answer)[AT - 1 :], default=0.0),
        "wrong": int(answer.done and answer.text != expected.text),
        "lost": int(not answer.done),
    }


def write(folder: Path, quick: bool) -> None:
    """Measure what a folder of records does not have yet."""
    file = folder / FILE
    found: list[dict[str, Any]] = json.loads(file.read_text())["kills"] if file.is_file() else []
    folder.mkdir(parents=True, exist_ok=True)
    for mode in MODES[:1] if quick else MODES:
        for fault in list(SIGNALS)[: 1 if quick else 2]:
            if not any((each["mode"], each["fault"]) == (mode, fault) for each in found):
                found.append(measure(mode, fault))
                print(f"{mode}, {fault}: {found[-1]['pause_s']:.2f} s until the next token", flush=True)
                file.write_text(json.dumps({"machine": machine(), "kills": found}), encoding="utf-8")


def shown(found: Sequence[Mapping[str, Any]]) -> str:
    """Each mode and fault."""
    rows = []
    for each in found:
        times = f"{each['usual_s'] * 1e3:.0f}", f"{each['pause_s']:.2f}"
        rows.append([each["mode"], each["fault"], *times, f"{each['wrong']}", f"{each['lost']}"])
    head = ["mode", "a member gets", "usually between tokens, ms", "until the next one, s", "wrong answers", "lost"]
    return table(head, rows or [["not measured", *["–"] * 5]])


def _pauses(answer: Answer) -> list[float]:
    return [after - before for before, after in pairwise(answer.times)]
