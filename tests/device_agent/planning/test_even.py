"""The plain plan of each mode."""

from __future__ import annotations

import pytest
from group_plans import TINY_CAUSAL
from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.even import plan_evenly
from service.modes import MODES

GROUPS = [name for name, mode in MODES.items() if mode.group]


@given(st.sampled_from(GROUPS), st.integers(1, 8))
def test_every_mode_has_one_for_any_number_of_devices(mode: str, count: int) -> None:
    """All is handed out once, also to more devices than there are heads."""
    members = [f"device-{number}" for number in range(count)]
    plan = plan_evenly(mode, TINY_CAUSAL, members, members[0])
    plan.check(TINY_CAUSAL)
    assert (plan.mode, plan.members, plan.portal) == (mode, tuple(members), "device-0")


def test_no_other_mode() -> None:
    """It is named, and so are those that there are."""
    with pytest.raises(ValueError, match="'hat' is not one of voltage, galaxy"):
        plan_evenly("hat", TINY_CAUSAL, ["a"], "a")
