"""What a group has tried of a plan, kept beside the profiles: once for each plan."""

from __future__ import annotations

from pathlib import Path

import msgspec

from device_agent.planning.describe import seconds_text
from device_agent.planning.trials import Manner, Trial
from device_agent.profiling.kept_profiles import folder, hashed, write_whole

MAX_BYTES = 64 << 10


class Tried(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A trial's end.

    Attributes:
        of: of which plan.
        rows: of the text that was run.
        words, seconds: what each manner is, and the median of its runs, of a part of the layers.
        chosen: which of them is kept.
        manner: the same as it is run.
    """

    of: str
    rows: int
    words: tuple[str, ...]
    seconds: tuple[float, ...]
    chosen: int
    manner: Manner

    def __post_init__(self) -> None:
        if len(self.words) != len(self.seconds) or not 0 <= self.chosen < len(self.words):
            raise ValueError("it says of no manner that it was chosen")

    def __str__(self) -> str:
        found = [
            f"{words} {seconds_text(seconds)}{' (taken)' * (at == self.chosen)}"
            for at, (words, seconds) in enumerate(zip(self.words, self.seconds, strict=True))
        ]
        return f"tried with {self.rows} rows: {', '.join(found)}"


def name_of(plan: bytes, trial: Trial) -> str:
    """Of a trial of a plan, as members are told it."""
    return hashed(msgspec.json.encode((plan.hex(), trial.words, trial.rows)))


def tried_before(name: str) -> Tried | None:
    """None where that was not tried, or nobody can read it any more."""
    try:
        with open(_path(name), "rb") as file:
            found = msgspec.json.decode(file.read(MAX_BYTES), type=Tried)
    except (OSError, ValueError):
        return None
    return found if found.of == name else None


def keep_tried(tried: Tried) -> None:
    """Raises OSError."""
    write_whole(_path(tried.of), msgspec.json.encode(tried))


def _path(name: str) -> Path:
    return folder() / f"trial-{name}.json"
