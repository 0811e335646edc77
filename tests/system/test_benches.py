"""Benchmarks run end to end at their smallest, so that they never rot; what they measure is no test's business."""

from __future__ import annotations

import shutil

import pytest
from bench.drafting_speed import ABLATIONS
from processes import printed_by

from cloud_server.config import CloudConfig

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(1600)]

SHOWN = {
    "overhead": ("| ushape, float32 | **", "| ushape, bfloat16 | **", "| local, float32 | **"),
    "interference": ("| quiet |", "| prompts |", "| prompts, chunking off |"),
    "structured": ("| a schema, as the device likes |", "| sentences, as the device likes |"),
    "decisions": ("| loopback | chats at once |", "50 Mbit/s | chats in turn |"),
    "second_turn": ("| demo, float32, loopback |", "| demo, float32, 50 Mbit/s |"),
    "soak": ("| requests, and those that failed | 12, **0** |", "| sessions and devices at the end | **0**, **0** |"),
    "failure": ("| 4 | **0** | **0** | **",),
    "privacy": ("| split | the commonest token | nearest embedding |", "| padded, no drafts |"),
    "drafting": ("transformers': **0** of", "without drafting: **0** of", "\n| lookup | 0 | "),
}
"""What each says: its tables, that nothing was lost and nothing wrong."""


@pytest.mark.parametrize("name", SHOWN)
def test_quick(name: str) -> None:
    """The smallest run of each, with its table at the end."""
    output, _ = printed_by(f"bench.{name}", "--quick", within_s=1500)
    for line in SHOWN[name]:
        assert line in output


def test_api_quick() -> None:
    """Every part that needs no rival: no stream is broken, no limit is exceeded at once."""
    parts = ("--only", "rates", "--only", "streams", "--only", "limits")
    output, _ = printed_by("bench.api", "--quick", "--litellm", "/nowhere", *parts)
    for line in ("| whole | gateway | **", "| streamed | gateway | **", "all their tokens | 50, **0** |"):
        assert line in output
    assert shutil.which("redis-server") is None or "| requests at once | 16 | 6 | **" in output


@pytest.mark.skipif(shutil.which("guidellm") is None, reason="guidellm is not installed (pip install guidellm)")
def test_trilby_bench_finds_what_guidellm_does() -> None:
    """Within a twentieth, on a server whose times are known, with room for all and overloaded."""
    output, _ = printed_by("bench.api", "--quick", "--only", "load-kept", "--only", "load-queued")
    assert output.count("| met |") == 16 and "missed" not in output


def test_drafting_speed_quick() -> None:
    """Both tables for one device alone, and one behind a link."""
    output, _ = printed_by("bench.drafting_speed", "--quick", within_s=1500)
    for link in ("local", "5 ms, 10 MB/s"):
        row = next(line for line in output.splitlines() if line.startswith(f"| {link} | ours | "))
        assert row.endswith("| 0 of 6 |")
        assert f"\n| {link} | U-shape | " in output


def test_ablations_quick() -> None:
    """A table of each, with a row for each of its modes."""
    output, _ = printed_by("bench.drafting_speed", "--quick", "--ablate", within_s=1500)
    for title, (_, modes) in ABLATIONS.items():
        rows = output.split(f"{title}:")[1].split("\n\n")[1].splitlines()[2:]
        assert [row.split(" | ")[1] for row in rows] == [mode.name for mode in modes]
        assert all(row.endswith("| 0 of 6 |") for row in rows)


def test_engine_quick() -> None:
    """One round of ours and transformers' two, with all tables; llama.cpp is left out and the reason said.

    Both settings of the slack are compared where there are many sessions, the default alone where there are few.
    """
    few = ("--sessions", "3", "8", "--threads", "1", "--llama", "/nowhere/python")
    output, errors = printed_by("bench.engine", "--quick", *few)
    assert "llama.cpp is left out: /nowhere/python does not start" in errors
    rows, default = output.splitlines(), f"{CloudConfig('').step_slack:g}"
    for sessions, slacks in ((3, [default]), (8, [default, "20"])):
        for rival in ("equal | transformers, static batch", "mixed | transformers, continuous batching"):
            found = [row for row in rows if row.startswith(f"| {sessions} | {rival} | ")]
            assert [row.split(" | ")[3] for row in found] == slacks
    assert output.count("\n| 8 | ") == 7, "the tables of rivals (four rows), of bounds (two), of the event loop"
