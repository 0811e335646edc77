"""The load generator as a program, against a real gateway and a device that runs the demo model by itself."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from bench.hat.latency import Record, latency, read_records
from bench.hat.prompts import demo_prompts
from checkpoints import DEMO
from forked import ForkedProcess
from installation import wait_until
from processes import ROOT, free_port, with_paths

pytestmark = pytest.mark.system

TOKENS = 24
PROMPTS = demo_prompts([40, 90, 200, 60], 11)
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of a gateway with one device in mode ``local``, which drafts whether it pays or not."""
    folder, port = tmp_path_factory.mktemp("local"), free_port()
    drafts = ("--draft", "hybrid", "--draft-length", "fixed")
    device = ("--model", str(DEMO), "--mode", "local", *drafts, "--gateway", f"ws://127.0.0.1:{port}")
    with (
        ForkedProcess("gateway", "--port", str(port), log=folder / "gateway.log", port=port),
        ForkedProcess("device_agent", *device, log=folder / "device.log"),
    ):
        wait_until(lambda: httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False, timeout=5).status_code == 200)
        yield f"http://127.0.0.1:{port}/v1"


def request(number: int, due_s: float, **extra: Any) -> dict[str, Any]:
    """One request of a plan."""
    prompt = PROMPTS[number % len(PROMPTS)]
    return {
        "id": number, "due_s": due_s, "messages": prompt.messages, "max_tokens": TOKENS, "prompt_tokens": prompt.tokens,
        "extra": {"ignore_eos": True, **extra},
    }  # fmt: skip


def start(folder: Path, plan: dict[str, Any]) -> tuple[subprocess.Popen[str], Path]:
    """The program with a plan, and where its records go."""
    path, records = folder / "plan.json", folder / "records.jsonl"
    path.write_bytes(msgspec.json.encode(plan))
    command = [sys.executable, "-m", "bench.hat.load", str(path), str(records)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT, env=with_paths()), records


def finish(process: subprocess.Popen[str], records: Path) -> tuple[list[str], dict[int | str, Record]]:
    """What it printed, and its records by id. Fails unless it ended well."""
    out, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0 and not err, err
    found = read_records(records.read_text().splitlines())
    assert len({each.id for each in found}) == len(found)
    return out.splitlines(), {each.id: each for each in found}


def run(folder: Path, base: str, requests: list[dict[str, Any]], **more: Any) -> tuple[list[str], dict[Any, Record]]:
    """A plan carried out."""
    plan = {"base": base, "requests": requests, "deadline_s": WITHIN_S, **more}
    return finish(*start(folder, plan))


def test_open_loop(base: str, tmp_path: Path) -> None:
    """Every request is sent when due, whatever the others do; every token is in a chunk, with drafts counted."""
    dues = [0.3, 0.31, 0.32, 0.33, 0.34, 0.35]
    before = time.perf_counter()
    lines, records = run(tmp_path, base, [request(number, due) for number, due in enumerate(dues)])
    assert lines[0].startswith("began ") and before < float(lines[0].split()[1]) < time.perf_counter()
    assert [line for line in lines if line.startswith("sent")] == [f"sent {number}" for number in range(len(dues))]
    assert sorted(line for line in lines if line.startswith("done")) == [
        f"done {number}" for number in range(len(dues))
    ]
    for number, due in enumerate(dues):
        each = records[number]
        assert each.complete and each.finish == "length" and each.due_s == due
        assert each.sent_s is not None and each.first_s is not None
        assert 0 <= each.sent_s - due < 1.0 < WITHIN_S and each.sent_s < each.first_s == each.chunks[0][0]
        moments = [moment for moment, _ in each.chunks]
        assert moments == sorted(moments)
        assert each.tokens == TOKENS == sum(tokens for _, tokens in each.chunks)
        assert each.prompt_tokens == PROMPTS[number % len(PROMPTS)].tokens
        assert 0 <= each.accepted <= each.proposed
        assert each.timings is None, "no cloud has part in it"
    # The second was sent before the first was answered, or this would not have been an open loop.
    assert (records[1].sent_s or 0) < records[0].chunks[-1][0]
    assert latency(list(records.values())).tau > 1.2
    assert records[0].text_digest == records[4].text_digest != records[1].text_digest


def test_closed_loop(base: str, tmp_path: Path) -> None:
    """One at a time, and two at a time: no more are on their way at once, and none is due before another has ended."""
    for closed in (1, 2):
        _, records = run(tmp_path, base, [request(number, 0.0) for number in range(5)], closed=closed)
        assert len(records) == 5 and all(each.complete for each in records.values())
        edges = [(each.sent_s or 0.0, 1) for each in records.values()]
        edges += [(each.chunks[-1][0], -1) for each in records.values()]
        assert max(itertools.accumulate(step for _, step in sorted(edges))) == closed
        assert all((each.sent_s or 0.0) - each.due_s < 1.0 for each in records.values())


@pytest.mark.slow
def test_errors_are_records(base: str, tmp_path: Path) -> None:
    """What a gateway refuses fails alone, with the reason; what is not due before the deadline fails by it."""
    requests = [
        request(0, 0.1, draft="nonsense"),
        request(1, 0.2, temperature="hot"),
        request(2, 0.3),
        request(3, 30.0),
    ]
    lines, records = run(tmp_path, base, requests, deadline_s=4.0)
    assert "nonsense" in records[0].error and records[0].sent_s is not None and records[0].first_s is None
    assert "temperature" in records[1].error
    assert records[2].complete
    assert records[3].error == "deadline" and records[3].sent_s is None
    assert records[3].prompt_tokens == PROMPTS[3].tokens
    assert "sent 3" not in lines and "done 3" in lines
    found = latency(list(records.values()))
    assert (found.requests, found.failed) == (4, 3)


def test_the_deadline_cuts_answers_off(base: str, tmp_path: Path) -> None:
    """In a closed loop too: the one on its way keeps what came, those that were never begun are there as well."""
    requests = [{**request(number, 0.0), "max_tokens": 1800} for number in range(3)]
    began = time.monotonic()
    _, records = run(tmp_path, base, requests, closed=1, deadline_s=2.0)
    assert time.monotonic() - began < 20
    assert [records[number].error for number in range(3)] == ["deadline"] * 3
    assert records[0].first_s is not None and 1 <= sum(tokens for _, tokens in records[0].chunks) < 1800
    assert records[0].prompt_tokens == PROMPTS[0].tokens
    assert records[1].sent_s is None is records[2].sent_s


def test_a_client_that_cannot_keep_up_shows(base: str, tmp_path: Path) -> None:
    """Stopped while a request falls due, it sends it late, and its record says how late."""
    process, path = start(tmp_path, {"base": base, "requests": [request(0, 0.4)], "deadline_s": WITHIN_S})
    try:
        assert process.stdout is not None and process.stdout.readline().startswith("began")
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.9)
        process.send_signal(signal.SIGCONT)
        _, records = finish(process, path)
    finally:
        process.kill()
        process.wait()
    assert records[0].complete and (records[0].sent_s or 0) - records[0].due_s > 0.3
    found = latency([records[0]])
    assert found.late.most > 0.3


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (b"{", "no plan"),
        (b'{"base": "http://127.0.0.1:1/v1", "requests": [{"id": 1}], "deadline_s": 1}', "requests[0]"),
    ],
)
def test_no_plan(plan: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with a message that names what is wrong, and leaves no records."""
    from bench.hat.load import main

    path, records = tmp_path / "plan.json", tmp_path / "records.jsonl"
    path.write_bytes(plan)
    with pytest.raises(SystemExit) as ended:
        main([str(path), str(records)])
    assert ended.value.code == 2 and said in capsys.readouterr().err and not records.exists()
