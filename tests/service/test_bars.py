"""Long work says how far it is, to people at a terminal and to a log."""

from __future__ import annotations

import io
import re
import threading

from rich.console import Console

from service.bars import Bars, Stage, clock


class Told(io.StringIO):
    """A log that says when a line with some word has come."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.come = threading.Event()
        self._word = word

    def write(self, text: str) -> int:
        count = super().write(text)
        if self._word in self.getvalue():
            self.come.set()
        return count


def test_line_says_what_is_done_and_what_is_left() -> None:
    """Counts, the note, time gone, and time to go by the pace of this run, not of an earlier one."""
    stage = Stage("training", 4_000_000, "tokens", began=100.0, done=3_000_000, note="loss 0.500", before=2_000_000)
    assert stage.line(175.0) == "training: 3,000,000 of 4,000,000 tokens, loss 0.500, 1:15 gone, 1:15 to go"
    assert Stage("text", None, "passages", 0.0, done=7).line(3.0) == "text: 7 passages, 0:03 gone"
    assert Stage("answers", 9, "documents", 5.0).line(5.0) == "answers: 0 of 9 documents, 0:00 gone"
    assert clock(3675) == "1:01:15"


def test_without_a_terminal_a_line_comes_though_nothing_moves() -> None:
    """A stage that is told of nothing for long still says so, line after line, and says its end."""
    log = Told("2 of 8 tokens")
    with Bars(Console(file=log, force_terminal=False), every_s=0.01) as bars:
        with bars.bar("answers", 8, "tokens") as told:
            told(2)
            assert log.come.wait(20)
            told(6)
        with bars.training(10) as read:
            read(10, "loss 0.100")
    lines = log.getvalue().splitlines()
    assert all(re.match(r"(answers|training): [\d,]+ of [\d,]+ tokens", line) for line in lines)
    assert any(line.startswith("answers: 8 of 8 tokens") for line in lines)
    assert lines[-1].startswith("training: 10 of 10 tokens, loss 0.100")


def test_on_a_terminal_there_are_bars() -> None:
    """And no lines beside them."""
    shown = io.StringIO()
    with (
        Bars(Console(file=shown, force_terminal=True, width=120), every_s=0.01) as bars,
        bars.bar("text", 2, "x") as told,
    ):
        told(2)
    assert "text" in shown.getvalue() and "gone" not in shown.getvalue()
