"""What strangers write as an id or a trace context is taken as it is meant, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errands import MAX_PASSED_ID, MAX_REQUEST_ID, plain_id, traceparent_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-03"),
        (f"01-{TRACE}-{SPAN}-01-more-of-the-future", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-01-more", ""),
        (f"ff-{TRACE}-{SPAN}-01", ""),
        (f"00-{TRACE.upper()}-{SPAN}-01", ""),
        (f"00-{'0' * 32}-{SPAN}-01", ""),
        (f"00-{TRACE}-{'0' * 16}-01", ""),
        (f"00-{TRACE}-{SPAN}", ""),
        (f"00-{TRACE}-{SPAN}-01\n", ""),
        ("", ""),
    ],
)
def test_a_trace_context_is_read_as_the_standard_has_it(written: str, read: str) -> None:
    """Known flags are kept, a newer version is read as this one, anything else counts as none."""
    assert traceparent_of([written]) == read


def test_several_contexts_are_none() -> None:
    """Whose trace it would be nobody knows."""
    assert traceparent_of([]) == traceparent_of([f"00-{TRACE}-{SPAN}-01"] * 2) == ""


@given(st.text())
def test_any_text_is_a_context_of_ours_or_none(text: str) -> None:
    """What comes out can be sent on as it is."""
    assert traceparent_of([text]) in ("", text) or len(traceparent_of([text])) == 55


def test_ids_are_short_and_plain() -> None:
    """Letters, digits and a few marks; what is longer, or anything else, is none."""
    assert plain_id("a-B_9.:x") == "a-B_9.:x"
    assert plain_id("x" * MAX_REQUEST_ID, MAX_REQUEST_ID) and not plain_id("x" * (MAX_REQUEST_ID + 1), MAX_REQUEST_ID)
    assert plain_id("x" * MAX_PASSED_ID) and not plain_id("x" * (MAX_PASSED_ID + 1))
    assert [plain_id(each) for each in (None, "", "two words", "line\n", "ä", "a/b")] == [""] * 6
