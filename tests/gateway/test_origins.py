"""Which headers of a browser are refused."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.door import foreign


@pytest.mark.parametrize(
    ("host", "origin", "on_loopback", "refused"),
    [
        ("127.0.0.1:8000", None, True, False),
        ("localhost", None, True, False),
        ("[::1]:8000", None, True, False),
        ("127.9.9.9", None, True, False),
        ("evil.test", None, True, True),
        ("evil.test:8000", "http://evil.test:8000", True, True),
        ("named.test", None, True, False),
        ("evil.test", None, False, True),
        ("named.test:8000", None, False, False),
        ("127.0.0.1", None, False, False),
        ("named.test", "https://named.test", False, False),
        ("named.test", "https://evil.test", False, True),
        ("named.test", "https://named.test.evil.test", False, True),
        ("named.test", "null", False, True),
        ("named.test", "http://[broken", False, True),
        ("named.test", "https://app.test", False, False),
        (None, None, True, False),
        (None, "https://evil.test", False, True),
        ("", None, True, True),
    ],
)
def test_refusals(host: Any, origin: Any, on_loopback: Any, refused: Any) -> None:
    """Foreign origins, and foreign names wherever some are configured."""
    reason = foreign(
        host, origin, on_loopback=on_loopback, allowed_hosts={"named.test"}, allowed_origins={"https://app.test"}
    )
    assert (reason is not None) is refused


def test_beyond_loopback_every_name_will_do_until_some_are_configured() -> None:
    """On loopback never."""
    assert foreign("any.test", None, on_loopback=False) is None
    assert foreign("any.test", "https://any.test", on_loopback=False) is None
    assert foreign("any.test", None, on_loopback=True) is not None
