"""One member of the group that ``bench.fabric`` measures: every operation over ours and over gloo, by turns.

    python -m bench.fabric_member RANK SIZE ADDRESS:PORT ROUNDS CONGESTION

The member of rank 0 listens there, and prints a line of JSON for each operation: how long it took in each round, in
seconds, by the member that took longest.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from time import perf_counter
from typing import Any

import torch
from bench.gloo_group import over_gloo

from peers.board import Board
from peers.collectives import Collectives
from peers.exchange import Exchange
from peers.fabric import Fabric
from peers.membership import join
from peers.rendezvous import listening
from peers.tiles import evenly
from wire.errors import ConnectionFailed

ROWS, COLUMNS = 200, 1024
"""Of BERT-large's hidden states, in float32: 819 KB."""

LITTLE = 170
"""Numbers of each member in a small gather: 680 bytes."""

ROW = 1024
"""Numbers of a row in a decode step: 4 KB."""

WARM_UP = 3
COME_WITHIN_S = 60.0

Operation = Callable[[], object]


def uneven(size: int) -> list[int]:
    """Shares that fall, the last of them none where there are more than two."""
    weights = [size - place for place in range(size)] if size == 2 else [size - 1 - place for place in range(size)]
    shares = [ROWS * weight // sum(weights) for weight in weights]
    shares[0] += ROWS - sum(shares)
    return shares


def operations(fabric: Fabric, gloo: Any) -> dict[str, dict[str, Operation]]:
    """By name, then by who does it."""
    rank, size = fabric.rank, fabric.size
    ring, one_shot = Collectives(fabric, one_shot_bytes=0), Collectives(fabric, one_shot_bytes=2**30)
    even, shares = evenly(ROWS, size), uneven(size)
    whole, row = torch.zeros(ROWS, COLUMNS), torch.zeros(1, ROW)
    little = torch.zeros(size, LITTLE)
    most = torch.zeros(max(shares), COLUMNS)
    parts = [torch.zeros(rows, COLUMNS) for rows in even]
    found: dict[str, dict[str, Operation]] = {
        "all-gather, 819 KB": {
            "ours by ring": lambda: ring.all_gather(whole, even).wait(),
            "ours by ring, 2 pieces": lambda: ring.all_gather(whole, even, pieces=2).wait(),
            "ours in one shot": lambda: one_shot.all_gather(whole, even).wait(),
            "gloo": lambda: gloo.allgather([parts], [parts[rank]]).wait(),
        },
        "all-gather, uneven, 819 KB": {
            "ours by ring": lambda: ring.all_gather(whole, shares).wait(),
            "ours by ring, 4 pieces": lambda: ring.all_gather(whole, shares, pieces=4).wait(),
            "ours in one shot": lambda: one_shot.all_gather(whole, shares).wait(),
            "gloo, filled up": lambda: gloo.allgather([[torch.empty_like(most) for _ in even]], [most]).wait(),
        },
        "reduce-scatter, 819 KB": {
            "ours by ring": lambda: ring.reduce_scatter(whole, even).exchange.wait(),
            "ours in one shot": lambda: one_shot.reduce_scatter(whole, even).exchange.wait(),
            "gloo": lambda: gloo.reduce_scatter([parts[rank]], [parts]).wait(),
        },
        "all-reduce, 819 KB": {
            "ours by ring": lambda: ring.all_reduce(whole).wait(),
            "gloo": lambda: gloo.allreduce([whole]).wait(),
        },
        "all-reduce, 4 KB": {
            "ours in one shot": lambda: one_shot.all_reduce(row).wait(),
            "ours by ring": lambda: ring.all_reduce(row).wait(),
            "gloo": lambda: gloo.allreduce([row]).wait(),
        },
        "all-gather, 680 B each": {
            "ours in one shot": lambda: one_shot.all_gather(little, [1] * size).wait(),
            "ours by ring": lambda: ring.all_gather(little, [1] * size).wait(),
            "gloo": lambda: gloo.allgather([list(little)], [little[rank]]).wait(),
        },
    }
    found["all-gather beside a product"] = beside_a_product(lambda: ring.all_gather(whole, even))
    for name, numbers in (("4 KB", ROW), ("66 KB", 16 * ROW), ("1 MB", 256 * ROW)):
        found[f"there and back, {name}"] = there_and_back(ring, gloo, rank, numbers)
    return found


def beside_a_product(gather: Callable[[], Exchange]) -> dict[str, Operation]:
    """The product of an MLP's first half, on one thread, and tiles that come meanwhile."""
    rows, weights = torch.ones(ROWS, COLUMNS), torch.ones(COLUMNS, 4 * COLUMNS)

    def product() -> None:
        torch.mm(rows, weights)

    def at_once() -> None:
        exchange = gather()
        product()
        exchange.wait()

    def in_turn() -> None:
        gather().wait()
        product()

    return {
        "the product": product,
        "the gather": lambda: gather().wait(),
        "one after the other": in_turn,
        "at once": at_once,
    }


def there_and_back(ours: Collectives, gloo: Any, rank: int, numbers: int) -> dict[str, Operation]:
    """A tensor from the first to the second member and back again, as a pipeline sends it, with a header before it."""
    head, rows = torch.zeros(5, dtype=torch.int64), torch.zeros(numbers)

    def run(send: Callable[[torch.Tensor, int, int], Any], receive: Callable[[torch.Tensor, int, int], Any]) -> None:
        for sender in (0, 1):
            if rank == sender:
                begun = [send(head, 1 - rank, 1), send(rows, 1 - rank, 2)]
                for each in begun:
                    each.wait()
            elif rank == 1 - sender:
                receive(head, sender, 1).wait()
                receive(rows, sender, 2).wait()

    return {
        "ours": lambda: run(ours.send, ours.receive),
        "gloo": lambda: run(
            lambda tensor, to, tag: gloo.send([tensor], to, tag),
            lambda tensor, of, tag: gloo.recv([tensor], of, tag),
        ),
    }


def measure(board: Board, rank: int, size: int, address: str, rounds: int, congestion: str) -> None:
    """All operations, ours and gloo's by turns; each begins when all members are ready."""
    gloo = over_gloo(board, rank, size, address)
    with Fabric.open(board, rank, size, address, within_s=COME_WITHIN_S, congestion=congestion) as fabric:
        control = Collectives(fabric, one_shot_bytes=2**30)
        for name, ways in operations(fabric, gloo).items():
            times: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(WARM_UP + rounds):
                for way, operation in ways.items():
                    control.sum(torch.zeros(1))
                    began = perf_counter()
                    operation()
                    taken = torch.zeros(size, 1)
                    taken[rank] = perf_counter() - began
                    control.all_gather(taken, [1] * size).wait()
                    if number >= WARM_UP:
                        times[way].append(float(taken.max()))
            if rank == 0:
                print(json.dumps({"operation": name, "times": times}), flush=True)
        control.sum(torch.zeros(1))


async def main() -> None:
    """Meet the others, measure, leave."""
    rank, size, where, rounds, congestion = (*sys.argv[1:], "")[:5]
    secret = os.environ["SECRET"]
    address, port = where.rsplit(":", 1)
    async with AsyncExitStack() as stack:
        if rank == "0":
            rendezvous = await stack.enter_async_context(listening(address, int(port), secret))
            group = rendezvous.open(1, {seat: b"" for seat in range(1, int(size))})
            board, own = group.board, address
        else:
            while True:
                try:
                    member = await stack.enter_async_context(join(where, secret, "member", int(rank)))
                    break
                except (OSError, ConnectionFailed):
                    await asyncio.sleep(0.1)
            board, own = member.board, member.address
        board.post(f"here/{rank}", b"")
        for other in range(int(size)):
            await asyncio.to_thread(board.get, f"here/{other}", COME_WITHIN_S)
        await asyncio.to_thread(measure, board, int(rank), int(size), own, int(rounds), congestion)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(main())
