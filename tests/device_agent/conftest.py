"""What the tests of the device agent share."""

from __future__ import annotations

import pytest
import torch
from checkpoints import DEMO

from device_agent.speculative.drafters import Drafters
from drafting.drafter import Drafter
from drafting.lookup import LookupDrafter
from drafting.small_model import SmallModelDrafter
from split_model.checkpoint import Checkpoint


@pytest.fixture(autouse=True)
def dialled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for the pause before dialling again."""
    monkeypatch.setattr("device_agent.redial.delay_s", lambda attempt, random: 0.01)


@pytest.fixture(scope="session")
def drafters() -> Drafters:
    """Nothing, suffixes, and the model itself, of which all is accepted."""
    by_name: dict[str, Drafter | None] = {
        "none": None,
        "lookup": LookupDrafter(),
        "itself": SmallModelDrafter.load(str(DEMO), DEMO, Checkpoint.open(DEMO).spec, torch.float32),
    }
    return Drafters(by_name, 0)
