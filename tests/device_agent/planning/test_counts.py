"""Numbers of layers by scheme."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.counts import LayerCost, best_counts

LAYERS = 7


def costs(members: int) -> st.SearchStrategy[LayerCost]:
    held = st.lists(st.integers(0, 20).map(float), min_size=members, max_size=members).map(tuple)
    return st.builds(LayerCost, st.integers(0, 20).map(float), held)


@given(st.data(), st.integers(1, 3))
def test_the_best_that_fits_is_found(data: st.DataObject, members: int) -> None:
    """As trying all of them finds it; and none where none fits."""
    schemes = [data.draw(costs(members)) for _ in range(3)]
    room = data.draw(st.lists(st.integers(0, 150).map(float), min_size=members, max_size=members))
    fitting = {}
    for twos in range(LAYERS + 1):
        for threes in range(LAYERS + 1 - twos):
            amounts = (LAYERS - twos - threes, twos, threes)
            if all(
                sum(amount * scheme.held[at] for amount, scheme in zip(amounts, schemes, strict=True)) <= room[at]
                for at in range(members)
            ):
                fitting[twos, threes] = sum(a * scheme.seconds for a, scheme in zip(amounts, schemes, strict=True))
    found = best_counts(LAYERS, schemes[0], schemes[1], schemes[2], room)
    if found is None:
        assert not fitting
    else:
        assert fitting[found] == min(fitting.values())
