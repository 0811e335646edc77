"""What a device says its sessions work for: the spans of their turns, and the ids in logs."""

from __future__ import annotations

import pytest
import torch
from kept_spans import KeptTraces

from cloud_server.engine.session import Answered
from cloud_server.errands import Errands
from service.traces import Facts
from wire.errand import Errand
from wire.errors import Code

ABOVE = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def traces() -> KeptTraces:
    """All spans."""
    return KeptTraces()


def answered(rows: torch.Tensor | None, steps: int = 1) -> Answered:
    """A forward that took some steps of half a second."""
    return Answered(0, rows, 0.25, 0.5, 8, steps, 0.5 * steps)


def test_a_turn_is_one_span_with_its_steps(traces: KeptTraces) -> None:
    """However many forwards it has; that its prompt was answered is said once, with what it took until then."""
    errands = Errands(traces)
    assert errands.begin(1, Errand("r-1", ABOVE), "open") == errands.request_id(1) == "r-1"
    errands.answered(1, answered(None, steps=2))
    errands.answered(1, answered(torch.zeros(1, 4)))
    errands.answered(1, answered(torch.zeros(1, 4)))
    errands.end(1, "parked")
    errands.end(1, "closed")
    [span] = traces.spans
    assert span.name == "session" and span.parent == ABOVE and span.ended == 1 and not span.code
    said = {"request_id": "r-1", "how": "open", "outcome": "parked"}
    assert span.facts == {**said, **Facts(forwards=3, steps=4, queue_s=0.75, step_s=2.0)}
    assert span.events == [("prompt answered", Facts(forwards=2, steps=3, queue_s=0.5, step_s=1.5))]
    assert errands.request_id(1) == ""


def test_a_next_turn_begins_another(traces: KeptTraces) -> None:
    """Also where the last one was not ended."""
    errands = Errands(traces)
    errands.begin(1, Errand("r-1", ABOVE), "open")
    errands.begin(1, Errand("r-2", ABOVE), "next turn")
    first, second = traces.spans
    assert (first.ended, second.ended) == (1, 0) and first.facts["outcome"] == "taken up"
    assert errands.request_id(1) == "r-2"


def test_a_device_that_says_nothing_is_served_the_same(traces: KeptTraces) -> None:
    """One of the release before, or one without a trace: nobody begins a trace for it here."""
    errands = Errands(traces)
    assert errands.begin(1, None, "open") == "" and errands.begin(2, Errand("r-2", ""), "open") == "r-2"
    for session in (1, 2):
        errands.answered(session, answered(torch.zeros(1, 4)))
        errands.end(session, "closed")
    assert traces.spans == []


def test_a_strangers_words_are_looked_at(traces: KeptTraces) -> None:
    """An id that is none is in no log and no span."""
    errands = Errands(traces)
    for bad in ("two words", "line\n", "x" * 400):
        assert errands.begin(1, Errand(bad, ABOVE), "open") == ""
    assert {span.facts["request_id"] for span in traces.spans} == {""}


def test_a_bad_end_has_its_code(traces: KeptTraces) -> None:
    """One that the cloud ends, and those of a connection that is lost; nobody is left."""
    errands = Errands(traces)
    for session in (1, 2, 3):
        errands.begin(session, Errand(f"r-{session}", ABOVE), "open")
    errands.end(1, "ended", Code.PREEMPTED)
    errands.end_all()
    assert [span.code for span in traces.spans] == ["preempted", "lost", "lost"]
    assert all(span.ended == 1 for span in traces.spans) and errands.request_id(3) == ""


def test_without_traces_ids_are_known_for_logs() -> None:
    """And nothing is counted."""
    errands = Errands()
    assert errands.begin(1, Errand("r-1", ABOVE), "open") == "r-1"
    errands.answered(1, answered(None))
    errands.end(1, "closed")
