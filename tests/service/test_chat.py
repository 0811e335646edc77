"""What the terminal chat makes of a server's report."""

from __future__ import annotations

from typing import Any

import pytest

from service.chat import Said, lines_of, show, summed_up


def details(accepted: Any, rejected: Any) -> dict[str, Any]:
    told = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
    return {"completion_tokens": 57, "completion_tokens_details": told}


@pytest.mark.parametrize(
    ("usage", "line"),
    [
        (details(31, 13), "(57 tokens, 31 of 44 drafted ones accepted)"),
        (details(0, 5), "(57 tokens, 0 of 5 drafted ones accepted)"),
        (details(0, 0), "(57 tokens)"),
        (details(None, None), "(57 tokens)"),
        ({"completion_tokens": 57, "completion_tokens_details": None}, "(57 tokens)"),
        ({"completion_tokens": 57, "completion_tokens_details": {"reasoning_tokens": 3}}, "(57 tokens)"),
        ({"completion_tokens": "many"}, ""),
        ({}, ""),
    ],
)
def test_one_line_from_any_servers_usage(usage: dict[str, Any], line: str) -> None:
    """Tokens always, drafts where there were any, nothing where nothing is known."""
    assert summed_up(usage) == line


def test_lines_of_a_stream_end_with_a_line_feed_alone() -> None:
    """However it is cut: other signs that end lines elsewhere are parts of what is said."""
    stream = 'data: {"a": "x\u2028y\u0085z"}\r\n\ndata: é\x0b\nlast'
    wanted = ['data: {"a": "x\u2028y\u0085z"}', "", "data: é\x0b", "last"]
    data = stream.encode()
    for step in (1, 3, len(data)):
        assert list(lines_of(data[at : at + step] for at in range(0, len(data), step))) == wanted


def test_thoughts_are_shown_before_the_answer_and_are_no_part_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal; what goes into a file or another program is the answer alone."""
    pieces = [Said("Hm, ", thought=True), Said("yes.", thought=True), Said("It "), Said("is.")]
    assert show(pieces, thoughts=True) == "It is."
    assert capsys.readouterr().out == "Hm, yes.\n\nIt is.\n"
    assert show(pieces, thoughts=False) == "It is."
    assert capsys.readouterr().out == "It is.\n"
