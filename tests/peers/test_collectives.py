"""Collectives: every member ends up with what it should, whatever the shares, and all with the same bits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peers_together import fabrics, together

from peers.collectives import Collectives
from peers.fabric import Fabric
from peers.frames import NUMBERS, Kind
from peers.tensor_bytes import SUMMED, memory, sum_in_order
from peers.tiles import evenly

MOST = 5
COLUMNS = 3
RING, ONE_SHOT = 0, 2**30
"""What is little: nothing, or everything."""

Result = TypeVar("Result")


@pytest.fixture(scope="module")
def members() -> Iterator[list[Fabric]]:
    """A group whose links stay for all these tests."""
    with fabrics(MOST) as made:
        yield made


def of(members: list[Fabric], ring: Sequence[int], little: int) -> list[Collectives]:
    """Collectives of those who take part, by place."""
    return [Collectives(members[rank], ring, little) for rank in ring]


def each(collectives: list[Collectives], call: Callable[[int, Collectives], Result]) -> list[Result]:
    """What all members return, by place, each on its own thread."""
    return together([partial(call, at, one) for at, one in enumerate(collectives)])


def bounds(shares: Sequence[int]) -> list[slice]:
    """The rows of each share."""
    return [slice(end - rows, end) for rows, end in zip(shares, accumulate(shares), strict=True)]


def in_order(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Their sum as torch adds them, one after the other."""
    total = parts[0].clone()
    for part in parts[1:]:
        total = total + part
    return total


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bits."""
    return one.dtype == other.dtype and bytes(memory(one)) == bytes(memory(other))


CASE = st.tuples(
    st.permutations(range(MOST)),
    st.lists(st.integers(0, 7), min_size=1, max_size=MOST),
    st.integers(1, 3),
    st.sampled_from([RING, ONE_SHOT]),
    st.integers(0, 2**31),
)
"""Who comes in which order, how many rows each has, in how many pieces, how, and a seed."""

DTYPES = st.sampled_from(SUMMED)


@settings(max_examples=60)
@given(CASE, st.sampled_from([*SUMMED, torch.int64]))
def test_a_gather_is_a_cat(
    members: list[Fabric], case: tuple[list[int], list[int], int, int, int], dtype: torch.dtype
) -> None:
    """For all, for one, and from one; each tile is said once, when it is there."""
    order, shares, pieces, little, seed = case
    ring = order[: len(shares)]
    whole = torch.randint(-99, 99, (sum(shares), COLUMNS), generator=torch.Generator().manual_seed(seed)).to(dtype)
    root = seed % len(ring)

    def run(place: int, mine: Collectives) -> None:
        rows = bounds(shares)[place]
        found = torch.zeros_like(whole)
        found[rows] = whole[rows]
        seen: list[int] = []
        for tile in mine.all_gather(found, shares, pieces=pieces):
            assert same(found[tile.begin : tile.end], whole[tile.begin : tile.end])
            seen += range(tile.begin, tile.end)
        assert sorted(seen) == list(range(len(whole))) and same(found, whole)
        found = torch.zeros_like(whole)
        own = mine.all_gather_given(found, shares, pieces=pieces)
        for tile in own.tiles:
            assert not own.exchange.done
            found[tile.begin : tile.end] = whole[tile.begin : tile.end]
            own.give()
        own.give()
        own.exchange.wait()
        assert same(found, whole)
        found = torch.zeros_like(whole)
        found[rows] = whole[rows]
        mine.gather(found, shares, root).wait()
        assert place != root or same(found, whole)
        found = whole.clone() if place == root else torch.zeros_like(whole)
        mine.broadcast(found, root, pieces=pieces).wait()
        assert same(found, whole)

    each(of(members, ring, little), run)


@settings(max_examples=60)
@given(CASE, DTYPES)
def test_sums_have_the_bits_of_torchs_in_the_order_said(
    members: list[Fabric], case: tuple[list[int], list[int], int, int, int], dtype: torch.dtype
) -> None:
    """A share is summed from the member behind its owner round to the owner, by ring and in one shot alike."""
    order, shares, pieces, little, seed = case
    ring, size = order[: len(shares)], len(shares)
    numbers = torch.Generator().manual_seed(seed)
    parts = [torch.randn((sum(shares), COLUMNS), generator=numbers).to(dtype) for _ in ring]

    def run(place: int, mine: Collectives) -> None:
        rows = bounds(shares)[place]
        found = parts[place].clone()
        mine.reduce_scatter(found, shares, pieces=pieces).exchange.wait()
        wanted = in_order([parts[(place + step) % size][rows] for step in range(1, size + 1)])
        assert same(found[rows], wanted)

    each(of(members, ring, little), run)


@settings(max_examples=40)
@given(CASE, DTYPES, st.integers(0, 50))
def test_all_reduce_gives_all_the_same_bits(
    members: list[Fabric], case: tuple[list[int], list[int], int, int, int], dtype: torch.dtype, length: int
) -> None:
    """By ring each part in its own order, in one shot all in the ring's; of any shape, in place."""
    order, shares, _, little, seed = case
    ring, size = order[: len(shares)], len(shares)
    numbers = torch.Generator().manual_seed(seed)
    parts = [torch.randn((2, length), generator=numbers).to(dtype) for _ in ring]

    def run(place: int, mine: Collectives) -> torch.Tensor:
        found = parts[place].clone()
        assert mine.sum(found) is found
        return found

    found = each(of(members, ring, little), run)
    assert all(same(one, found[0]) for one in found)
    if little == ONE_SHOT:
        assert same(found[0], in_order(parts))
        return
    flat = [part.view(-1) for part in parts]
    for place, cut in enumerate(bounds(evenly(2 * length, size))):
        wanted = in_order([flat[(place + step) % size][cut] for step in range(1, size + 1)])
        assert same(found[0].view(-1)[cut], wanted)


@pytest.mark.parametrize("little", [RING, ONE_SHOT])
def test_shares_of_a_sum_go_off_as_they_are_given(members: list[Fabric], little: int) -> None:
    """A member may compute them in any order, and no share is looked at before it is given."""
    shares = [4, 0, 7, 2, 5]
    parts = [torch.randn(sum(shares), COLUMNS) for _ in shares]

    def run(place: int, mine: Collectives) -> None:
        found = torch.full_like(parts[place], float("nan"))
        reduction = mine.reduce_scatter(found, shares, given=False)
        assert sorted(reduction.order) == list(range(MOST)) and not reduction.exchange.done
        for at in random.Random(place).sample(reduction.order, MOST):
            found[bounds(shares)[at]] = parts[place][bounds(shares)[at]]
            reduction.give(at)
        reduction.exchange.wait()
        rows = bounds(shares)[place]
        assert same(found[rows], in_order([parts[(place + step) % MOST][rows] for step in range(1, MOST + 1)]))

    each(of(members, range(MOST), little), run)


def test_bytes_are_counted_by_label_and_kind(members: list[Fabric]) -> None:
    """A gather of N rows of F numbers among K members sends and receives (K - 1) N F / K numbers in each, by ring and
    in one shot, and a sum by ring twice that, by label."""
    rows, labels = 3 * MOST, {RING: "ring", ONE_SHOT: "one shot"}
    for little, label in labels.items():

        def run(place: int, mine: Collectives, label: str = label) -> None:
            mine.all_gather(torch.zeros(rows, COLUMNS), [3] * MOST, label=label).wait()
            mine.all_reduce(torch.zeros(rows, COLUMNS), label=f"{label} sum").wait()

        each(of(members, range(MOST), little), run)
    exact = (MOST - 1) * rows * COLUMNS // MOST * 4
    for member in members:
        counts = member.counts.by_label()
        for label in labels.values():
            gathered = counts[label, Kind.GATHER]
            assert (gathered.sent, gathered.received) == (exact, exact)
        by_ring = [counts["ring sum", kind] for kind in (Kind.REDUCE, Kind.GATHER)]
        assert [(each.sent, each.received) for each in by_ring] == [(exact, exact)] * 2
        at_once = counts["one shot sum", Kind.REDUCE]
        assert at_once.sent == at_once.received == (MOST - 1) * rows * COLUMNS * 4
        assert member.counts.total.sent >= 4 * exact


def test_tensors_go_from_one_to_another(members: list[Fabric]) -> None:
    """Of any dtype and length, both ways at once, under several tags, asked for before or after they come."""
    sizes = [0, 1, 700, 300_000]
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.int64)

    def content(rank: int, tag: int, size: int) -> torch.Tensor:
        return (torch.arange(size) % 97 + 100 * rank + tag).to(dtypes[tag])

    def run(place: int, mine: Collectives) -> None:
        behind, before = (place + 1) % MOST, (place - 1) % MOST
        sending = [mine.send(content(place, tag, size), behind, tag) for size in sizes for tag in range(4)]
        for size in sizes:
            found = [torch.empty(size, dtype=dtype) for dtype in dtypes]
            for tag in (2, 0, 3, 1) if size < 1000 else range(4):
                mine.receive(found[tag], before, tag).wait()
                assert same(found[tag], content(before, tag, size))
        for one in sending:
            one.wait()

    each(of(members, range(MOST), ONE_SHOT), run)


def test_runs_give_each_row_once_and_what_has_come_together(members: list[Fabric]) -> None:
    """Who asks when all is there gets one range; who asks as tiles come gets every row once."""
    collectives = of(members, range(MOST), RING)
    shares = [3] * MOST

    def gathered(at: int, one: Collectives) -> list[range]:
        whole = torch.zeros(sum(shares), COLUMNS)
        whole[bounds(shares)[at]] = at
        exchange = one.all_gather(whole, shares, pieces=2)
        if at % 2:
            exchange.wait()
        return list(exchange.runs())

    for at, runs in enumerate(each(collectives, gathered)):
        assert sorted(row for rows in runs for row in rows) == list(range(sum(shares)))
        assert len(runs) == 1 or not at % 2


def test_several_go_on_at_once(members: list[Fabric]) -> None:
    """Collectives that began earlier may be waited for later, long and short ones mixed."""

    def run(place: int, mine: Collectives) -> None:
        long = [torch.zeros(50 * MOST, 1000) for _ in range(4)]
        short = [torch.zeros(MOST, 2) for _ in range(4)]
        begun = []
        for number, (one, other) in enumerate(zip(long, short, strict=True)):
            one[50 * place : 50 * (place + 1)] = other[place] = 10 * number + place
            begun += [mine.all_gather(one, [50] * MOST), mine.all_gather(other, [1] * MOST)]
        for exchange in reversed(begun):
            exchange.wait()
        for number, (one, other) in enumerate(zip(long, short, strict=True)):
            assert other[:, 0].tolist() == one[::50, 0].tolist() == [10.0 * number + at for at in range(MOST)]

    each([Collectives(member) for member in members], run)


def test_what_cannot_be_is_said(members: list[Fabric]) -> None:
    """Before anything is sent: nobody waits for what will never come."""
    member = members[0]
    mine, outside = Collectives(member), Collectives(member, [1, 2])
    rows = torch.zeros(MOST, 2)
    for wrong in (
        lambda: Collectives(member, [0, 0]),
        lambda: Collectives(member, [0, MOST]),
        lambda: mine.all_gather(rows, [1] * (MOST - 1)),
        lambda: mine.all_gather(rows, [2] * MOST),
        lambda: mine.all_gather(rows, [-1, 3, 1, 1, 1]),
        lambda: mine.all_gather(torch.zeros(2, MOST).T, [1] * MOST),
        lambda: mine.all_gather(torch.zeros((MOST, 2), device="meta"), [1] * MOST),
        lambda: mine.reduce_scatter(rows.long(), [1] * MOST),
        lambda: mine.all_reduce(rows.double()),
        lambda: outside.all_reduce(rows),
        lambda: outside.all_gather(rows, [1, 4]),
        lambda: mine.send(rows, 0, 1),
        lambda: mine.receive(rows, MOST, 1),
        lambda: mine.send(rows, 1, -1),
        lambda: mine.receive(rows, 1, 64),
    ):
        with pytest.raises(ValueError):
            wrong()
    assert member.failure is None


@given(st.integers(2, 5), st.integers(0, 4), DTYPES, st.sampled_from([0, 1, 31_999, 32_000, 32_001, 70_000]))
@settings(max_examples=30)
def test_a_sum_may_land_in_any_of_its_parts(count: int, at: int, dtype: torch.dtype, length: int) -> None:
    """The order stays, and so do the bits."""
    parts = [torch.randn(length, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in range(count)]
    wanted, into = in_order(parts), parts[at % count]
    sum_in_order(parts, into)
    assert same(into, wanted)


@pytest.mark.parametrize("little", [0, 2**20])
def test_numbers_begin_again_behind_the_last(little: int) -> None:
    """A group that decodes for days goes on past the last number that a header has room for, by ring and in one shot,
    also where one member is ahead of the other."""
    with fabrics(2) as made:
        for fabric in made:
            fabric._begun = dict.fromkeys(fabric._begun, NUMBERS - 3)
            for link in fabric._links.values():
                link.incoming._inbox._begun = NUMBERS - 3
        collectives = of(made, (0, 1), little)

        def sums(place: int, mine: Collectives) -> list[float]:
            time.sleep(0.2 * place)
            tensors = [torch.full((50,), float(number)) for number in range(6)]
            for exchange in [mine.all_reduce(tensor) for tensor in tensors]:
                exchange.wait(10)
            return [tensor[0].item() for tensor in tensors]

        assert each(collectives, sums) == [[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]] * 2
        assert [*made[0]._begun.values()] == [3]
