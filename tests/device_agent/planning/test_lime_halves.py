"""LIME's plans of a model with an encoder: they fit, and of its decoder nothing is read that need not be."""

from __future__ import annotations

import pytest
from group_plans import T5_LARGE, profile, task
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.memory import DoesNotFit
from device_agent.planning.modes import plan_for
from device_agent.planning.task import Task, Work

TURN = T5_LARGE.layers - T5_LARGE.cross_layers
WEIGHTS = 4 * sum(
    T5_LARGE.layer_elements(layer, range(T5_LARGE.kv_heads), range(T5_LARGE.intermediate))
    for layer in range(T5_LARGE.layers)
)
ENDS = 4 * (T5_LARGE.embedding_elements + T5_LARGE.end_elements)


def asked(shares: list[float], disks: float = 1e9) -> Task:
    """For devices with memory for such shares of all layers, the portal's ends beside its own."""
    memory = [share * WEIGHTS + 6e7 + (ENDS if number == 0 else 0) for number, share in enumerate(shares)]
    return task(T5_LARGE, profile(T5_LARGE, [1e9] * len(shares), 1e8, memory=memory, disks=disks), Work(64, 16))


@given(st.lists(st.floats(0.05, 0.9), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_a_plan_fits_or_it_is_said_who_lacks_how_much(shares: list[float]) -> None:
    """Whatever devices there are; who reads of its decoder reads all that it has of the encoder, and a step that reads
    takes at least as long as its disk."""
    of = asked(shares)
    try:
        plan = plan_for("lime", of)
    except DoesNotFit as error:
        assert error.lacks and all(lack.needed > lack.budget for lack in error.lacks)
        return
    plan.check(T5_LARGE)
    assert not of.lacks(plan)
    for member, units in enumerate(plan.streamed):
        writing = [unit for unit in units if unit.layer >= TURN]
        reading = [layer for layer, whole in enumerate(plan.layers[:TURN]) if whole.member == member]  # type: ignore[union-attr]
        assert not writing or len(units) - len(writing) == 2 * len(reading)
        assert of.step(plan).seconds >= sum(plan.unit_bytes(T5_LARGE, member, unit) for unit in writing) / 1e9


def test_the_encoder_makes_room() -> None:
    """Memory for three quarters of all layers: of the decoder nothing is read, and where all fit nothing at all."""
    plan = plan_for("lime", asked([0.4, 0.35]))
    assert plan.streams and all(unit.layer < TURN for units in plan.streamed for unit in units)
    assert not plan_for("lime", asked([0.6, 0.55])).streams


def test_disks_that_nobody_has_measured_are_not_read() -> None:
    """Then it is said who lacks what."""
    with pytest.raises(DoesNotFit, match=r"^lime does not fit: (a|b) lacks"):
        plan_for("lime", asked([0.2, 0.2], 0.0))
