"""Whether the packages that are installed are those that are needed, and those that were tested. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final

from service.doctor.finding import Finding

MOST_NAMED: Final = 6
"""Packages that one line names; of more it says how many."""

INSTALL: Final = "install what the lock says (make serve does; else pip install -r requirements.lock)"

_NEEDED: Final = re.compile(r"([A-Za-z0-9._-]+)\s*>=\s*([0-9][0-9A-Za-z.]*)\s*(;.*)?")
_PINNED: Final = re.compile(r"([A-Za-z0-9._-]+)==([0-9][0-9A-Za-z.+!-]*)")
_RELEASE: Final = re.compile(r"[0-9]+(?:\.[0-9]+)*")


def plain_name(name: str) -> str:
    """A package's name as all its spellings have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(requirements: Iterable[str]) -> dict[str, str]:
    """The least version of each package that is needed, from requirements such as ``torch>=2.5``; those of extras are
    left out."""
    matches = filter(None, map(_NEEDED.fullmatch, (each.strip() for each in requirements)))
    return {plain_name(match[1]): match[2] for match in matches if "extra" not in (match[3] or "")}


def pinned(locks: Iterable[str]) -> dict[str, set[str]]:
    """The versions that locks, as pip has them, allow of each package: one for each kind of machine."""
    found: dict[str, set[str]] = {}
    for line in (line for lock in locks for line in lock.splitlines()):
        match = _PINNED.match(line)
        if match is not None:
            found.setdefault(plain_name(match[1]), set()).add(match[2])
    return found


def compared(
    installed: Mapping[str, str | None], least: Mapping[str, str], locked: Mapping[str, Set[str]]
) -> Iterator[Finding]:
    """What is to be said of the packages.

    Args:
        installed: the version of each; None where it is not there.
        least: the least version of those that are needed.
        locked: the versions of those that were tested; empty: there is no lock here.
    """
    missing = [name for name in least if installed.get(name) is None]
    if missing:
        yield Finding("packages", "fail", f"not installed: {_some(missing)}", f"Go on with: {INSTALL}.")
    old = [
        f"{name} {installed[name]} (needed: {version})"
        for name, version in least.items()
        if (found := installed.get(name)) is not None and _release(found) < _release(version)
    ]
    if old:
        yield Finding("packages", "fail", f"too old: {_some(old)}", f"Go on with: {INSTALL}.")
    there = {name: version for name, version in installed.items() if version is not None and name in locked}
    others = [
        f"{name} {version} (lock: {' or '.join(sorted(locked[name]))})"
        for name, version in sorted(there.items())
        if _public(version) not in locked[name]
    ]
    if others:
        todo = f"Where something is odd, {INSTALL}: it is what was tested."
        yield Finding("packages", "warn", f"not as in the lock: {_some(others)}", todo)
    elif not missing and not old:
        seen = f"{len(there)}, all as in the lock" if there else f"{len(least)}, all new enough; no lock is here"
        yield Finding("packages", "ok", seen, figures={"packages": len(there) or len(least)})


def _public(version: str) -> str:
    """Without what a build adds of its own: ``2.13.0+cpu`` is ``2.13.0``."""
    return version.partition("+")[0]


def _release(version: str) -> tuple[int, ...]:
    match = _RELEASE.match(version)
    numbers = [int(each) for each in match[0].split(".")] if match is not None else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
