"""What peers can cause at will is said a few times, and then counted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import structlog
from structlog.testing import capture_logs

from service.ration import BURST
from service.sparing_log import SparingLog


async def test_a_flood_leaves_few_lines_and_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no other line of its kind follows; other kinds are said as ever."""
    monkeypatch.setattr("service.sparing_log.TOLD_AFTER_S", 0.01)
    log = SparingLog()
    with capture_logs() as lines:
        for number in range(1000):
            log.info("refused", "not_found", path=number)
        log.warning("agent breaks the protocol", what="x")
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if lines[-1]["event"] == "lines were left out":
                break
    *said, other, told = lines
    assert [each["path"] for each in said] == list(range(len(said)))
    assert BURST <= len(said) < BURST + 10  # A slow machine may see a second go by.
    assert other["event"] == "agent breaks the protocol" and other["log_level"] == "warning"
    assert told["of"] == "refused not_found" and told["lines"] == 1000 - len(said)


async def test_how_many_were_left_out_is_no_requests_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever caused the flood: it is about many."""
    monkeypatch.setattr("service.sparing_log.TOLD_AFTER_S", 0.01)
    log, told, bound = SparingLog(), asyncio.Queue[dict[str, object]](), structlog.contextvars.get_contextvars
    logger = SimpleNamespace(info=lambda event, **fields: told.put_nowait(bound() | {"event": event}))
    monkeypatch.setattr("service.sparing_log._log", logger)
    with structlog.contextvars.bound_contextvars(request_id="r-1", process="device"):
        for _ in range(BURST + 5):
            log.info("refused")
        said = [await told.get() for _ in range(BURST + 1)]
        assert bound()["request_id"] == "r-1"
    assert [each.get("request_id") for each in said] == ["r-1"] * BURST + [None]
    assert said[-1] == {"event": "lines were left out", "process": "device"}


def test_outside_a_loop_the_next_line_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nobody then who could tell later."""
    now = 0.0
    monkeypatch.setattr("service.sparing_log.monotonic", lambda: now)
    log = SparingLog()
    with capture_logs() as lines:
        for _ in range(BURST + 5):
            log.info("gone")
        now = 60.0
        log.info("gone")
    assert [each.get("more") for each in lines] == [None] * BURST + [5]
