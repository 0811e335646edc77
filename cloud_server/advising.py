"""What one device is told about chunk sizes: when a session is opened, and again when conditions have changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cloud_server.advice import Conditions, chunk_rows, differs, schedule
from wire.limits import MAX_CHUNKS
from wire.messages import Advice, LinkState


@dataclass
class _Prefill:
    prompt: int
    sizes: list[int]


class Advising:
    """The advice given to one device.

    Args:
        conditions: the present ones for a device with an upload bandwidth in bytes a second, None while unknown.
        post: sends a piece of advice.
    """

    def __init__(self, conditions: Callable[[float | None], Conditions], post: Callable[[Advice], None]) -> None:
        self.link = LinkState(0, 0)
        self._conditions = conditions
        self._post = post
        self._default: list[int] = []
        self._prefills: dict[int, _Prefill] = {}

    def connected(self) -> None:
        """A device has come: tell it the one size for prompts that have no advice of their own."""
        self._advise_default(self._now())

    def measured(self, link: LinkState) -> None:
        """A device has told what it measures."""
        self.link = link

    def opened(self, session: int, prompt: int) -> None:
        """A session begins, with ``prompt`` rows to come."""
        conditions = self._now()
        if prompt <= chunk_rows(conditions):
            return  # One chunk, as the default says too.
        sizes = schedule(conditions, prompt)[:MAX_CHUNKS]
        self._prefills[session] = _Prefill(prompt, sizes)
        self._post(Advice(sizes, session))

    def closed(self, session: int) -> None:
        """A session is over, or past its prompt."""
        self._prefills.pop(session, None)

    def look_again(self, position: Callable[[int], int | None]) -> None:
        """Tell whatever has changed by enough; ``position`` gives how far a session has come, None when it is over."""
        conditions = self._now()
        self._advise_default(conditions)
        for session, prefill in list(self._prefills.items()):
            begin = position(session)
            if begin is None or begin >= prefill.prompt:
                del self._prefills[session]
                continue
            sizes = schedule(conditions, prefill.prompt - begin)[:MAX_CHUNKS]
            if differs(_ahead(prefill.sizes, prefill.prompt, begin), sizes):
                prefill.sizes = sizes
                self._post(Advice(sizes, session, begin))

    def _now(self) -> Conditions:
        return self._conditions(self.link.up_bytes_s or None)

    def _advise_default(self, conditions: Conditions) -> None:
        sizes = [chunk_rows(conditions)]
        if not self._default or differs(self._default, sizes):
            self._default = sizes
            self._post(Advice(sizes))


def _ahead(sizes: list[int], prompt: int, begin: int) -> list[int]:
    """What of a schedule that ends at ``prompt`` lies behind ``begin``."""
    ahead: list[int] = []
    left = prompt - begin
    for size in reversed(sizes):
        if left <= 0:
            break
        ahead.append(min(size, left))
        left -= size
    return ahead[::-1]
