"""Rows from where one layer leaves them to where the next one wants them: between members, and from the portal."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import torch

from device_agent.group.rows.layout import At, Everywhere, Layout, Parted
from device_agent.group.rows.step_rows import StepRows
from peers.collectives import Collectives
from split_model.device import put

PORTAL: Final = 0
"""The rank of the portal."""


class Tag(IntEnum):
    """What is sent from one member to another, outside of collectives."""

    HEAD = 0
    ENTRY = 1
    RESULT = 2
    PASS = 3
    PREFIX = 4
    ASK = 5
    BROUGHT = 6
    ANSWER = 7
    LEND = 8
    BACK = 9
    MEANS = 10
    PLAN = 11
    GIFT = 12
    GIVEN = 13


def nearest(ranks: tuple[int, ...]) -> int:
    """The place of the portal, or the first where it has none."""
    return ranks.index(PORTAL) if PORTAL in ranks else 0


def move(hidden: torch.Tensor, now: Layout, to: Layout, on: StepRows) -> torch.Tensor:
    """This member's rows as the next layer wants them.

    Args:
        hidden: its rows ``[…, hidden]`` as they lie ``now``; none where it has none.

    Raises ``PeerLost``, ``EpochOver``.
    """
    if now == to:
        return hidden
    if isinstance(now, Everywhere):
        return hidden[_of(to, on)]
    if isinstance(now, At) and isinstance(to, Everywhere):
        whole = hidden if now.place == on.place else on.empty(hidden.shape[1], like=hidden)
        on.collectives.broadcast(whole, now.place).wait()
        return whole
    if isinstance(now, At):
        return _from_one(hidden, now.place, to, on)
    if isinstance(to, At):
        whole = on.empty(hidden.shape[1], like=hidden)
        whole[now.ranges[on.place].start : now.ranges[on.place].stop] = hidden
        on.collectives.gather(whole, now.counts, to.place).wait()
        return whole if to.place == on.place else hidden[:0]
    whole = gathered(hidden, now, on)
    return whole[_of(to, on)]


def gathered(own: torch.Tensor, now: Parted, on: StepRows, label: str = "") -> torch.Tensor:
    """All rows ``[rows, hidden]``, of which each member has its own."""
    whole = on.empty(own.shape[1], like=own)
    whole[_of(now, on)] = own
    on.collectives.all_gather(whole, now.counts, label=label).wait()
    return whole


def send_entry(collectives: Collectives, hidden: torch.Tensor, entry: Layout, ranks: tuple[int, ...], own: int) -> None:
    """The portal hands out ``[rows, hidden]`` to the members; ``own`` is its own rank."""
    for place, rank in enumerate(ranks):
        part = hidden[_slice(entry, place, len(hidden))]
        if rank != own and len(part):
            collectives.send(part, rank, Tag.ENTRY)


def take_entry(
    entry: Layout, on: StepRows, portal: int, like: torch.Tensor, given: torch.Tensor | None = None
) -> torch.Tensor:
    """This member's rows for the first layer, from the portal, which has them all itself: ``given``."""
    if given is not None:
        return put(given[_of(entry, on)], like.device)
    part = like.new_empty((len(range(on.rows)[_of(entry, on)]), like.shape[1]))
    if len(part):
        on.collectives.receive(part, portal, Tag.ENTRY).wait()
    return part


def _from_one(hidden: torch.Tensor, source: int, to: Layout, on: StepRows) -> torch.Tensor:
    """One member's rows to those who want them."""
    if on.place == source:
        for place, rank in enumerate(on.ranks):
            part = hidden[_slice(to, place, on.rows)]
            if place != source and len(part):
                on.collectives.send(part, rank, Tag.PASS)
        return hidden[_of(to, on)]
    part = hidden.new_empty((len(range(on.rows)[_of(to, on)]), hidden.shape[1]))
    if len(part):
        on.collectives.receive(part, on.ranks[source], Tag.PASS).wait()
    return part


def _of(layout: Layout, on: StepRows) -> slice:
    return _slice(layout, on.place, on.rows)


def _slice(layout: Layout, place: int, rows: int) -> slice:
    """Which rows a member has."""
    if isinstance(layout, Parted):
        return slice(layout.ranges[place].start, layout.ranges[place].stop)
    return slice(rows if isinstance(layout, Everywhere) or layout.place == place else 0)
