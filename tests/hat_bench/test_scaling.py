"""Links are scaled so that a row's upload is the same share of a step as the paper's; what is not kept is told."""

from __future__ import annotations

import math

import pytest
from bench.hat.scaling import CHUNK_ROWS, PAPER, Costs, Reference, scaled_link
from hypothesis import given
from hypothesis import strategies as st

costs = st.builds(
    lambda row_bytes, base_s, row_s: Costs(row_bytes, base_s, base_s + CHUNK_ROWS * row_s),
    st.integers(64, 1 << 16),
    st.floats(1e-4, 1.0),
    st.floats(1e-7, 1e-2),
)
references = st.builds(Reference, costs, st.floats(1e4, 1e9), st.floats(1e4, 1e9))


@given(references, costs)
def test_the_link_keeps_the_papers_share(paper: Reference, ours: Costs) -> None:
    """A row's upload takes the same share of a step with a chunk; down is to up as in the paper."""
    link = scaled_link(paper, ours)
    theirs = paper.costs.row_bytes / paper.up_bytes_s / paper.costs.chunk_s
    assert math.isclose(ours.row_bytes / link.up_bytes_s / ours.chunk_s, theirs, rel_tol=1e-9)
    assert math.isclose(link.down_bytes_s / link.up_bytes_s, paper.down_bytes_s / paper.up_bytes_s, rel_tol=1e-9)


def test_the_papers_models() -> None:
    """Vicuna-7B and 13B: float16 rows, a prompt of 2048 rows in 0.28 s on the first, links of section 4.1."""
    small, large = PAPER["specbench"], PAPER["cnndm"]
    assert (small.costs.row_bytes, large.costs.row_bytes) == (8192, 10240)
    assert small.costs.row_s * 2048 == pytest.approx(0.28)
    assert 1.5 < large.costs.row_s / small.costs.row_s < 2.5
    for each in PAPER.values():
        assert 5e6 < each.up_bytes_s < 10e6 < each.down_bytes_s < 15e6
