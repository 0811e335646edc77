"""Which packages are there, beside those that are needed and those that were tested."""

from __future__ import annotations

from service.doctor.versions import MOST_NAMED, compared, needed, pinned

LOCK = """\
# a comment
click==8.5.1 \\
    --hash=sha256:00
Typing_Extensions==4.1 ; python_full_version < '3.11' \\
    --hash=sha256:00
typing-extensions==4.2 ; python_full_version >= '3.11' \\
    --hash=sha256:00
"""
LEAST = {"click": "8.1", "torch": "2.5"}
LOCKED = {"click": {"8.5.1"}, "torch": {"2.13.0"}, "typing-extensions": {"4.1", "4.2"}}


def said(**installed: str | None) -> list[tuple[str, str]]:
    """Status and text of what is found."""
    names = {name.replace("_", "-"): version for name, version in installed.items()}
    return [(each.status, each.seen) for each in compared(names, LEAST, LOCKED)]


def test_requirements_and_locks_are_read() -> None:
    """What extras need is left out; a package may have a version for each kind of machine."""
    assert needed(["click>=8.1", "torch >= 2.5", "pillow>=10; extra == 'vision'", "odd~=1"]) == LEAST
    assert pinned([LOCK, "torch==2.13.0\n"]) == LOCKED


def test_as_in_the_lock() -> None:
    """Any of its versions is; what a build adds of its own counts for nothing."""
    assert said(click="8.5.1", torch="2.13.0+cpu", typing_extensions="4.2") == [("ok", "3, all as in the lock")]
    assert said(click="8.5.1", torch="2.13.0") == [("ok", "2, all as in the lock")]


def test_missing_old_and_other() -> None:
    """Each is said; only what was tested less is no failure."""
    missing, old = said(click=None, torch="2.4.1")[:2]
    assert missing == ("fail", "not installed: click")
    assert old == ("fail", "too old: torch 2.4.1 (needed: 2.5)")
    assert said(click="8.5.1", torch="2.14") == [("warn", "not as in the lock: torch 2.14 (lock: 2.13.0)")]
    assert said(click="8.1.0", torch="2.13.0")[0][0] == "warn", "8.1.0 is 8.1, and not too old"


def test_without_a_lock() -> None:
    """An installed wheel has none."""
    [only] = compared({"click": "9", "torch": "2.5.0"}, LEAST, {})
    assert (only.status, only.todo) == ("ok", "") and "no lock" in only.seen


def test_many_are_counted() -> None:
    """A line stays one."""
    least = {f"p{number}": "1" for number in range(MOST_NAMED + 3)}
    [only] = compared(dict.fromkeys(least), least, {})
    assert only.seen.endswith("and 3 more")
