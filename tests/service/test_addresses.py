"""Addresses in URLs and messages."""

from __future__ import annotations

import socket

import pytest

from service.addresses import host_port, reachable, unbracketed
from service.lifecycle import listening


@pytest.mark.parametrize(
    ("host", "written"),
    [("127.0.0.1", "127.0.0.1:80"), ("::1", "[::1]:80"), ("::", "[::]:80"), ("gateway.local", "gateway.local:80")],
)
def test_host_and_port(host: str, written: str) -> None:
    """As a URL has them: without brackets the last part of an IPv6 address would be read as its port."""
    assert host_port(host, 80) == written


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_what_listens_everywhere_is_reached_over_loopback(host: str) -> None:
    """Those are no addresses to connect to; others are."""
    assert reachable(host) == "127.0.0.1"
    assert reachable("::1") == "::1"


def test_a_port_in_use_is_named_with_brackets() -> None:
    """The message can be pasted where a URL is wanted."""
    try:
        taken = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit, match=rf"\[::1\]:{port}:"):
            listening("::1", port)


@pytest.mark.parametrize("ipv6", [True, False])
def test_everywhere_is_both_families(ipv6: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``::`` is reached over IPv4 too, and where a machine has no IPv6 at all it is IPv4 alone."""
    if not ipv6:
        monkeypatch.setattr("service.lifecycle._has_ipv6", lambda: False)
    with listening("::", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        assert listener.family == (socket.AF_INET6 if ipv6 else socket.AF_INET)
        for host in ("127.0.0.1", *(("::1",) if ipv6 else ())):
            with socket.create_connection((host, port), timeout=10):
                pass


def test_brackets_that_nobody_looked_into() -> None:
    """A pod's address is put into a URL without knowing its family."""
    assert unbracketed("http://[10.0.0.1]:8000") == "http://10.0.0.1:8000"
    assert unbracketed("http://[fd00::1]:8000") == "http://[fd00::1]:8000"
    assert unbracketed("https://a.example/") == "https://a.example/"
