"""How many bytes of tensors a member has sent and received, by what they were and by the caller's label."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass

from peers.frames import Kind


@dataclass
class Bytes:
    """Of payloads; headers, pulses and what was dropped are in none of them."""

    sent: int = 0
    received: int = 0


class Counts:
    """Safe on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: defaultdict[tuple[str, Kind], Bytes] = defaultdict(Bytes)

    def add(self, label: str, kind: Kind, sent: int = 0, received: int = 0) -> None:
        """So many more of one label, as one kind."""
        with self._lock:
            found = self._bytes[label, kind]
            found.sent += sent
            found.received += received

    def by_label(self) -> dict[tuple[str, Kind], Bytes]:
        """So far, by label and kind: a copy."""
        with self._lock:
            return {key: Bytes(each.sent, each.received) for key, each in self._bytes.items()}

    @property
    def total(self) -> Bytes:
        """Of all labels and kinds."""
        found = self.by_label().values()
        return Bytes(sum(each.sent for each in found), sum(each.received for each in found))
