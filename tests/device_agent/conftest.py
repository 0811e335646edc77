"""What the tests of the device agent share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def dialled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for the pause before dialling again."""
    monkeypatch.setattr("device_agent.redial.delay_s", lambda attempt, random: 0.01)
