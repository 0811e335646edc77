"""Sets of heads as attention wants them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_model.pruning.kept import KeptHeads, count_pruned, runs


@st.composite
def kept_heads(draw: st.DrawFn) -> KeptHeads:
    groups, group = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    heads = draw(st.sets(st.integers(0, groups * group - 1)))
    return KeptHeads(tuple(sorted(heads)), groups * group, group)


@given(kept_heads())
def test_every_kv_head_gets_as_many_queries_and_each_kept_one_stands_once(kept: KeptHeads) -> None:
    """Query i of those handed to attention reads the KV head of the head that it is, and `places` finds each again."""
    handed = [kept.heads[number] for number in kept.filled]
    assert len(handed) == len(kept.groups) * kept.widest
    assert [head // kept.group for head in handed] == [group for group in kept.groups for _ in range(kept.widest)]
    assert [handed[place] for place in kept.places] == list(kept.heads)
    assert kept.is_even == (handed == list(kept.heads))
    assert sorted((*kept.heads, *kept.pruned)) == list(range(kept.total))
    assert count_pruned([kept, kept]) == 2 * len(kept.pruned)
    assert [number for each in runs(kept.heads) for number in each] == list(kept.heads)


def test_sets_that_are_none_are_refused() -> None:
    """Unknown, doubled and unsorted heads, and groups that do not divide them."""
    for heads, total, group in (((4,), 4, 2), ((1, 1), 4, 2), ((2, 1), 4, 2), ((-1,), 4, 2), ((0,), 4, 3)):
        with pytest.raises(ValueError, match="ascending heads"):
            KeptHeads(heads, total, group)


def test_groups_are_all_their_heads() -> None:
    """KV groups 2 and 0, of three heads each."""
    assert KeptHeads.of_groups((2, 0), 9, 3).heads == (0, 1, 2, 6, 7, 8)
