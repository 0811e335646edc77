"""Where a text only says the same again, and what is left of it then."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting.distill.loops import LEAST_REPEATED, LONGEST_PERIOD, loop_begin, without_loops
from drafting.distill.text import Document


@pytest.mark.parametrize("period", [1, 2, 7, 16, 50, LONGEST_PERIOD])
@pytest.mark.parametrize("before", [0, 1, 30])
def test_loop_is_found_where_it_begins(period: int, before: int) -> None:
    """What is said three times, and at least some tokens of it, is a loop; it is said once and the rest is cut."""
    head, said = list(range(1000, 1000 + before)), list(range(period))
    times = 2 + -(-LEAST_REPEATED // period)
    assert loop_begin(head + said * times) == before + period
    assert loop_begin(head + said * times + [7000, 7001]) == before + period  # also where it ends again


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [5],
        [5, 5, 5, 5],  # "no, no, no, no"
        list(range(30)) * 2,  # a refrain
        list(range(LONGEST_PERIOD + 1)) * 4,  # longer than anything that small models say over and over
        list(range(400)),
    ],
)
def test_what_is_no_loop(ids: list[int]) -> None:
    """Few repetitions of little, a refrain, and text that never says the same stay whole."""
    assert loop_begin(ids) is None


@given(st.lists(st.integers(0, 3), max_size=120))
def test_begin_is_right_wherever_it_says_one(ids: list[int]) -> None:
    """From the place it names on, for as long as a loop needs, some period goes on; before it there was no loop."""
    begin = loop_begin(ids)
    if begin is None:
        return
    assert any(
        begin >= period
        and all(
            at < len(ids) and ids[at] == ids[at - period]
            for at in range(begin, begin + max(2 * period, LEAST_REPEATED))
        )
        for period in range(1, LONGEST_PERIOD + 1)
    )
    assert loop_begin(ids[: begin + LEAST_REPEATED - 1]) is None


def test_documents_without_their_loops() -> None:
    """Only the last answer is cut, what is said again stays in it once, and the share of the rest is told."""
    prompt = [1] * 40  # A loop in a prompt is the user's own.

    def document(answer: list[int]) -> Document:
        ids = np.array(prompt + answer, dtype=np.int32)
        return Document(ids, np.arange(len(ids)) >= len(prompt))

    loop, plain = document([2, 3, 4] * 20), document([5, 6, 7])
    kept, loops = without_loops([loop, plain])
    assert [each.ids[each.prompt :].tolist() for each in kept] == [[2, 3, 4], [5, 6, 7]]
    assert all(each.prompt == 40 and len(each.own) == len(each.ids) for each in kept)
    assert (loops.cut, loops.said) == (57, 63) and loops.share == 57 / 63
