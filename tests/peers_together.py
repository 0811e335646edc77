"""Groups of peers for tests: members that are threads of this process, with links over loopback between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from peers.board import Board
from peers.fabric import Fabric
from tls.contexts import Tls

LOOPBACK = "127.0.0.1"
KEY = b"a key of these tests"
WITHIN_S = 30.0


def boards_of(size: int, key: bytes = KEY, tls: Sequence[Tls] = ()) -> list[Board]:
    """Boards on which everyone reads what anyone posts; ``tls`` of each member, where there is any."""
    boards: list[Board] = []

    def tell(rank: int, key: str, value: bytes) -> None:
        for at, other in enumerate(boards):
            if at != rank:
                other.put(key, value)

    boards += [Board(partial(tell, rank), key, tls[rank] if tls else None) for rank in range(size)]
    return boards


def together(calls: Sequence[Callable[[], Any]], within_s: float = WITHIN_S) -> list[Any]:
    """What calls return that are made at once, each on a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [each.result(within_s) for each in [threads.submit(call) for call in calls]]


@contextmanager
def fabrics(size: int, tls: Sequence[Tls] = (), **more: Any) -> Iterator[list[Fabric]]:
    """All members' fabrics, by rank."""
    boards = boards_of(size, tls=tls)
    made = together([partial(Fabric.open, boards[rank], rank, size, LOOPBACK, **more) for rank in range(size)])
    try:
        yield made
    finally:
        together([each.close for each in made])
