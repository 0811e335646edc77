"""Options as a tree of tokens: each beginning is run once, and the chances are those of what the answer begins with."""

from __future__ import annotations

from math import exp, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_agent.answering.options import OptionTree

OPTIONS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=2, max_size=8, unique=True)


def said(row: int, token: int) -> float:
    """How likely a made-up model of four tokens says one behind a row."""
    weights = [1 + (7 * row + 3 * each) % 5 for each in range(4)]
    return log(weights[token] / sum(weights))


@given(OPTIONS)
def test_every_beginning_runs_once_where_it_belongs(options: list[tuple[int, ...]]) -> None:
    """The legs, one behind the other, make the nodes in their order; each begins at a depth that was reached."""
    tree, line, found = OptionTree(options), list[int](), []
    for leg in tree.legs:
        assert leg.depth <= len(line)
        del line[leg.depth :]
        for token in leg.tokens:
            line.append(token)
            found.append(tuple(line))
    assert found == tree.nodes
    assert set(found) == {each[:end] for each in options for end in range(1, len(each))}


@given(OPTIONS)
def test_the_chances_are_of_what_an_answer_begins_with(options: list[tuple[int, ...]]) -> None:
    """Counted over all answers of four tokens: each belongs to the longest option that it begins with, or to none."""
    tree = OptionTree(options)
    rows = {(): 0} | {node: at for at, node in enumerate(tree.nodes, 1)}
    weights = dict.fromkeys(options, 0.0)
    answers = [(a, b, c, d) for a in range(4) for b in range(4) for c in range(4) for d in range(4)]
    for answer in answers:
        known = [end for end in range(4) if answer[:end] in rows]
        # Behind what no option goes on from, all tokens are alike.
        chance = exp(sum(said(rows[answer[:at]], answer[at]) if at in known else log(1 / 4) for at in range(4)))
        longest = max((each for each in options if answer[: len(each)] == each), key=len, default=None)
        if longest is not None:
            weights[longest] += chance
    chances = tree.chances([said(*each) for each in tree.asked])
    assert chances == pytest.approx([each / sum(weights.values()) for each in weights.values()])


def test_options_that_are_all_but_impossible_still_have_chances() -> None:
    """Their sum is far below what a number can be; what is no number has none."""
    tree = OptionTree([(0,) * 60, (1,)])
    chances = tree.chances([-40.0 if token == 0 else -2399.0 for _, token in tree.asked])
    assert chances == pytest.approx([1 / (1 + exp(1)), exp(1) / (1 + exp(1))])
    assert tree.chances([float("nan")] * 61) is None
    assert tree.chances([float("-inf")] * 61) is None
