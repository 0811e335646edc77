"""Plans that hand out everything once, and those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from edge_groups import TINY, TINY_CAUSAL

from device_agent.edge.plan import GroupPlan, Hybrid, Layer, Rows, Tensor, Whole

GROUPS, COLUMNS, ROWS = (1, 3), (20, 28), (1.0, 2.0)


def plan(layer: Layer) -> GroupPlan:
    return GroupPlan("test", ("a", "b"), "a", (Whole(0), Whole(1), layer))


@pytest.mark.parametrize(
    "layer",
    [
        Whole(1),
        Tensor(GROUPS, COLUMNS),
        Tensor((0, 4), (48, 0)),
        Hybrid(GROUPS, COLUMNS, ROWS),
        Hybrid(GROUPS, COLUMNS, (0.0, 1.0), mlp_by_rows=True),
        Rows(ROWS, Whole(0)),
        Rows(ROWS, Tensor(GROUPS, COLUMNS), reordered=(True, False)),
        Rows(ROWS, Whole(1), keys_values=True),
    ],
)
def test_what_hands_out_everything_once_is_a_plan(layer: Layer) -> None:
    """Of every kind; a part may be empty."""
    plan(layer).check(TINY)


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (Whole(2), "no member 2"),
        (Whole(-1), "no member -1"),
        (Tensor((1, 2), COLUMNS), "groups"),
        (Tensor((-1, 5), COLUMNS), "groups"),
        (Tensor((4,), COLUMNS), "groups"),
        (Tensor(GROUPS, (20, 29)), "columns"),
        (Hybrid(GROUPS, COLUMNS, (0.0, 0.0)), "no shares"),
        (Hybrid(GROUPS, COLUMNS, (1.0,)), "no shares"),
        (Rows((1.0, -1.0), Whole(0)), "no shares"),
        (Rows(ROWS, Tensor((1, 2), COLUMNS)), "groups"),
        (Rows(ROWS, Whole(0), reordered=(True,)), "1 orders"),
        (Rows(ROWS, Whole(0), keys_values=True, reordered=(True, False)), "no keys"),
        (Rows(ROWS, Whole(1), prefix=True), "sees later ones"),
    ],
)
def test_what_does_not_is_refused(layer: Layer, says: str) -> None:
    """By the layer's number, and what is wrong with it."""
    with pytest.raises(ValueError, match=f"layer 2: .*{says}"):
        plan(layer).check(TINY)


def test_whole_plans_are_looked_at_too() -> None:
    """Its members and its number of layers; who goes on from a prefix; what rotary positions do not allow."""
    good = plan(Whole(0))
    for bad, says in (
        (replace(good, members=("a", "a")), "different devices"),
        (replace(good, members=()), "different devices"),
        (replace(good, layers=(Whole(0),)), "1 layers, the model 3"),
    ):
        with pytest.raises(ValueError, match=says):
            bad.check(TINY)
    plan(Rows(ROWS, Whole(1), prefix=True)).check(TINY_CAUSAL)
    with pytest.raises(ValueError, match="only the last member"):
        plan(Rows(ROWS, Whole(0), prefix=True)).check(TINY_CAUSAL)
    with pytest.raises(ValueError, match="no keys to turn"):
        plan(Rows(ROWS, Whole(0), reordered=(True, False))).check(replace(TINY, rotary=True))
