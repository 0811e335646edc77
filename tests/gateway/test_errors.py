"""Every failure has a place in the table."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import TOLD, for_client, model_not_found, retry_after
from wire.errors import Code, SessionFailed


@pytest.mark.parametrize("code", list(Code))
def test_every_code_of_the_wire_is_told(code: Any) -> None:
    """With a proper status; 503 always says when to come back."""
    error = for_client(SessionFailed(code, "why"))
    assert 400 <= error.status < 600
    assert isinstance(error.code, str)
    assert ("Retry-After" in error.headers) is (error.status in (429, 503))
    assert code in TOLD


@pytest.mark.parametrize(
    ("seconds", "header"),
    [(None, "1"), (0.2, "1"), (2.1, "3"), (-5, "1"), (float("nan"), "1"), (float("inf"), "1"), (1e9, "1")],
)
def test_retry_after_is_whole_seconds(seconds: Any, header: Any) -> None:
    """Whatever a peer sends."""
    assert retry_after(seconds) == {"Retry-After": header}


def test_long_names_are_cut() -> None:
    """An error is not an echo."""
    assert len(model_not_found("m" * 10_000).message) < 300
