"""The registry of a gateway that stands alone."""

from __future__ import annotations

from gateway.registry.registry import AgentRecord


class MemoryRegistry:
    """The ``Registry`` of agents of this process only."""

    def __init__(self) -> None:
        self._records: dict[str, AgentRecord] = {}

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        self._records.clear()

    def publish(self, record: AgentRecord) -> None:
        self._records[record.key] = record

    def withdraw(self, key: str) -> None:
        self._records.pop(key, None)

    def known(self) -> list[AgentRecord]:
        return list(self._records.values())
