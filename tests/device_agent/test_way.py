"""What drafting teaches: by tenant where it is about texts, for all where it is about the machines."""

from __future__ import annotations

import pytest

from device_agent.speculative import way
from device_agent.speculative.drafters import Drafters
from device_agent.speculative.way import DraftingWays
from drafting.drafter import Drafter
from drafting.hybrid import HybridDrafter
from drafting.lookup import LookupDrafter
from service.draft_settings import DraftSettings


def ways_of(name: str) -> DraftingWays:
    """Ways with one drafter."""
    drafter: Drafter = HybridDrafter(LookupDrafter(), LookupDrafter()) if name == "hybrid" else LookupDrafter()
    return DraftingWays(Drafters({name: drafter}, 0), DraftSettings())


@pytest.mark.parametrize("name", ["lookup", "hybrid"])
def test_what_texts_teach_is_the_tenants_own(name: str) -> None:
    """Whatever one tenant's drafts come to, another's are as long, and as sure, as on a device that nobody used."""
    used, fresh = ways_of(name), ways_of(name)
    mine = used.get("", "a")
    for _ in range(400):
        mine.calibration.seen("lookup", False, 0.9, False)
        mine.length.seen(8, 0, 1.0)
        if isinstance(mine.drafter, HybridDrafter):
            mine.drafter._calibration.seen("lookup", False, 0.9, False)
    other, alone = used.get("", "b"), fresh.get("", "b")
    assert not any(mine.length.begins() for _ in range(8)) and all(other.length.begins() for _ in range(8))
    assert mine.calibration.chance("lookup", False, 0.9) < 0.1
    assert other.calibration.chance("lookup", False, 0.9) == alone.calibration.chance("lookup", False, 0.9) > 0.8
    if isinstance(other.drafter, HybridDrafter):
        assert isinstance(mine.drafter, HybridDrafter) and other.drafter is not mine.drafter
        assert other.drafter._model is mine.drafter._model
        assert other.drafter._calibration.chance("lookup", False, 0.9) > 0.8
    assert used.get("", "a") is mine, "what a tenant's own have taught stays"


def test_what_answers_in_a_form_said_is_the_tenants_own() -> None:
    """Nobody else's drafts tell of it."""
    ways = ways_of("lookup")
    ways.get("", "a").earlier.add(b"form", [4, 5])
    assert len(ways.get("", "a").earlier.of(b"form")) and not len(ways.get("", "b").earlier.of(b"form"))


def test_what_rounds_cost_is_known_to_all() -> None:
    """It is about the machines and the way between them."""
    ways = ways_of("lookup")
    for _ in range(50):
        ways.get("", "a").costs.verified(3, 0.4)
    assert ways.get("", "b").costs is ways.get("", "a").costs and ways.get("", "b").costs.round_s > 0.05


def test_lessons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many tenants, those who were there last are remembered."""
    monkeypatch.setattr(way, "MAX_WAYS", 3)
    ways = ways_of("lookup")
    first = {tenant: ways.get("", tenant) for tenant in "abc"}
    ways.get("", "a")
    ways.get("", "d")
    assert len(ways._ways) == 3
    assert ways.get("", "a") is first["a"] and ways.get("", "c") is first["c"]
    assert ways.get("", "b") is not first["b"]
