"""What a test of a fault has seen, for the table of faults: noted by the test, taken by whoever writes records.

    note("plain", "kill -9 of the cloud that serves", "the stream went on", compared=160, recovered_s=0.4)

Nobody has to take notes: a test that runs by itself makes them for nobody.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

MOST: Final = 1000
"""Notes that are kept where nobody takes them."""


@dataclass(frozen=True)
class Note:
    """One fault in one setting.

    Attributes:
        setting: in which, as ``rows`` calls it; "" where that is nothing to the fault.
        injected: what was done, by what means.
        saw: what the client was told.
        compared, wrong: tokens that were compared with transformers', and those of them that differ.
        lost: tokens or requests that never came though nobody was told why.
        detected_s: from the fault until the process that has to mend it knew; None: not measured.
        recovered_s: from there on the longest time without text; None: not measured.
    """

    setting: str
    injected: str
    saw: str
    compared: int = 0
    wrong: int = 0
    lost: int = 0
    detected_s: float | None = None
    recovered_s: float | None = None


_notes: deque[Note] = deque(maxlen=MOST)


def note(
    setting: str,
    injected: str,
    saw: str,
    *,
    compared: int = 0,
    wrong: int = 0,
    lost: int = 0,
    detected_s: float | None = None,
    recovered_s: float | None = None,
) -> None:
    """Make a note; see ``Note``."""
    _notes.append(Note(setting, injected, saw, compared, wrong, lost, detected_s, recovered_s))


def taken() -> list[Note]:
    """All notes since they were taken last."""
    found = list(_notes)
    _notes.clear()
    return found
