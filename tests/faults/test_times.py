"""How long who waits for text had to wait, and when a process says that it has noticed something."""

from __future__ import annotations

from pathlib import Path

from faults.times import longest_pause, noticed_s


def test_a_pause_counts_from_the_notice_on() -> None:
    """What had left before the fault comes behind it; of a pause in which the fault was noticed only the rest counts,
    of one that came long after, its length and not its place."""
    assert longest_pause(10.0, [9.0, 10.1, 10.2, 11.5, 11.6]) == 11.5 - 10.2
    assert longest_pause(11.0, [9.0, 10.1, 10.2, 11.5, 11.6]) == 0.5
    assert longest_pause(10.0, [10.1, 10.2, 10.3, 17.0, 17.5]) == 17.0 - 10.3
    assert longest_pause(10.0, [8.0, 9.0]) == 0.0


def test_the_first_line_after_the_fault_counts(tmp_path: Path) -> None:
    """Of the events and the address that are meant; lines that are none are passed over."""
    log = tmp_path / "log"
    line = '{{"event": "{}", "url": "ws://a:{}/", "timestamp": "1970-01-01T00:00:{}.500000Z"}}\n'
    said = [("no cloud", 1, 10), ("no cloud", 2, 11), ("other", 1, 12), ("no cloud", 1, 13)]
    log.write_text("no JSON\n{\n" + "".join(line.format(*each) for each in said))
    assert noticed_s(log, 10.0, "no cloud") == 0.5
    assert noticed_s(log, 10.75, "no cloud", about=":1/") == 2.75
    assert noticed_s(log, 20.0, "no cloud") is None
