"""One check, in its time: whatever it looks at may hang or be broken, and the next one goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final

from service.doctor.finding import Finding, Say

_THREAD: Final = "check-"
_BROKEN: Final = "This is a mistake in Trilby: please report it, with all that is printed here."
_HANGS: Final = "What it waits for hangs, such as a name server, a disk or a driver: look there, and try again."


@dataclass(frozen=True)
class Check:
    """What is to be looked at.

    Attributes:
        name: what it is, for people.
        within_s: seconds after which it is given up.
        look: looks, and tells what it finds; runs on a thread of its own.
        about: the link that it is about; empty: this machine.
    """

    name: str
    within_s: float
    look: Callable[[Say], object]
    about: str = ""


def run(check: Check, say: Say) -> None:
    """Tell all that a check finds. What does not end in time, or breaks, is a finding too, and nothing is raised."""
    found: SimpleQueue[Finding | None] = SimpleQueue()

    def look() -> None:
        try:
            check.look(found.put)
        except (Exception, SystemExit) as error:  # Its text may be anybody's; which kind it is says enough.
            found.put(_failed(check, f"this could not be looked at ({type(error).__name__})", _BROKEN))
        finally:
            found.put(None)

    thread = threading.Thread(target=look, name=_THREAD + check.name, daemon=True)
    thread.start()
    deadline = monotonic() + check.within_s
    while True:
        try:
            finding = found.get(timeout=max(0.0, deadline - monotonic()))
        except Empty:
            say(_failed(check, f"no answer within {check.within_s:g} s", _HANGS))
            return
        if finding is None:
            thread.join()
            return
        say(finding)


def hanging() -> bool:
    """Whether a check that was given up goes on all the same."""
    return any(each.name.startswith(_THREAD) for each in threading.enumerate())


def _failed(check: Check, seen: str, todo: str) -> Finding:
    return Finding(check.name, "fail", seen, todo, check.about)
