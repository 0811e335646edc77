"""Secrets are compared whole."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import RequestError
from gateway.key_book import NOBODY, KeyBook
from gateway.keys import KeyRing, bearer_token
from gateway.limits.limits import Limits


def test_a_ring_admits_its_keys_only() -> None:
    """Every one of them, and no part of them; an empty ring nobody."""
    ring = KeyRing(["one", "two"])
    assert ring.admits("one") and ring.admits("two")
    assert not any(ring.admits(other) for other in ("", "on", "onetwo", "One", "\ud800"))
    assert not KeyRing([]).admits("")


@pytest.mark.parametrize(
    ("header", "token"), [("Bearer x", "x"), ("bearer  x ", "x"), ("Basic x", None), ("Bearer", None), ("", None)]
)
def test_bearer_tokens(header: Any, token: Any) -> None:
    """The scheme in any case."""
    assert bearer_token(header) == token


def test_tenants_are_told_apart_and_keys_not_told() -> None:
    """One name for each key, another in each process, and nothing of the key in it; wherever it comes from."""
    ring = KeyBook(["one", "two"], Limits())
    names = {key: ring.tenant(f"Bearer {key}", "10.0.0.1") for key in ("one", "two")}
    assert names["one"] != names["two"] and ring.tenant("bearer  one ", "10.0.0.2") == names["one"]
    assert all(len(name) == 32 and key not in name for key, name in names.items())
    assert KeyBook(["one", "two"], Limits()).tenant("Bearer one", "10.0.0.1") != names["one"]
    assert ring.tenant(None, "10.0.0.1") == ring.tenant(None, "10.0.0.2")


@pytest.mark.parametrize(
    ("one", "another", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("testclient", "", False),
    ],
)
def test_without_keys_addresses_are_tenants(one: Any, another: Any, same: Any) -> None:
    """Of IPv6 the network, in which a client has all addresses; whatever key is shown, and the address is not told."""
    ring = KeyBook([], Limits())
    assert (ring.tenant("Bearer x", one) == ring.tenant(None, another)) is same
    assert len(ring.tenant(None, one)) == 32 and one not in ring.tenant(None, one) + "x" * (not one)


def test_no_key_is_asked_when_none_is_set() -> None:
    """An empty book asks nobody."""
    assert KeyBook([], Limits()).admitted(None, 0.0) is NOBODY
    book = KeyBook(["one"], Limits())
    assert not isinstance(book.admitted("Bearer one", 0.0), RequestError)
    refused = book.admitted(None, 0.0)
    assert isinstance(refused, RequestError) and refused.status == 401
