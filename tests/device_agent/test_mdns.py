"""Groups on the local network: found by those who look for their name, and said plainly where that cannot be."""

from __future__ import annotations

import asyncio
import sys

import pytest

from device_agent.mdns import NoMdns, announced, heard


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if zeroconf were not installed."""
    for name in ("zeroconf", "zeroconf.asyncio"):
        monkeypatch.setitem(sys.modules, name, None)


async def test_what_is_missing_is_said(without: None) -> None:
    """Of who looks and of who announces."""
    with pytest.raises(NoMdns, match=r"pip install '\.\[lan\]'"):
        await heard("home", 0.1)
    with pytest.raises(NoMdns, match="zeroconf"):
        async with announced("home", "127.0.0.1", 8003):
            pass


async def test_a_group_is_heard_by_its_name() -> None:
    """Another name is not, and nobody waits for it longer than was said."""
    pytest.importorskip("zeroconf", reason="the extra lan is not installed")
    async with announced("home", "127.0.0.1", 8003), announced("away", "127.0.0.1", 8004):
        found = await asyncio.gather(*(heard(name, 5.0) for name in ("home", "away", "nowhere")))
        assert found == ["127.0.0.1:8003", "127.0.0.1:8004", None]
        assert await heard("home", 1.0, ("127.0.0.1:8003",)) == "127.0.0.1:8003", "it is the only one"
        async with announced("home", "127.0.0.1", 8005):
            assert await heard("home", 5.0, ("127.0.0.1:8003",)) == "127.0.0.1:8005"
