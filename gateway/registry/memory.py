"""The registry of a gateway that stands alone: a dictionary."""

from __future__ import annotations

from gateway.registry.base import AgentRecord


class MemoryRegistry:
    """Agents of this process only."""

    def __init__(self) -> None:
        self._records: dict[str, AgentRecord] = {}

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Forget everything."""
        self._records.clear()

    def publish(self, record: AgentRecord) -> None:
        """Add an agent, or replace what was known of it; its place in the order stays."""
        self._records[record.key] = record

    def withdraw(self, key: str) -> None:
        """Forget an agent."""
        self._records.pop(key, None)

    def known(self) -> list[AgentRecord]:
        """All agents, the longest known first."""
        return list(self._records.values())
