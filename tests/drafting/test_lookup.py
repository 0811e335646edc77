"""Drafting from what the text itself has said."""

from __future__ import annotations

import random

import pytest
import torch
from drafted_nodes import extend
from drafter_conformance import check_drafter
from hypothesis import given
from hypothesis import strategies as st

from drafting.drafter import Guess
from drafting.lookup import CANDIDATES, LookupDrafter, LookupSession
from split_model.sampling import NOBODY

TEXTS = st.lists(st.integers(0, 3), max_size=40)
ROOM = 1000


def test_it_conforms() -> None:
    """To what every drafter does."""
    check_drafter(LookupDrafter(), 4)


def rows(tokens: list[int]) -> torch.Tensor:
    """Shallow rows, which are not looked at."""
    return torch.zeros(len(tokens), 4)


def followed(text: list[int]) -> LookupSession:
    """A session that has observed ``text``."""
    session = LookupDrafter().open(ROOM)
    session.observe(text, rows(text), None)
    return session


def weight(text: list[int], token: int) -> float:
    """Of ``token`` after ``text``."""
    guess = followed(text).guess()
    assert guess is not None
    return dict(guess.ranked)[token]


def draft(session: LookupSession, length: int) -> list[int]:
    """A chain of the likeliest tokens, at most ``length``."""
    guess, drafted = session.guess(), list[int]()
    while guess is not None and len(drafted) < length:
        drafted.append(guess.ranked[0][0])
        [guess] = extend(session, [len(drafted) - 2], drafted[-1:], rows([0]))
    return drafted


def test_what_it_is() -> None:
    """It adds no parameters, and what it sends is a chain."""
    drafter = LookupDrafter()
    assert (drafter.name, drafter.parameters, drafter.tree_nodes) == ("lookup", 0, 0)


def test_copying() -> None:
    """A passage that is said again is drafted to its end, and ever more surely."""
    passage = random.Random(1).sample(range(100), 30)
    session = followed([*passage, 200, 201, *passage[:3]])
    assert draft(session, 20) == passage[3:23]
    chances = [weight([*passage, 200, 201, *passage[:length]], passage[length]) for length in range(1, 30)]
    assert chances == sorted(chances)
    assert chances[0] < 0.5 < 0.85 < chances[-1]


def test_loop() -> None:
    """A text that runs in circles is drafted round and round, far beyond its own length."""
    assert draft(followed([1, 2, 3, 1, 2, 3, 1]), 50) == ([2, 3, 1] * 20)[:50]


def test_nothing_to_say() -> None:
    """No guess without a text, after a token that is new, and where the last one was never followed by anything."""
    assert followed([]).guess() is None
    assert followed([1, 2, 3]).guess() is None
    session = followed([1, 2, 1])
    assert session.guess() is not None
    assert extend(session, [-1, 0], [9, 1], rows([9, 1]))[0] is None


def test_agreement() -> None:
    """The more often a token followed, and the less often another did, the likelier it is."""
    once, twice, torn = [1, 2, 8, 1, 2], [1, 2, 8, 1, 2, 8, 1, 2], [1, 2, 8, 1, 2, 9, 1, 2]
    assert weight(torn, 8) < weight(once, 8) < weight(twice, 8)


def test_most_recent() -> None:
    """Of tokens that followed equally often the last one is likelier, and the one that followed most comes first."""
    guess = followed([1, 5, 1, 6, 1, 7, 1]).guess()
    assert guess is not None
    assert [token for token, _ in guess.ranked] == [7, 6, 5]
    guess = followed([1, 5, 1, 5, 1, 5, 1, 6, 1]).guess()
    assert guess is not None
    assert guess.ranked[0][0] == 5


def test_longest_first() -> None:
    """What followed the longest suffix wins over what followed shorter ones more often."""
    guess = followed([3, 1, 2, 8, 4, 2, 9, 5, 2, 9, 6, 2, 9, 7, 3, 1, 2]).guess()
    assert guess is not None
    assert guess.ranked[0][0] == 8
    assert 9 in dict(guess.ranked)


def check(guess: Guess | None) -> None:
    """A guess is well-formed: few different tokens in order, with chances that can be true together."""
    if guess is None:
        return
    tokens, chances = zip(*guess.ranked, strict=True)
    assert guess.source == "lookup"
    assert guess.logits is None
    assert 1 <= len(tokens) <= CANDIDATES
    assert len(set(tokens)) == len(tokens)
    assert list(chances) == sorted(chances, reverse=True)
    assert min(chances) > 0
    assert sum(chances) < 1


@given(TEXTS, TEXTS, st.data())
def test_nodes_leave_no_trace(text: list[int], branch: list[int], data: st.DataObject) -> None:
    """What a node says depends neither on other nodes nor on how many come at once, and the text stays as it was."""
    session = followed(text)
    before = session.guess()
    check(before)
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(len(branch))]
    together = extend(session, parents, branch, rows(branch))
    for node, said in enumerate(together):
        check(said)
        path = [node]
        while parents[path[0]] != -1:
            path.insert(0, parents[path[0]])
        tokens = [branch[each] for each in path]
        alone = followed(text)
        assert [extend(alone, [step - 1], [token], rows([token]))[0] for step, token in enumerate(tokens)][-1] == said
    assert session.guess() == before


@given(TEXTS, TEXTS, TEXTS, st.floats(0, 1))
def test_what_is_recalled_is_as_if_it_stood_before(
    earlier: list[int], text: list[int], more: list[int], share: float
) -> None:
    """Of a text that goes on, is cut, or forks; but its positions are its own, and it alone begins it."""
    keep = round(share * len(text))
    session = LookupDrafter().open(ROOM, earlier)
    assert session.guess() is None
    session.observe(text, rows(text), None)
    assert session.position == len(text)
    assert session.guess() == (followed([*earlier, *text]).guess() if text else None)
    for each in (session.fork(keep), session):
        if each is session:
            each.truncate(keep)
        each.observe(more, rows(more), None)
        assert each.position == keep + len(more)
        assert each.guess() == (followed([*earlier, *text[:keep], *more]).guess() if keep or more else None)


def test_the_end_of_what_is_recalled_is_no_token() -> None:
    """What followed where a text ended is not guessed, and texts do not run into each other."""
    session = LookupDrafter().open(ROOM, [1, 2, NOBODY, 6, 1, 2, NOBODY])
    session.observe([1, 2], rows([1, 2]), None)
    assert session.guess() is None
    session.observe([6], rows([6]), None)
    guess = session.guess()
    assert guess is not None and [token for token, _ in guess.ranked] == [1]


@given(TEXTS, TEXTS, TEXTS, st.floats(0, 1))
def test_truncate(first: list[int], wrong: list[int], second: list[int], share: float) -> None:
    """Truncated tokens might never have been, whether they were indexed already or not."""
    keep = round(share * (len(first) + len(wrong)))
    text = [*first, *wrong][:keep]
    session = followed(first)
    session.guess()
    session.observe(wrong, rows(wrong), None)
    session.truncate(keep)
    assert session.position == keep
    session.observe(second, rows(second), None)
    assert session.guess() == followed([*text, *second]).guess()


def test_observing_forgets_nodes() -> None:
    """Nodes are numbered anew behind each text, and a parent that is not there is refused without harm."""
    session = followed([1, 2, 3, 1])
    extend(session, [-1, 0], [2, 3], rows([2, 3]))
    session.observe([2], rows([2]), None)
    before = session.guess()
    for parent in (0, 1, -2):
        with pytest.raises(ValueError):
            extend(session, [parent], [3], rows([3]))
    with pytest.raises(ValueError):
        extend(session, [-1, 0], [3], rows([3]))
    assert session.guess() == before
    assert extend(session, [-1], [3], rows([3])) == [extend(followed([1, 2, 3, 1, 2]), [-1], [3], rows([3]))[0]]


def test_room() -> None:
    """A text longer than was said at first is refused, and what was there stays."""
    session = LookupDrafter().open(3)
    session.observe([1, 2], rows([1, 2]), None)
    with pytest.raises(ValueError):
        session.observe([1, 2], rows([1, 2]), None)
    for position in (-1, 3):
        with pytest.raises(ValueError):
            session.truncate(position)
    session.observe([1], rows([1]), None)
    assert session.position == 3
    guess = session.guess()
    assert guess is not None
    assert guess.ranked[0][0] == 2


def test_memory() -> None:
    """What a text holds is counted, indexed or not, and given back at the end."""
    session = LookupDrafter().open(ROOM)
    empty = session.nbytes
    text = [token % 50 for token in range(500)]
    session.observe(text, rows(text), None)
    waiting = session.nbytes
    session.guess()
    assert empty + 500 <= waiting < session.nbytes
    session.close()
    session.close()
    assert session.nbytes == empty
    assert session.position == 0
