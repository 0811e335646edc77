"""Collectives of members whose tensors are on another device than the CPU, among members whose are not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from elsewhere import elsewhere
from peers_together import fabrics, together
from stand_in import DEVICE, watched

from peers.device_collectives import DeviceCollectives
from peers.fabric import Fabric

SHARES = (3, 0, 4)
ROWS, COLUMNS = sum(SHARES), 5
OWN = (range(0, 3), range(3, 3), range(3, 7))
RING, ONE_SHOT = 0, 2**30


@pytest.fixture(scope="module")
def members() -> Iterator[list[Fabric]]:
    """Three."""
    with fabrics(3) as made:
        yield made


def numbers(seed: int) -> torch.Tensor:
    return torch.randn((ROWS, COLUMNS), generator=torch.Generator().manual_seed(seed))


@elsewhere
@pytest.mark.parametrize("little", [RING, ONE_SHOT], ids=["ring", "one-shot"])
def test_they_give_what_they_give_on_the_cpu(members: list[Fabric], device: torch.device, little: int) -> None:
    """Tile by tile and together, to all and to one; what one member has on the CPU lies elsewhere at the others."""
    whole, parts = numbers(0), [numbers(1 + place) for place in range(3)]
    total = parts[0] + parts[1] + parts[2]

    def run(place: int) -> None:
        on, own = torch.device("cpu") if place == 1 else device, slice(OWN[place].start, OWN[place].stop)
        mine = DeviceCollectives(members[place], one_shot_bytes=little)

        def begun() -> torch.Tensor:
            found = torch.zeros_like(whole)
            found[own] = whole[own]
            return found.to(on)

        for by_tile in (True, False):
            found = begun()
            coming = mine.all_gather(found, SHARES, pieces=2)
            if by_tile:
                assert sorted(row for tile in coming for row in range(tile.begin, tile.end)) == list(range(ROWS))
            else:
                coming.wait()
            assert torch.equal(found.cpu(), whole)
        found = torch.zeros_like(whole).to(on)
        given = mine.all_gather_given(found, SHARES, pieces=2)
        for tile in given.tiles:
            found[tile.begin : tile.end] = whole[tile.begin : tile.end].to(on)
            given.give()
        given.exchange.wait()
        assert torch.equal(found.cpu(), whole)
        found = begun()
        mine.gather(found, SHARES, 2).wait()
        assert place != 2 or torch.equal(found.cpu(), whole)
        found = (whole.clone() if place == 0 else torch.zeros_like(whole)).to(on)
        mine.broadcast(found, 0).wait()
        assert torch.equal(found.cpu(), whole)
        found = parts[place].clone().to(on)
        mine.all_reduce(found).wait()
        torch.testing.assert_close(found.cpu(), total)
        for at_once in (True, False):
            found = parts[place].clone().to(on)
            going = mine.reduce_scatter(found, SHARES, given=at_once)
            for share in () if at_once else going.order:
                going.give(share)
            going.exchange.wait()
            torch.testing.assert_close(found.cpu()[own], total[own])
        found = torch.zeros_like(whole).to(on)
        if place:
            mine.receive(found, 0, place).wait()
            assert torch.equal(found.cpu(), whole)
        else:
            mine.send(whole.to(on), 1, 1).wait()
            mine.send(whole.to(on), 2, 2).wait()

    together([partial(run, place) for place in range(3)])


def test_what_travels_crosses_once_each_way(members: list[Fabric]) -> None:
    """Of a gather a member's own rows to the host and the others' from there; of a sum all rows, both ways."""

    def run(place: int, crossed: list[torch.Tensor]) -> None:
        mine = DeviceCollectives(members[place])
        mine.all_gather(crossed[0], SHARES).wait()
        mine.all_reduce(crossed[1]).wait()

    tensors = [[numbers(place).to(DEVICE), numbers(place).to(DEVICE)] for place in range(3)]
    with watched() as found:
        together([partial(run, place, tensors[place]) for place in range(3)])
    all_rows = [(ROWS, COLUMNS)] * 3
    assert sorted(found.to_host) == sorted([(3, COLUMNS), (4, COLUMNS), *all_rows])
    assert sorted(found.to_device) == sorted([(4, COLUMNS), (3, COLUMNS), (3, COLUMNS), (4, COLUMNS), *all_rows])
