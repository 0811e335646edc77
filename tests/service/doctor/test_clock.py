"""Clocks that are wrong, by moments that were read."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from service.doctor.clock import DAY_S, kept_pace, own_clock, skew

NOW = 1_800_000_000.0


def test_a_clock_before_its_own_files() -> None:
    """A board without a battery begins in 1970."""
    assert own_clock(0.0, NOW).status == "fail" and "20833 days before" in own_clock(0.0, NOW).seen
    assert own_clock(NOW, NOW - 3 * DAY_S).status == "ok"
    assert own_clock(NOW, NOW + 3600).status == "ok", "files may be of another time zone's archive"


@pytest.mark.parametrize(("wall", "status", "word"), [(4.0, "ok", ""), (3.0, "warn", "back"), (9.0, "warn", "forward")])
def test_a_clock_that_is_set_meanwhile(wall: float, status: str, word: str) -> None:
    """Beside the one that nobody sets."""
    found = kept_pace(wall, 4.1)
    assert found.status == status and word in found.seen
    assert found.figures["ahead_s"] == round(wall - 4.1, 3)


@pytest.mark.parametrize(
    ("ahead", "status", "word"),
    [
        (0.0, "ok", "within"),
        (4.0, "ok", "within"),
        (-30.0, "warn", "behind"),
        (30.0, "warn", "30 s ahead of"),
        (3600.0, "fail", "60 minutes ahead of"),
        (-90 * DAY_S, "fail", "90 days behind"),
    ],
)
def test_another_machines_clock(ahead: float, status: str, word: str) -> None:
    """By the Date of its answer, less what that cannot tell."""
    found = skew("ws://there", formatdate(NOW + ahead - 1.0, usegmt=True), NOW - 0.1, NOW + 0.1)
    assert found is not None and (found.status, found.about) == (status, "ws://there") and word in found.seen
    assert found.figures["ahead_s"] == pytest.approx(ahead, abs=0.11)
    assert bool(found.todo) is (status != "ok")


def test_a_slow_answer_says_less() -> None:
    """Ten seconds on the way may be a clock that is right."""
    found = skew("", formatdate(NOW - 9.0, usegmt=True), NOW - 10.0, NOW + 10.0)
    assert found is not None and found.status == "ok" and found.figures["unsure_s"] == 11.0


def test_a_date_that_is_none() -> None:
    """Nothing is said."""
    assert skew("", "", NOW, NOW) is None and skew("", "yesterday", NOW, NOW) is None
