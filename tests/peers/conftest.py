"""A fabric whose only other member is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from liars import Liar
from peers_together import KEY, LOOPBACK, boards_of, together

from peers.fabric import Fabric
from peers.greeting import PeerDoor
from peers.opening import open_links


@pytest.fixture
def lied_to() -> Iterator[tuple[Fabric, Liar]]:
    """A member and the only other one, which is no fabric."""
    boards = boards_of(2)
    fabric, links = together(
        [
            lambda: Fabric.open(boards[0], 0, 2, LOOPBACK, epoch=5),
            lambda: open_links(boards[1], PeerDoor(KEY, 5, 1, 2), LOOPBACK),
        ]
    )
    try:
        yield fabric, Liar(links[0])
    finally:
        links[0].close()
        fabric.close()
