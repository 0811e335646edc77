"""What is found: as it goes from process to process, and as it is shown."""

from __future__ import annotations

from service.doctor.finding import MAX_SHOWN, Finding, cleaned, finding_in, line_of, sentence, told

FOUND = Finding("token", "fail", "it is refused", "Give another.", "ws://cloud:8001", {"pings": 3, "median_s": 0.5})


def test_a_finding_is_a_line_for_another_process() -> None:
    """And the same behind it; what is no finding is none, whatever it is."""
    assert finding_in(line_of(FOUND)) == FOUND and "\n" not in line_of(FOUND)
    assert finding_in(line_of(Finding("disk", "ok", "ä\nb"))) == Finding("disk", "ok", "ä\nb")
    for other in ("", "a library says this", "{}", "[1]", '{"check": "a", "status": "fine", "seen": ""}', "\ud800"):
        assert finding_in(other) is None


def test_a_finding_for_people() -> None:
    """One line, and one on what to do where something is to be done."""
    assert told(FOUND) == "fail  ws://cloud:8001 token: it is refused\n      → Give another."
    assert told(Finding("disk", "ok", "much")) == "ok    disk: much"
    assert FOUND.facts["figures"] == {"pings": 3, "median_s": 0.5}


def test_nothing_secret_and_nothing_that_steers_a_terminal_is_shown() -> None:
    """Whoever has said it: a server may send back what it was shown, and anything else."""
    seen = cleaned(Finding("a", "fail", "you said s3cret-token\x1b[2J", "x" * 1000, "s3cret-token"), ["s3cret-token"])
    assert seen.seen == "you said …\ufffd[2J" and seen.about == "…"
    assert len(seen.todo) == MAX_SHOWN
    assert cleaned(FOUND, ["", "is"]) == FOUND, "a secret of two letters is in every word"
    longer = cleaned(Finding("a", "ok", "abcdefgh"), ["abcd", "abcdefgh"])
    assert longer.seen == "…", "of two that fit the longer one goes, and leaves no rest"


def test_sentences() -> None:
    """As people write them."""
    assert sentence("renew it") == "Renew it." and sentence("Are they right?") == "Are they right?"
    assert sentence("  ") == ""
