"""Where lending pays, and heads by time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from group_plans import BERT_LARGE, LLAMA_8B, OPT_1_3B, layer_of, profile, task
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.planning.forms import Lent
from device_agent.planning.head_times import head_times
from device_agent.planning.lending_map import least_rows, lending_map, nominal_profile, pays_from
from device_agent.planning.lending_search import LendingSearch
from device_agent.planning.task import Work

OPT = replace(layer_of(OPT_1_3B, 1), dtype_bytes=2)
BERT = replace(layer_of(BERT_LARGE, 1), dtype_bytes=2)


def test_lending_a_head_pays_where_the_papers_ratio_says_so_by_hand() -> None:
    """2 f / (B (H - 1)): 17,000 tokens at 13 TFLOPS and 400 Mb/s with 32 heads, of rows that see all."""
    ratio, all_see_all = 400e6 / 8 / 13e12, replace(OPT, causal=False)
    assert least_rows(all_see_all, ratio, published=True) == pytest.approx(16_774, rel=1e-3)
    assert least_rows(OPT, ratio, published=True) == pytest.approx(2 * 16_774, rel=1e-3)
    assert least_rows(all_see_all, ratio) == pytest.approx(16_774 - 2 * 2048, rel=1e-3)
    assert least_rows(OPT, 1.0) == 0


@pytest.mark.parametrize("of", [OPT, BERT, replace(layer_of(LLAMA_8B, 1), kv_heads=8)], ids=["opt", "bert", "llama"])
@pytest.mark.parametrize("bytes_per_flop", [2e-6, 1e-5])
def test_one_head_pays_from_there_on_the_timeline_too(of: object, bytes_per_flop: float) -> None:
    """A tenth fewer rows, and one lent group makes a layer of two equal devices slower; a tenth more, faster."""
    assert isinstance(of, type(OPT))
    rows = least_rows(of, bytes_per_flop)
    measured = nominal_profile(of, [1e12] * 2, bytes_per_flop * 1e12)
    for count, pays in ((int(rows * 0.9), False), (int(rows * 1.1) + 2, True)):
        search = LendingSearch(task(of, measured, Work(count, 0, count)))
        lent = Lent(0, (of.kv_heads - 1, 1), (of.intermediate, 0))
        assert (search.seconds(lent) < search.whole_s(0)) == pays


def test_the_map_goes_from_neither_to_projections_and_attention() -> None:
    """Long texts or fast links pay, short ones on slow links do not; where projections can be lent they bring more, and
    neither brings more than there are devices."""
    table = lending_map(OPT, [128, 2048], [4e-6, 4e-4, 4e-2])
    assert [[point.best for point in row] for row in table] == [
        ["neither", "neither"],
        ["projections", "projections"],
        ["projections", "projections"],
    ]
    assert all(1 <= gain <= 2 for row in table for point in row for gain in (point.attention, point.projections))
    assert table[2][1].attention > table[2][0].attention  # The attention core's share grows with the text.


def test_prompts_on_which_lending_pays_are_found_by_profile() -> None:
    """On fast links short ones, on slow ones none that are tried."""
    fast = task(OPT, profile(OPT, [1e9, 1e9], 1e9, rtt_s=1e-6), Work(64))
    slow = task(OPT, profile(OPT, [1e9, 1e9], 1e2), Work(64))
    found = pays_from(fast, 0)
    assert all(rows is not None for rows in found.values())
    assert pays_from(slow, 0) == {"attention": None, "projections": None, "columns": None}


@given(st.integers(1, 31), st.integers(2, 300), st.integers(0, 100), st.integers(0, 1))
@settings(max_examples=20, deadline=None)
def test_times_of_heads_are_those_of_the_timeline(own: int, rows: int, cached: int, home: int) -> None:
    """Of two members exactly: with all heads placed the layer takes what it takes when played."""
    asked = task(OPT, profile(OPT, [1e9, 3e9], 1e8), Work(rows, 0, rows))
    groups = (own, 32 - own)
    played = LendingSearch(asked).seconds(Lent(home, groups, tuple(8192 * (at == home) for at in range(2)), True))
    assert head_times(asked, home).seconds(groups) == pytest.approx(played)
    later = head_times(asked, home, rows, cached)
    assert later.seconds(groups) >= head_times(asked, home).seconds(groups) * (1 - 1e-9)
    assert later.floor_s == later.rest_s == head_times(asked, home).floor_s
