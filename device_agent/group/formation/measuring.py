"""Links are measured: by all members of a group at once, in an epoch of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final, Union

import msgspec

from device_agent.group.formation.company import Company
from device_agent.group.formation.forming import unreachable
from device_agent.group.formation.measures import Measures
from device_agent.group.formation.posted import NotFormed, posted
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.group.rows.sending import PORTAL
from device_agent.profiling.links import LinksMeasured, measure_links
from peers.board import Board, PeerLost
from peers.fabric import Fabric
from peers.membership import Membership

LINKS: Final = "links/"
"""What a member posts, with its rank, once it has measured its links."""

TAKEN: Final = "measures taken"
"""What the portal posts once it has them all."""

MEASURED_WITHIN_S: Final = 120.0
"""Links that are not measured by then are too slow for any use."""

_Name = Annotated[str, msgspec.Meta(max_length=256)]


class LinksOrder(msgspec.Struct, frozen=True, tag="links", forbid_unknown_fields=True):
    """What members are told who shall measure their links: the names of all, by rank."""

    names: Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1, max_length=64)]


Order = Union[JoinedPlan, LinksOrder]
"""What a place in a group is for."""


def read_order(data: bytes) -> Order:
    """Raises ``ValueError`` for what is none."""
    order: Order = msgspec.msgpack.decode(data, type=Order)
    return order


def measure_as_member(order: LinksOrder, membership: Membership) -> None:
    """A member's part; blocks. Raises ``PeerLost``, ``ValueError``."""
    board = membership.board
    measured = _measured(board, membership.rank, membership.size, membership.address, membership.epoch, order.names)
    board.post(f"{LINKS}{membership.rank}", msgspec.msgpack.encode(measured))
    with suppress(PeerLost):  # The portal has them, and ends the group, or it is gone: either way this is over.
        board.get(TAKEN, MEASURED_WITHIN_S)


async def measure_as_portal(company: Company, portal: str, others: Sequence[str], measures: Measures) -> None:
    """Measure the links between the portal and others, all of whom are free, and between these.

    Raises ``PeerLost`` and ``NotFormed`` where somebody is gone, or says what cannot be.
    """
    names, seats = (portal, *others), dict(enumerate(others, 1))
    group = company.open(dict.fromkeys(seats, msgspec.msgpack.encode(LinksOrder(names))), seats)
    address, board = company.rendezvous.address, group.board
    why, blamed = "the links are measured", 0
    try:
        own = await asyncio.to_thread(_measured, board, PORTAL, group.size, address, group.epoch, names)
        await posted(group, seats, LINKS, MEASURED_WITHIN_S)
        found = [own, *(_read(rank, names, board.get(f"{LINKS}{rank}", 0.0)) for rank in seats)]
        board.post(TAKEN, b"")
        links = [link for each in found for link in each.links]
        costs_s = {name: each.byte_cost_s for name, each in zip(names, found, strict=True)}
        measures.links(names, links, own.collectives, own.one_shot_bytes, costs_s)
    except PeerLost as error:
        why, blamed = str(error), error.rank or 0
        raise
    except NotFormed as error:
        why, blamed = str(error), max(error.ranks, default=0)
        raise
    except OSError as error:
        gone = unreachable(address, error)
        why = str(gone)
        raise gone from error
    finally:
        group.end(why, blamed)


def _measured(board: Board, rank: int, size: int, address: str, epoch: int, names: tuple[str, ...]) -> LinksMeasured:
    with Fabric.open(board, rank, size, address, epoch=epoch) as fabric:
        return measure_links(fabric, names, quick=True)


def _read(rank: int, names: tuple[str, ...], data: bytes) -> LinksMeasured:
    """What a member has measured. Raises ``NotFormed`` where that cannot be."""
    try:
        measured = msgspec.msgpack.decode(data, type=LinksMeasured)
        others = {name for name in names if name != names[rank]}
        if {(each.source, each.target) for each in measured.links} != {(names[rank], other) for other in others}:
            raise ValueError("its links are not those to each other member")
        if not 0 <= measured.byte_cost_s < float("inf"):
            raise ValueError(f"a byte costs it {measured.byte_cost_s} s")
    except ValueError as error:
        raise NotFormed(f"{names[rank]} has measured what cannot be: {error}", (rank,)) from error
    return measured
