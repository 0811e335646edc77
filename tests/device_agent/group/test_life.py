"""How one life of a group ends: soon, whatever the members do."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from groups import plan_of
from peers_together import fabrics

from device_agent.group.asking.asks import GroupAsk
from device_agent.group.asking.life import END_WITHIN_S, GroupLife
from device_agent.group.holding.held import HeldLayer
from device_agent.group.messages.heads import OpenHead, RowsHead
from device_agent.group.steps.worker import Worker
from peers.collectives import Collectives
from split_model.checkpoint import Checkpoint

SOON_S = 3.0
"""More than a busy machine needs to end some threads."""


def comes(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_end_does_not_wait_for_a_member_that_does_nothing(tiny: Path) -> None:
    """A step under way of which nothing comes is given up after some seconds, and so are the links."""
    spec = Checkpoint.open(tiny).spec
    layers = plan_of(spec, "pipeline", ["one"]).layers
    with fabrics(2) as links:
        life = GroupLife(links[0], layers, (1,), None)
        life.start(lambda *lost: None)
        life.put(GroupAsk(OpenHead(1, 10)))
        answers: list[torch.Tensor] = []
        life.put(GroupAsk(RowsHead(1, 0, 2, 1), torch.zeros(2, spec.hidden_size), answers.append))
        comes(lambda: bool(life.steps))
        began = time.monotonic()
        life.end()
        assert time.monotonic() - began < 2 * END_WITHIN_S + SOON_S
        assert not answers and links[0].failure is not None
        names = {thread.name for thread in threading.enumerate()}
        assert not names & {"group-asks", "group-takes"}


def test_a_member_that_goes_ends_it_at_once(tiny: Path) -> None:
    """With its rank, once; and then its end takes no time."""
    spec = Checkpoint.open(tiny).spec
    lost: list[tuple[str, int | None]] = []
    with fabrics(3) as links:
        life = GroupLife(links[0], plan_of(spec, "pipeline", ["one", "two"]).layers, (1, 2), None)
        life.start(lambda why, rank: lost.append((why, rank)))
        life.put(GroupAsk(OpenHead(1, 10)))
        life.put(GroupAsk(RowsHead(1, 0, 2, 1), torch.zeros(2, spec.hidden_size), lambda outputs: None))
        links[2].lose("a test", 2)
        comes(lambda: bool(lost))
        assert [rank for _, rank in lost] == [2]
        began = time.monotonic()
        life.end()
        assert time.monotonic() - began < SOON_S


def test_nothing_of_the_portals_part_outlives_it(tiny: Path) -> None:
    """Who still knows a life that has ended, to tell it from the next, keeps no session's keys and values in memory."""
    checkpoint = Checkpoint.open(tiny)
    layers = plan_of(checkpoint.spec, "pipeline", ["one"]).layers
    with fabrics(2) as links:
        held = [HeldLayer.load(checkpoint, layer, at, 0, torch.float32) for at, layer in enumerate(layers)]
        worker = Worker(checkpoint.spec, held, torch.float32, Collectives(links[0], (0,)), (0,), 0)
        life = GroupLife(links[0], layers, (0,), worker)
        life.start(lambda *lost: None)
        answers: list[torch.Tensor] = []
        life.put(GroupAsk(OpenHead(1, 10)))
        life.put(GroupAsk(RowsHead(1, 0, 2, 1), torch.zeros(2, checkpoint.spec.hidden_size), answers.append))
        comes(lambda: bool(answers))
        there = weakref.ref(worker)
        del worker
        life.end()
        assert there() is None
