"""When exchanges end, beside formulas and bounds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from group_plans import TINY, profile
from hypothesis import given
from hypothesis import strategies as st

from device_agent.planning.course import Course
from device_agent.planning.exchanges import Ports, at_once, direct_scatter, ring_bytes, ring_gather, ring_scatter
from device_agent.planning.lan import Lan
from device_agent.planning.profile import Collective
from device_agent.planning.table import Table

BYTES_S, RTT_S = 1e6, 2e-3
SECOND = st.floats(0, 0.1)
SIZE = st.integers(0, 50_000)


def lan(members: int, bytes_s: float = BYTES_S, collectives: tuple[Collective, ...] = ()) -> Lan:
    measured = profile(TINY, [1e9] * members, bytes_s, rtt_s=RTT_S, collectives=collectives)
    return Lan(measured, tuple(device.name for device in measured.devices), "a")


def free(nodes: int) -> Ports:
    return Ports([0.0] * nodes, [0.0] * nodes)


@st.composite
def rings(draw: st.DrawFn) -> tuple[list[float], list[int], list[list[float]]]:
    members = draw(st.integers(1, 5))
    numbers = st.lists(SECOND, min_size=members, max_size=members)
    sizes = st.lists(SIZE, min_size=members, max_size=members)
    return draw(numbers), draw(sizes), draw(st.lists(numbers, min_size=members, max_size=members))


@pytest.mark.parametrize("ring", [ring_gather, ring_scatter])
@pytest.mark.parametrize("members", [1, 2, 3, 6])
@pytest.mark.parametrize("product_s", [0.0, 0.005, 0.05])
def test_each_tile_takes_the_longer_of_product_and_transfer(ring: object, members: int, product_s: float) -> None:
    """With even tiles, links and members: K products, or one and K - 1 transfers (Galaxy+ III-D)."""
    size = 10_000
    transfer_s = size / BYTES_S + RTT_S / 2
    products = [[product_s] * members] * members
    ends = ring(lan(members), free(members), [1.0] * members, [size] * members, products)  # type: ignore[operator]
    assert ends == pytest.approx([1.0 + (members - 1) * max(product_s, transfer_s) + product_s] * members)


@pytest.mark.parametrize("ring", [ring_gather, ring_scatter])
@given(of=rings())
def test_no_ring_beats_its_bounds_or_loses_to_doing_one_after_the_other(
    ring: object, of: tuple[list[float], list[int], list[list[float]]]
) -> None:
    """Whatever the shares: not before a member's own products, nor before all that it must send has left; and not after
    everybody had waited for everything."""
    begins, sizes, products = of
    members = len(begins)
    ends = ring(lan(members), free(members), begins, sizes, products)  # type: ignore[operator]
    sent = ring_bytes(sizes, scatter=ring is ring_scatter)
    for member in range(members):
        assert ends[member] >= begins[member] + sum(products[member]) - 1e-9
        if members > 1:
            receiver = (member + 1) % members
            assert ends[receiver] >= begins[member] + sent[member] / BYTES_S - 1e-9
    slowest = max(begins) + sum(max(row) for row in zip(*products, strict=True)) * members
    assert max(ends) <= slowest + (members - 1) * (max(sizes) / BYTES_S + RTT_S / 2) + 1e-9


@given(of=rings(), slower=st.floats(1, 20))
def test_a_slower_link_ends_nothing_sooner(of: tuple[list[float], list[int], list[list[float]]], slower: float) -> None:
    """Nor does a slower product."""
    begins, sizes, products = of
    longer = [[slower * product for product in row] for row in products]
    for ring in (ring_gather, ring_scatter):
        ends = ring(lan(len(begins)), free(5), begins, sizes, products)
        for later in (
            ring(lan(len(begins), BYTES_S / slower), free(5), begins, sizes, products),
            ring(lan(len(begins)), free(5), begins, sizes, longer),
        ):
            assert all(late >= end - 1e-9 for late, end in zip(later, ends, strict=True))


@given(st.lists(SIZE, min_size=2, max_size=6))
def test_a_gather_sends_all_but_the_successors_part(sizes: list[int]) -> None:
    """And a reduce-scatter all but one's own: the same bytes in all."""
    total = sum(sizes)
    assert ring_bytes(sizes) == [total - after for after in [*sizes[1:], sizes[0]]]
    assert ring_bytes(sizes, scatter=True) == [total - own for own in sizes]


@given(st.data(), st.integers(1, 5))
def test_at_once_every_port_takes_its_time(data: st.DataObject, nodes: int) -> None:
    """Nothing comes before its port could have sent or taken all that came there, and nobody waits without need."""
    row = st.lists(SIZE, min_size=nodes, max_size=nodes)
    parts = data.draw(st.lists(row, min_size=nodes, max_size=nodes))
    begins = data.draw(st.lists(SECOND, min_size=nodes, max_size=nodes))
    came = at_once(lan(nodes), free(nodes), begins, parts)
    others = [[size if i != j else 0 for j, size in enumerate(row)] for i, row in enumerate(parts)]
    for node in range(nodes):
        assert came[node][node] == begins[node]
        sent = [came[node][other] for other in range(nodes) if others[node][other]]
        if sent:
            assert max(sent) >= begins[node] + sum(others[node]) / BYTES_S
        got = [came[other][node] for other in range(nodes) if others[other][node]]
        if got:
            assert max(got) >= min(begins) + sum(row[node] for row in others) / BYTES_S
    everything = sum(map(sum, others)) / BYTES_S + RTT_S / 2
    assert max(max(row) for row in came) <= max(begins) + everything + 1e-9


def test_a_port_that_is_still_busy_sends_later() -> None:
    """A member that runs ahead cannot send two layers' bytes at once."""
    ports = free(2)
    parts = [[0, 10_000], [0, 0]]
    first, second = (at_once(lan(2), ports, [0.0, 0.0], parts)[0][1] for _ in range(2))
    assert second - first == pytest.approx(10_000 / BYTES_S)
    ends = ring_gather(lan(2), ports, [0.0, 0.0], [10_000, 0], [[0.0] * 2] * 2)
    assert ends == pytest.approx([0.0, 3 * 10_000 / BYTES_S + RTT_S / 2])


def test_what_was_measured_stands_for_the_links() -> None:
    """An all-gather that was measured to take three times what the links say takes three times as long."""
    sizes: Sequence[float] = [10_000] * 3
    expected = 2 * (10_000 / BYTES_S + RTT_S / 2)
    measured = Collective("all_gather", 3, Table(((30_000,),), (3 * expected,)))
    none = [[0.0] * 3] * 3
    among_four = Collective("all_gather", 4, Table(((30_000,),), (3 * expected,)))
    for known, times in (((), 1), ((measured,), 3), ((among_four,), 1)):
        ends = ring_gather(lan(3, collectives=known), free(3), [0.0] * 3, sizes, none)
        assert ends == pytest.approx([times * expected] * 3)


def test_a_device_that_was_not_measured_is_refused() -> None:
    """By name, member or portal."""
    measured = profile(TINY, [1e9], 1e6)
    for members, portal in ((("z",), "a"), (("a",), "z")):
        with pytest.raises(ValueError, match="nothing was measured of z"):
            Lan(measured, members, portal)


@given(of=rings())
def test_parts_that_go_straight_to_their_owners_are_there_no_later_than_round_the_ring(
    of: tuple[list[float], list[int], list[list[float]]],
) -> None:
    """As many bytes leave each port, and nobody waits for what another adds."""
    begins, sizes, products = of
    members = len(begins)
    straight, round_ = (
        scatter(lan(members), free(members), begins, sizes, products) for scatter in (direct_scatter, ring_scatter)
    )
    assert all(one <= other + 1e-9 for one, other in zip(straight, round_, strict=True))
    own = [begin + sum(of_one) for begin, of_one in zip(begins, products, strict=True)]
    sent = ring_bytes(sizes, scatter=True)
    assert all(one >= least - 1e-9 for one, least in zip(straight, own, strict=True))
    last = max(straight)
    assert all(last >= begin + size / BYTES_S - 1e-9 for begin, size in zip(begins, sent, strict=True))


def test_an_all_reduce_takes_what_was_measured_of_all_reduces() -> None:
    """Its two rings are not slower by what gathers and sums were found to take by themselves."""
    took = {"all_gather": 0.5, "reduce_scatter": 0.9, "all_reduce": 0.7}
    kinds = tuple(Collective(kind, 3, Table(((100_000,),), (seconds,))) for kind, seconds in took.items())
    course = Course(lan(3, collectives=kinds), 1)
    course.all_reduce(100_000)
    assert course.at[:3] == pytest.approx([0.7] * 3)
