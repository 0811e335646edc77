"""How many lines of a kind are said."""

from __future__ import annotations

from service.ration import BURST, EVERY_S, MAX_KINDS, Ration


def test_a_few_at_once_then_one_now_and_then_with_how_many_were_left_out() -> None:
    """Nobody's flood fills a log, and nothing goes unsaid."""
    ration = Ration()
    said = [ration.spend("refused", 0.0) for _ in range(1000)]
    assert said == [0] * BURST + [None] * (1000 - BURST)
    assert ration.spend("refused", 0.9 * EVERY_S) is None
    assert ration.spend("refused", 2.0 * EVERY_S) == 1000 - BURST + 1
    assert ration.spend("refused", 2.0 * EVERY_S) in (0, None)


def test_after_a_quiet_time_a_burst_again_and_no_more() -> None:
    """However long the quiet was."""
    ration = Ration()
    for _ in range(BURST):
        assert ration.spend("refused", 0.0) == 0
    assert [ration.spend("refused", 1e6) for _ in range(BURST + 1)] == [0] * BURST + [None]


def test_kinds_do_not_take_from_each_other() -> None:
    """A flood of one leaves the others their lines."""
    ration = Ration()
    for _ in range(1000):
        ration.spend("one", 0.0)
    assert ration.spend("other", 0.0) == 0


def test_what_was_left_out_is_told_once() -> None:
    """At the end of a flood too, when no line of its kind follows."""
    ration = Ration()
    for _ in range(BURST + 5):
        ration.spend("one", 0.0)
    assert ration.left_out() == {"one": 5}
    assert ration.left_out() == {}
    assert ration.spend("one", 5.0) == 0


def test_kinds_are_bounded() -> None:
    """Where more are made up than there can be, the later ones share a ration."""
    ration = Ration()
    said = [ration.spend(str(number), 0.0) for number in range(MAX_KINDS + 1000)]
    assert said.count(0) == MAX_KINDS + BURST
    assert sum(ration.left_out().values()) == 1000 - BURST
