"""What ends a fabric, and whose name is said; what a new epoch leaves behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from liars import SECRET
from peers_together import KEY, LOOPBACK, boards_of, fabrics, together

from peers.board import PeerLost
from peers.collectives import Collectives
from peers.fabric import EpochOver, Fabric
from peers.frames import Kind, PeerFrame, pack
from peers.greeting import PeerDoor
from peers.group import Group
from peers.incoming import _Readable
from peers.membership import join
from peers.opening import open_links
from peers.rendezvous import listening

ROOT = Path(__file__).resolve().parents[2]

Result = TypeVar("Result")

SILENT_S = 3.0
"""More than a pulse's two seconds; the product's own is ten."""

MEMBER = """
import asyncio, os, sys
import torch
from peers.collectives import Collectives
from peers.fabric import Fabric
from peers.membership import join

def work(member):
    with Fabric.open(member.board, member.rank, member.size, member.address, silent_s=float(sys.argv[2])) as fabric:
        collectives = Collectives(fabric)
        try:
            for number in range(1_000_000):
                collectives.sum(torch.ones(4))
        except RuntimeError as error:
            print(error, flush=True)

async def main():
    async with join(sys.argv[1], os.environ["SECRET"], "member", int(sys.argv[3])) as member:
        await asyncio.to_thread(work, member)

asyncio.run(main())
"""


@contextmanager
def processes(where: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Members 1, 2, … that sum for ever, and then say why they no longer do."""
    environment = {**os.environ, "SECRET": SECRET, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with ExitStack() as stack:
        started = []
        for seat in range(1, count + 1):
            command = [sys.executable, "-c", MEMBER, where, str(SILENT_S), str(seat)]
            process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
        yield started


@pytest.mark.system
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_member_that_dies_or_hangs_ends_all_waits_and_is_named(how: signal.Signals) -> None:
    """In every other process: before the time of silence where it is killed, and soon after it where it is stopped."""
    async with listening(LOOPBACK, 0, SECRET) as rendezvous:
        group = rendezvous.open(1, {1: b"", 2: b""})
        with processes(f"{LOOPBACK}:{rendezvous.port}", 2) as (stays, goes):
            lost, took = await _thread(lambda: _sum_until_lost(group, goes.pid, how))
            assert "member 2 is gone" in str(lost) and lost.rank == 2
            assert took < (SILENT_S if how is signal.SIGKILL else 5 * SILENT_S)
            said = await _thread(stays.stdout.readline)  # type: ignore[union-attr]
            assert "member 2 is gone" in said or (how is signal.SIGKILL and "(member)" in said)


async def _thread(call: Callable[[], Result]) -> Result:
    """What a call returns that blocks."""
    return await asyncio.wait_for(asyncio.to_thread(call), 60)


def _sum_until_lost(group: Group, pid: int, how: signal.Signals) -> tuple[PeerLost, float]:
    with Fabric.open(group.board, 0, 3, LOOPBACK, within_s=60.0, silent_s=SILENT_S) as fabric:
        collectives = Collectives(fabric)
        for _ in range(20):
            assert collectives.sum(torch.ones(4)).tolist() == [3.0] * 4
        began = time.monotonic()
        os.kill(pid, how)
        with pytest.raises(PeerLost) as lost:
            while True:
                collectives.sum(torch.ones(4))
        return lost.value, time.monotonic() - began


def test_a_group_turns_in_the_middle_of_long_collectives() -> None:
    """Of all sizes of tiles, however far each member has come: afterwards everything is right, many times."""
    with fabrics(3) as members:
        whole = [torch.zeros(3, 200_000) for _ in members]

        def interrupted(rank: int, old: Collectives) -> None:
            try:
                for _ in range(2 * rank + 1):
                    old.all_gather(whole[rank], [1, 1, 1]).wait()
            except EpochOver:
                pass

        def turned(rank: int, epoch: int) -> list[float]:
            members[rank].turn(epoch)
            collectives = Collectives(members[rank], [2, 1, 0])
            mine = torch.zeros(3, 50_000)
            mine[2 - rank] = rank + epoch
            collectives.all_gather(mine, [1, 1, 1]).wait()
            return [float(row.unique()) for row in mine]

        for epoch in range(1, 9):
            before = [Collectives(member) for member in members]
            working = [threading.Thread(target=interrupted, args=each) for each in enumerate(before)]
            for each in working:
                each.start()
            time.sleep(0.003 * epoch)
            found = together([partial(turned, rank, epoch) for rank in range(3)])
            assert found == [[2.0 + epoch, 1.0 + epoch, 0.0 + epoch]] * 3
            for each in working:
                each.join(20)
            with pytest.raises(EpochOver):
                before[0].all_gather(whole[0], [1, 1, 1])


def test_who_leaves_hears_the_others_leave_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody reads any more, and the next look at such links is far away."""
    for name in ("peers.fabric.LOOK_EVERY_S", "peers.incoming.LOOK_EVERY_S", "peers.fabric.LEAVE_WITHIN_S"):
        monkeypatch.setattr(name, 90.0)
    with fabrics(3) as members:
        together([partial(Collectives(each).sum, torch.ones(4)) for each in members])
        began = time.monotonic()
        together([each.close for each in members], 120)
        assert time.monotonic() - began < 30


def test_who_leaves_is_heard_by_a_thread_that_is_woken_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told only once that it shall read: it waits for who told it to let go, and reads."""
    by_thread = _Readable.by_thread

    def slowly(readable: _Readable, wanted: bool) -> None:
        by_thread(readable, wanted)
        time.sleep(0.05)

    monkeypatch.setattr(_Readable, "by_thread", slowly)
    test_who_leaves_hears_the_others_leave_at_once(monkeypatch)


def test_who_says_nothing_is_lost_and_who_pulses_is_not() -> None:
    """Silence is noticed by a member that waits for nothing, too; one that only says that it lives is let be."""
    boards, began = boards_of(3), time.monotonic()
    with ExitStack() as stack:
        first, second, links = together(
            [
                lambda: Fabric.open(boards[0], 0, 3, LOOPBACK, silent_s=SILENT_S),
                lambda: Fabric.open(boards[1], 1, 3, LOOPBACK, silent_s=SILENT_S),
                lambda: open_links(boards[2], PeerDoor(KEY, 0, 2, 3), LOOPBACK),
            ]
        )
        for each in (*links.values(), first, second):
            stack.callback(each.close)
        while first.failure is None and time.monotonic() - began < 20:
            links[1].sendall(pack(PeerFrame(Kind.PULSE, 0)))
            time.sleep(0.1)
        assert time.monotonic() - began >= SILENT_S
        assert "member 2 is gone" in str(first.failure)
        while second.failure is None and time.monotonic() - began < 20:
            time.sleep(0.05)
        assert "member 2 is gone, says member 0" in str(second.failure)


def test_who_leaves_has_sent_all_before() -> None:
    """The others get what was on its way; only what it will never send is lost, by its name."""
    length = 3_000_000
    with fabrics(3) as members:
        collectives = [Collectives(member) for member in members]
        collectives[2].send(torch.ones(length), 0, 1)
        closing = threading.Thread(target=members[2].close)
        closing.start()
        found = torch.zeros(length)
        collectives[0].receive(found, 2, 1).wait(20)
        closing.join(20)
        assert bool(found.all())
        sent = collectives[1].send(torch.ones(3), 0, 1)
        collectives[0].receive(found[:3], 1, 1).wait(20)
        sent.wait(20)
        with pytest.raises(PeerLost, match="member 2 has left"):
            collectives[0].receive(found, 2, 1)


def test_the_end_of_the_board_is_the_end_of_the_fabric() -> None:
    """Whoever hears first that the group is over: all waits end."""
    boards = boards_of(2)
    first, second = together([partial(Fabric.open, boards[rank], rank, 2, LOOPBACK) for rank in range(2)])
    exchange = Collectives(first).all_gather(torch.zeros(2, 6), [1, 1])
    boards[0].lose("member 7 (attic) is gone")
    with pytest.raises(PeerLost, match="attic"):
        exchange.wait(20)
    first.close()
    second.close()


def test_a_fabric_needs_a_key() -> None:
    """And a rank and an epoch that there can be."""
    board = boards_of(1, key=b"")[0]
    with pytest.raises(ValueError):
        Fabric.open(board, 0, 1, LOOPBACK)
    for rank, size, epoch in ((1, 1, 0), (-1, 1, 0), (0, 1, -1), (0, 1, 2**32)):
        with pytest.raises(ValueError):
            Fabric.open(boards_of(1)[0], rank, size, LOOPBACK, epoch=epoch)


async def test_members_meet_by_their_groups_secret() -> None:
    """Host and member derive the same key, and find each other over the board."""
    async with listening(LOOPBACK, 0, SECRET) as rendezvous:
        group = rendezvous.open(9, {1: b""})
        async with join(f"{LOOPBACK}:{rendezvous.port}", SECRET, "member") as member:
            assert member.board.key == group.board.key != b""

            def meet() -> None:
                made = together(
                    [
                        lambda: Fabric.open(group.board, 0, 2, LOOPBACK, epoch=9),
                        lambda: Fabric.open(member.board, 1, 2, member.address, epoch=9),
                    ]
                )
                found = together([partial(Collectives(one).sum, torch.ones(2)) for one in made])
                assert [each.tolist() for each in found] == [[2.0, 2.0]] * 2
                together([each.close for each in made])

            await _thread(meet)


def test_where_the_kernel_has_no_epoll_threads_read_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: the same tensors come, early long ones too, and who leaves is named."""
    monkeypatch.delattr("select.epoll", raising=False)
    with fabrics(3) as members:
        collectives = [Collectives(member) for member in members]
        found = together([partial(one.sum, torch.full((70_000,), rank + 1.0)) for rank, one in enumerate(collectives)])
        assert all(bool((each == 6.0).all()) for each in found)
        sent = collectives[2].send(torch.ones(300_000), 0, 1)
        time.sleep(0.2)
        rows = torch.zeros(300_000)
        collectives[0].receive(rows, 2, 1).wait(20)
        sent.wait(20)
        assert bool(rows.all())
        waiting = collectives[0].receive(rows, 1, 1)
        members[1].close()
        with pytest.raises(PeerLost, match="member 1 has left"):
            waiting.wait(20)


@pytest.mark.parametrize("what", ["a socket that cannot be set up", "a thread that cannot be started"])
def test_nothing_stays_of_links_that_are_opened_half_way(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails behind the greeting, and while somebody still has the error: both other members see the end."""
    boards = boards_of(3)
    made: list[object] = []

    def fail_once_two_are(*given: object) -> None:
        made.append(given)
        if len(made) == 2:
            raise OSError("a test") if what.startswith("a socket") else RuntimeError("a test")

    if what.startswith("a socket"):
        monkeypatch.setattr("peers.link._set_up", fail_once_two_are)
    else:
        start = threading.Thread.start

        def started(thread: threading.Thread) -> None:
            if thread.name.startswith("link-2"):
                fail_once_two_are(thread)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", started)

    def opened() -> Exception:
        with pytest.raises((PeerLost, RuntimeError), match="a test") as failed:
            Fabric.open(boards[0], 0, 3, LOOPBACK)
        return failed.value

    error, *others = together(
        [opened, *(partial(open_links, boards[rank], PeerDoor(KEY, 0, rank, 3), LOOPBACK) for rank in (1, 2))]
    )
    assert getattr(error, "rank", 2) in (1, 2)
    for links in others:
        links[0].settimeout(10)
        with suppress(ConnectionResetError):
            assert links[0].recv(1) == b""
        for each in links.values():
            each.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("link-") and joined(each)]


def joined(thread: threading.Thread) -> bool:
    """Whether a thread goes on for seconds."""
    thread.join(10)
    return thread.is_alive()
