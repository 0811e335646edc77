"""Clocks of processes that jump while they run, by the library of Debian's package faketime.

    with jumping(folder / "clock") as clock:
        ...  # start a process with clock.environment
        clock.set(-3600)

How time passes (``time.monotonic``) stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

NEEDS: Final = "needs faketime (Debian: apt-get install faketime)"


class Clock:
    """What some processes see as the time of day.

    Attributes:
        environment: what they are started with.
    """

    SEEN_WITHIN_S: Final = 1.0
    """A process looks so often at what its clock is."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": f"{self.SEEN_WITHIN_S:g}",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.set(0.0)

    def set(self, offset_s: float) -> None:
        """So many seconds away from what is right, from about now on."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset_s:+.0f}\n")
        new.rename(self._file)


def library() -> Path | None:
    """Where faketime's library is, if it is here."""
    found = sorted(Path("/usr").glob("lib*/**/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


@contextmanager
def jumping(file: Path) -> Iterator[Clock]:
    """A clock of its own, kept in a file. Skips the test where faketime is not installed."""
    found = library()
    if found is None:
        pytest.skip(NEEDS)
    yield Clock(found, file)
