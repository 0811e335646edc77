"""What a seed is judged by, without its processes."""

from __future__ import annotations

from typing import Any, cast

import pytest
from faults import chaos_run
from faults.chaos_plan import SPLIT_SITE, Ask, Event, Plan
from faults.chaos_run import Failed, run_seed
from faults.chaos_sites import Broken
from streamed import Answer


class Here:
    """A site of which only what is named ``dead`` cannot be killed, and what is named ``gone`` is gone already."""

    base = ""

    def kill(self, *names: str) -> None:
        """kill -9."""
        if "dead" in names:
            raise OSError("no way")
        if "gone" in names:
            raise ProcessLookupError

    def revive(self) -> None:
        """Nothing is dead."""

    def mend(self) -> float:
        """All is whole."""
        return 0.0


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Broken:
    """A site where everything is answered right and at once, and faketime is not installed."""
    monkeypatch.setattr(chaos_run, "wanted", lambda *about: "a")
    answer = Answer(pieces=["a"], times=[1.0], tokens=1, done=True)
    monkeypatch.setattr(chaos_run, "stream_answer", lambda *about: answer)
    monkeypatch.setattr(chaos_run, "_after", lambda *about: None)
    return Broken(cast(Any, Here()), cast(Any, None), {}, dict, lambda: 0, lambda: 0)


def plan(*kinds: str) -> Plan:
    """One client, and these events one after the other."""
    events = tuple(Event(0.01 * number, kind, 0.01) for number, kind in enumerate(kinds))
    return Plan(0, SPLIT_SITE, (Ask(0.0, 0, 12, False, False, 0),), events)


def test_only_what_happened_counts(broken: Broken) -> None:
    """Not who was dead already, and no clock where none can be set."""
    happened: list[str] = []
    assert run_seed(broken, plan("kill gone", "clock", "kill cloud"), happened)["answers"] == 1
    assert happened == ["kill cloud"]


def test_a_seed_fails_where_something_could_not_be_broken(broken: Broken) -> None:
    """However right its answers are: what was to come behind it did not happen."""
    happened: list[str] = []
    with pytest.raises(Failed, match="no way") as failed:
        run_seed(broken, plan("kill cloud", "kill dead", "kill standby"), happened)
    assert happened == ["kill cloud"] and failed.value.seen["answers"] == 1
