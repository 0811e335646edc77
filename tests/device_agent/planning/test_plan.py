"""Plans that hand out everything once, and those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_plans import TINY, TINY_CAUSAL

from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Layer, Sharded, Whole

GROUPS, COLUMNS, ROWS = (1, 3), (20, 28), (1.0, 2.0)


def plan(layer: Layer) -> GroupPlan:
    return GroupPlan("test", ("a", "b"), "a", (Whole(0), Whole(1), layer))


@pytest.mark.parametrize(
    "layer",
    [
        Whole(1),
        Sharded(GROUPS, COLUMNS),
        Sharded((0, 4), (48, 0)),
        Hybrid(GROUPS, COLUMNS, ROWS),
        Hybrid(GROUPS, COLUMNS, (0.0, 1.0), mlp_by_rows=True),
        ByRows(ROWS, Whole(0)),
        ByRows(ROWS, Sharded(GROUPS, COLUMNS), reordered=(True, False)),
        ByRows(ROWS, Whole(1), keys_values=True),
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
        (Sharded((1, 2), COLUMNS), "groups"),
        (Sharded((-1, 5), COLUMNS), "groups"),
        (Sharded((4,), COLUMNS), "groups"),
        (Sharded(GROUPS, (20, 29)), "columns"),
        (Hybrid(GROUPS, COLUMNS, (0.0, 0.0)), "no shares"),
        (Hybrid(GROUPS, COLUMNS, (1.0,)), "no shares"),
        (ByRows((1.0, -1.0), Whole(0)), "no shares"),
        (ByRows(ROWS, Sharded((1, 2), COLUMNS)), "groups"),
        (ByRows(ROWS, Whole(0), reordered=(True,)), "1 orders"),
        (ByRows(ROWS, Whole(0), keys_values=True, reordered=(True, False)), "no keys"),
        (ByRows(ROWS, Whole(1), prefix=True), "sees later ones"),
        (ByRows(ROWS, Whole(0), pieces=0), "0 pieces"),
        (ByRows(ROWS, Whole(0), pieces=2, overlap=False), "2 pieces"),
        (ByRows(ROWS, Whole(0), few_rows=-1), "cannot be few"),
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
    plan(ByRows(ROWS, Whole(1), prefix=True)).check(TINY_CAUSAL)
    with pytest.raises(ValueError, match="only the last member"):
        plan(ByRows(ROWS, Whole(0), prefix=True)).check(TINY_CAUSAL)
    with pytest.raises(ValueError, match="no keys to turn"):
        plan(ByRows(ROWS, Whole(0), reordered=(True, False))).check(replace(TINY, rotary=True))
