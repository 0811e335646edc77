"""The rival of the fabric: torch.distributed's gloo between the members of a group, who meet on their board."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch import distributed

from peers.board import Board
from peers.tensors import BoardStore

WITHIN = timedelta(seconds=60)


def over_gloo(board: Board, rank: int, size: int, address: str) -> Any:
    """A process group, listening at this address of this machine."""
    options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = WITHIN
    return distributed.ProcessGroupGloo(BoardStore(board), rank, size, options)
