"""Whether clocks are right, from moments that somebody has read. Pure: times are seconds since 1970."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Final

from service.doctor.finding import Finding

DAY_S: Final = 86400.0

STEP_S: Final = 0.5
"""A clock that goes otherwise than the one that nobody sets, by more than this within some seconds, was set."""

WARN_S, FAIL_S = 5.0, 300.0
"""Between two clocks: from where on times in traces and keys are wrong to the eye, and from where on certificates that
were just made are not valid yet."""

DATE_S: Final = 1.0
"""A Date header has whole seconds, and servers make it anew once a second."""

_SET: Final = "Have a time service set this machine's clock (timedatectl set-ntp true, or chrony)."


def own_clock(now: float, made: float) -> Finding:
    """Whether the clock can be right.

    Args:
        made: when the files of this installation were written.
    """
    if now < made - DAY_S:
        days = (made - now) / DAY_S
        return Finding("clock", "fail", f"it is {days:.0f} days before this installation was made", _SET)
    return Finding("clock", "ok", "it is later than this installation")


def kept_pace(wall_s: float, monotonic_s: float) -> Finding:
    """Whether the clock was set meanwhile: how far it and the one that nobody sets have gone on."""
    ahead = wall_s - monotonic_s
    figures = {"ahead_s": round(ahead, 3)}
    if abs(ahead) <= STEP_S:
        return Finding("clock's pace", "ok", f"nobody has set it within {monotonic_s:.0f} s", figures=figures)
    way = "forward" if ahead > 0 else "back"
    seen = f"it was set {abs(ahead):.1f} s {way} within {monotonic_s:.0f} s"
    todo = "Find out who sets it: one time service, which slows and speeds it, and no other."
    return Finding("clock's pace", "warn", seen, todo, figures=figures)


def skew(about: str, date: str, sent: float, got: float) -> Finding | None:
    """How far another machine's clock is from this one's; None where its ``date`` is none.

    Args:
        date: the Date header of its answer.
        sent, got: when it was asked and when it had answered, by this clock.
    """
    try:
        there = parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    ahead = there + DATE_S - (sent + got) / 2
    unsure = DATE_S + (got - sent) / 2
    beyond = abs(ahead) - unsure
    figures = {"ahead_s": round(ahead, 1), "unsure_s": round(unsure, 1)}
    if beyond <= WARN_S:
        seen = f"within {max(WARN_S, unsure):.0f} s of this machine's"
        return Finding("clock", "ok", seen, about=about, figures=figures)
    seen = f"{_span(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this machine's"
    todo = "Find out which of the two is wrong, and have a time service set it: certificates, keys and traces go by it."
    return Finding("clock", "fail" if beyond > FAIL_S else "warn", seen, todo, about, figures)


def _span(seconds: float) -> str:
    if seconds < 2 * 60:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.0f} hours" if seconds < 2 * DAY_S else f"{seconds / DAY_S:.0f} days"
