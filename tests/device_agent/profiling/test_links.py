"""Links are measured by all members together, and all agree on what depends on all."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from peers_together import fabrics, together
from samples import sample

from device_agent.profiling.links import MOST_BYTES, LinksMeasured, measure_links
from peers.board import PeerLost
from peers.collectives import Collectives

NAMES = ["a", "b", "c", "d"]


@pytest.mark.parametrize("size", sample([2, 3, 4], "3"))
def test_all_links_are_measured(size: int) -> None:
    """Each member has its own to each other; what is exchanged by all is the same in all; and the fabric is as good
    as before."""
    with fabrics(size) as links:
        measured: list[LinksMeasured] = together(
            [partial(measure_links, each, NAMES[:size], quick=True) for each in links]
        )
        for rank, one in enumerate(measured):
            pairs = sorted((link.source, link.target) for link in one.links)
            assert pairs == [(NAMES[rank], other) for other in NAMES[:size] if other != NAMES[rank]]
            assert all(1e5 < link.bytes_s < 1e12 and 0 < link.rtt_s < 5 for link in one.links)
            assert one.collectives == measured[0].collectives and one.one_shot_bytes == measured[0].one_shot_bytes
        assert [each.kind for each in measured[0].collectives] == ["all_gather", "reduce_scatter", "all_reduce"]
        assert all(each.devices == size and min(each.seconds.seconds) > 0 for each in measured[0].collectives)
        sums = together([partial(Collectives(each).sum, torch.ones(3)) for each in links])
        assert all(torch.equal(each, torch.full((3,), float(size))) for each in sums)


def test_some_of_a_group_are_measured_by_themselves() -> None:
    """A portal that computes nothing takes no part in their ring; a byte of their exchanges costs a product
    something or nothing."""
    with fabrics(3) as links:
        measured: list[LinksMeasured] = together(
            [partial(measure_links, each, NAMES[:3], ring=(1, 2)) for each in links[1:]]
        )
    assert [[(link.source, link.target) for link in one.links] for one in measured] == [[("b", "c")], [("c", "b")]]
    assert all(each.devices == 2 for each in measured[0].collectives)
    assert all(0 <= one.byte_cost_s < 1e-3 for one in measured)


def test_one_member_has_no_links() -> None:
    """And names are asked for in any case."""
    with fabrics(1) as [alone]:
        assert measure_links(alone, ["a"]) == LinksMeasured((), (), 0)
        with pytest.raises(ValueError, match="2 names"):
            measure_links(alone, ["a", "b"])


def test_who_lies_about_a_size_is_lost() -> None:
    """No memory is taken for more than anybody sends to measure."""
    with fabrics(2) as [here, liar]:

        def lie() -> None:
            collectives = Collectives(liar)
            for _ in range(11):
                collectives.receive(torch.zeros(1), 0, 8).wait()
                collectives.send(torch.zeros(1), 0, 8)
            # What it is sent it takes; then it says that it sends more than there can be.
            while True:
                head = torch.zeros(1, dtype=torch.int64)
                collectives.receive(head, 0, 9).wait()
                if not int(head):
                    break
                collectives.receive(torch.zeros(int(head), dtype=torch.uint8), 0, 10).wait()
                collectives.send(torch.zeros(1), 0, 11)
            for _ in range(11):
                collectives.send(torch.zeros(1), 0, 8)
                collectives.receive(torch.zeros(1), 0, 8).wait()
            collectives.send(torch.tensor([MOST_BYTES + 1]), 0, 9)

        def measure() -> None:
            with pytest.raises(PeerLost, match="member 1 says that it sends"):
                measure_links(here, ["a", "b"])

        together([measure, lie])


def test_a_member_that_leaves_ends_the_measuring() -> None:
    """Nobody waits for it."""
    with fabrics(2) as [here, gone]:
        gone.close()
        with pytest.raises(PeerLost):
            measure_links(here, ["a", "b"])
