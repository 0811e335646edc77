"""A check that hangs or breaks is a finding, and the next one goes on."""

from __future__ import annotations

import json
import threading
from time import monotonic

import pytest

from service.doctor.check import Check, hanging, run
from service.doctor.finding import Finding, Say
from service.doctor.report import Report

FINE = Finding("fine", "ok", "well")


def found_by(check: Check) -> list[Finding]:
    """What it finds."""
    found: list[Finding] = []
    run(check, found.append)
    return found


def test_what_hangs_is_given_up() -> None:
    """In its time, with what it had found until then; that it hangs on is known."""
    over = threading.Event()

    def hang(say: Say) -> None:
        say(FINE)
        over.wait(60)

    began = monotonic()
    first, given_up = found_by(Check("slow", 0.2, hang, "ws://there"))
    assert first == FINE and monotonic() - began < 30
    assert (given_up.status, given_up.about) == ("fail", "ws://there") and "0.2 s" in given_up.seen and given_up.todo
    assert hanging()
    over.set()
    for thread in threading.enumerate():
        if thread.name == "check-slow":
            thread.join(60)
    assert not hanging()


@pytest.mark.parametrize("error", [ValueError("a secret"), SystemExit("a secret"), RecursionError()])
def test_what_breaks_is_told_without_its_text(error: BaseException) -> None:
    """Its kind alone: its text may hold anything."""

    def broken(say: Say) -> None:
        raise error

    [finding] = found_by(Check("broken", 60, broken))
    assert finding.status == "fail" and type(error).__name__ in finding.seen and "secret" not in finding.seen


def test_a_report_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    """One bad check does not end the others; any that fails is the exit status."""

    def broken(say: Say) -> None:
        raise OSError

    report = Report(False, ["hidden-token"])
    report.run(Check("fine", 60, lambda say: say(FINE)))
    assert report.end(1.0) == 0
    report.run(Check("broken", 60, broken))
    report.run(Check("odd", 60, lambda say: say(Finding("odd", "warn", "the hidden-token", "Look."))))
    assert report.end(2.0) == 1
    shown = capsys.readouterr().out
    assert "ok    fine: well\n" in shown and "1 ok, 1 to look at, 1 failed, in 2 s." in shown
    assert "hidden-token" not in shown and "warn  odd: the …" in shown


def test_a_report_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """One object, once all is over."""
    report = Report(True, [])
    report.run(Check("fine", 60, lambda say: say(FINE)))
    assert capsys.readouterr().out == ""
    report.end(0.5)
    told = json.loads(capsys.readouterr().out)
    assert [each["check"] for each in told["findings"]] == ["fine"] and told["version"]
