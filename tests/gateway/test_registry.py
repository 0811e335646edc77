"""What every registry does, whatever it keeps its records in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from gateway.registry.memory import MemoryRegistry
from gateway.registry.registry import AgentRecord, Registry

FIRST = AgentRecord("one#1", "one", (), 2)
SECOND = AgentRecord("two#2", "two", (), 2)


@pytest.fixture(params=[MemoryRegistry])
async def registry(request: pytest.FixtureRequest) -> AsyncIterator[Registry]:
    """Each implementation, opened."""
    new: Registry = request.param()
    await new.open()
    yield new
    await new.close()
    assert new.known() == []


async def test_records_are_known_in_the_order_they_came(registry: Registry) -> None:
    """Also after one was replaced; a withdrawn one is gone."""
    registry.publish(FIRST)
    registry.publish(SECOND)
    busier = msgspec.structs.replace(FIRST, running=1)
    registry.publish(busier)
    assert registry.known() == [busier, SECOND]
    registry.withdraw(FIRST.key)
    registry.withdraw("never known")
    assert registry.known() == [SECOND]


async def test_what_is_known_is_a_snapshot(registry: Registry) -> None:
    """Changing the list changes nothing."""
    registry.publish(FIRST)
    registry.known().clear()
    assert registry.known() == [FIRST]
