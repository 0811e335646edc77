"""What the members of a group tell each other beside their tensors: values under keys that are used once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from tls.contexts import Tls

MOST_POSTS: Final = 4096
"""Values on one board: some for each pair of members, and nothing grows while a group works."""

STORED: Final = "store/"
"""How the keys begin that torch makes (``tensors.BoardStore``). All others that a member posts end with its rank."""


class PeerLost(RuntimeError):
    """A member is gone, silent for too long, has lied, or has never come: the group has ended. The message says who and
    why; ``rank`` is who, None where it was nobody in particular."""

    def __init__(self, why: str, rank: int | None = None) -> None:
        super().__init__(why)
        self.rank = rank


class Board:
    """One process's copy. Safe on any thread.

    Args:
        tell: takes what this process posts to the others; called on the thread that posts.
        key: what members prove to each other that they know, where one dials another (``secret.link_key``).
        tls: of the links between members; None: they are plain.

    Attributes:
        key, tls: as given.
    """

    def __init__(self, tell: Callable[[str, bytes], None], key: bytes = b"", tls: Tls | None = None) -> None:
        self.key, self.tls = key, tls
        self._tell = tell
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._lost: str | None = None

    @property
    def lost(self) -> str | None:
        """Why the group has ended, None while it lives."""
        return self._lost

    def post(self, key: str, value: bytes) -> None:
        """Tell all members. Raises ``PeerLost``."""
        self.put(key, value)
        if self._lost is not None:
            raise PeerLost(self._lost)
        self._tell(key, value)

    def put(self, key: str, value: bytes) -> None:
        """What another member has posted. Raises ``ValueError`` for a key that is there, or more than there may be."""
        with self._changed:
            if key in self._values or len(self._values) >= MOST_POSTS:
                raise ValueError(f"{key!r} is there already, or too much is")
            self._values[key] = value
            self._changed.notify_all()

    def has(self, keys: Sequence[str]) -> bool:
        """Whether all of these are there. Raises ``PeerLost``."""
        if self._lost is not None:
            raise PeerLost(self._lost)
        return all(key in self._values for key in keys)

    def get(self, key: str, within_s: float) -> bytes:
        """Wait for a value. Raises ``PeerLost``, also where it has not come in time."""
        deadline = monotonic() + within_s
        with self._changed:
            while not self.has([key]):
                if not self._changed.wait(max(0.0, deadline - monotonic())) and not self.has([key]):
                    raise PeerLost(f"no member has said {key!r} within {within_s:g} s")
            return self._values[key]

    def lose(self, why: str) -> None:
        """The group has ended: so do all waits. Only the first call counts."""
        with self._changed:
            self._lost = self._lost or why
            self._changed.notify_all()
