"""What a load's figures say of requests whose times are known, and when it says that it was late itself."""

from __future__ import annotations

import json
import math
import statistics
import xml.etree.ElementTree as ElementTree
from array import array
from dataclasses import asdict
from typing import Any

import numpy
import pytest

from service.bench.arrivals import due_times
from service.bench.asked import NOT_SENT, Asked
from service.bench.figures import figures, is_good, percentile, spread
from service.bench.plot import plot
from service.bench.report import facts, remarks, table

LIMITS = {"ttft": 150.0, "tbt": 50.0}


def answered(
    due: float = 0.0, first: float = 0.1, gaps: list[float] | None = None, late: float = 0.0, **more: Any
) -> Asked:
    """An answer of one token, and one more behind each gap; its end is half a gap later."""
    asked = Asked(due, sent=due + late)
    at = asked.sent + first
    times = [at]
    for gap in gaps or []:
        at += gap
        times.append(at)
    asked.times, asked.events, asked.ended = array("d", times), len(times), at + 0.005
    asked.tokens, asked.prompt_tokens = len(times), 10
    for name, value in more.items():
        setattr(asked, name, value)
    return asked


def test_times_are_those_of_the_definitions() -> None:
    """TTFT from the sending, TBT the gaps, ITL their mean by the server's tokens, E2E to the end."""
    found = figures(1.0, [answered(2.0, 0.1, [0.01, 0.03], tokens=5)], 4.0, LIMITS)
    assert found.ttft is not None and found.tbt is not None and found.itl is not None and found.e2e is not None
    assert found.ttft.p50 == pytest.approx(100) and found.e2e.p50 == pytest.approx(145)
    assert found.tbt.count == 2 and found.tbt.mean == pytest.approx(20) and found.tbt.largest == pytest.approx(30)
    assert found.itl.p50 == pytest.approx(10), "40 ms for four further tokens"
    assert (found.answered_s, found.tokens_s, found.tokens, found.prompt_tokens) == (0.25, 1.25, 5, 10)


@pytest.mark.parametrize("count", [1, 2, 3, 100, 101])
def test_percentiles_are_numpys(count: int) -> None:
    """Linear between neighbours, of one value that value."""
    values = sorted(math.sin(number) for number in range(count))
    for share in (0, 1, 37, 50, 99, 100):
        assert percentile(values, share / 100) == pytest.approx(float(numpy.percentile(values, share)))
    assert spread([]) is None


def test_an_answer_is_good_that_keeps_all_limits() -> None:
    """A single stall among few gaps breaks the limit on TBT, a slow mean the one on ITL; a missing token the first."""
    stalled = answered(gaps=[0.01] * 20 + [0.2])
    assert is_good(stalled, {"ttft": 150}) and is_good(stalled, {"itl": 20}) and not is_good(stalled, {"tbt": 50})
    assert not is_good(answered(first=0.2), LIMITS)
    assert is_good(answered(), LIMITS), "no gap, none too long"
    silent = answered(times=array("d"), events=0, tokens=0)
    assert not is_good(silent, LIMITS) and is_good(silent, {})
    at_once = answered(tokens=12)
    assert is_good(at_once, {"ttft": 150, "e2e": 150}), "of these it is known"
    assert not is_good(at_once, {"itl": 1000}) and not is_good(at_once, {"tbt": 1000})


def test_every_request_is_counted_once() -> None:
    """Answered, failed, given up or not sent; goodput is a share of all that were due."""
    asked = [
        answered(0.0, gaps=[0.01] * 9),
        answered(0.1, first=0.4),
        answered(0.2, error="429 rate_limit_exceeded", reason="Try again later"),
        answered(0.3, error="429 rate_limit_exceeded", reason="Try again"),
        Asked(0.4, sent=0.4),
        Asked(0.5, error=NOT_SENT),
    ]
    found = figures(10.0, asked, 2.0, LIMITS)
    assert (found.due, found.sent, found.answered, found.given_up, found.good) == (6, 5, 2, 1, 1)
    assert found.failed == {"429 rate_limit_exceeded": 2, NOT_SENT: 1}
    assert found.reasons == {"429 rate_limit_exceeded": "Try again later"}
    assert (found.answered_s, found.good_s) == (1.0, 0.5)
    shown = table([found], LIMITS).splitlines()
    assert any(line.split() == ["failed", "3"] for line in shown)
    assert any(line.split()[-2:] == ["due", "17%"] for line in shown)
    said = "\n".join(remarks([found]))
    assert "2 failed with 429 rate_limit_exceeded: Try again later" in said and "not sent" in said
    assert "1 of 5 requests were given up" in said


def test_a_load_that_is_late_says_so() -> None:
    """By the worst hundredth, where that is much beside what was measured; not for a millisecond."""
    prompt = [answered(number, late=0.001) for number in range(200)]
    late = [answered(number, late=0.03 if number % 50 == 0 else 0.0) for number in range(200)]
    slow = [answered(number, first=2.0, late=0.03 if number % 50 == 0 else 0.0) for number in range(200)]
    found = [figures(1.0, asked, 200.0, {}) for asked in (prompt, late, slow)]
    assert [each.too_late for each in found] == [False, True, False]
    assert remarks([found[0], found[2]]) == []
    (line,) = remarks(found)
    assert line.startswith("At 1 a second this load was late") and "30 ms" in line


def test_what_a_server_leaves_out_is_said() -> None:
    """No usage, and no stream."""
    uncounted = figures(1.0, [answered(gaps=[0.1], tokens=None)], 1.0, {})
    assert uncounted.tokens == 2 and not uncounted.counted
    some_at_once = figures(1.0, [answered(tokens=12), answered(gaps=[0.1])], 1.0, {})
    assert some_at_once.itl is not None and some_at_once.itl.count == 1
    counted, piece = remarks([uncounted, some_at_once])
    assert "counted instead" in counted and "1 of 2 answers came in one piece" in piece


def test_figures_are_also_for_programs_and_pictures() -> None:
    """JSON without NaN, and an SVG of each kind, for what failed altogether too."""
    empty = figures(3.0, [Asked(0.0, sent=0.0)], 1.0, LIMITS)
    full = figures(2.0, [answered(gaps=[0.01, 0.02])], 1.0, LIMITS)
    told = json.loads(json.dumps(facts([full, empty]), allow_nan=False))
    assert told[0]["ttft"]["p50"] == pytest.approx(100) and told[1]["ttft"] is None
    assert set(told[0]) == set(asdict(full))
    for found in ([full], [full, empty], [empty]):
        root = ElementTree.fromstring(plot(found))
        assert len(root.findall("{*}g/{*}svg/{*}polyline")) >= len(found)
    assert table([full, empty], {}).count("–") == 12


def test_poisson_arrivals_are() -> None:
    """As many as the rate says, with gaps whose deviation is their mean; the same for the same seed."""
    times = due_times("poisson", 50.0, 100.0, seed=1)
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    assert len(times) == pytest.approx(5000, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.05)
    assert times == sorted(times) and times[-1] < 100
    assert times == due_times("poisson", 50.0, 100.0, seed=1) != due_times("poisson", 50.0, 100.0, seed=2)


def test_constant_arrivals_are() -> None:
    """At equal distances from the begin on; one at least."""
    assert due_times("constant", 4.0, 1.0, 0) == [0.0, 0.25, 0.5, 0.75]
    assert due_times("constant", 0.1, 1.0, 0) == [0.0] and len(due_times("poisson", 1e-9, 1.0, 0)) == 1
