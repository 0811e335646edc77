"""What clients ask while something breaks, without a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from faults import shapes
from faults.shapes import AT, Asked
from streamed import Answer

NAMES = ("plain", "drafted")
WITHIN_S = 30.0


def answered(base: str, body: dict[str, Any], seen: Callable[[int], None]) -> Answer:
    """An answer whose pieces come at once."""
    for count in range(AT + 2):
        seen(count)
    return Answer(done=True)


def test_clients_read_on_while_something_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done is not over before all answers are: were it done on a client's thread, they never would be."""
    over = threading.Barrier(len(NAMES) + 1)

    def reads(*asked: Any) -> Answer:
        answer = answered(*asked)
        over.wait(WITHIN_S)
        return answer

    monkeypatch.setattr(shapes, "stream_answer", reads)
    asked = Asked("", NAMES, do=lambda: over.wait(WITHIN_S))
    assert asked.answers().keys() == {*NAMES}
    assert asked.answers().keys() == {*NAMES}  # Asked again, it is done again, once.


def test_what_cannot_be_broken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the answers."""

    def fails() -> None:
        raise ProcessLookupError("nobody to be killed")

    monkeypatch.setattr(shapes, "stream_answer", answered)
    with pytest.raises(ProcessLookupError, match="nobody"):
        Asked("", NAMES, do=fails).answers()
