"""Keys and values of another member: kept as far as there is room, attended to, given back, and gone at the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest
import torch
from peers_together import fabrics

from device_agent.group.holding.held import SessionCaches
from device_agent.group.messages.row_asks import (
    ASK_BYTES,
    AttendAsk,
    BadRowAsk,
    ByeAsk,
    CutAsk,
    FetchAsk,
    FreeAsk,
    Looking,
    PulseAsk,
    StoreAsk,
    read,
    written,
)
from device_agent.group.relief.lodging import Lodging, RowSizes
from device_agent.group.relief.row_link import RowLink
from device_agent.group.rows.step_rows import GroupStretch
from device_agent.planning.moves import LinkPace
from peers.board import PeerLost
from peers.collectives import Collectives
from peers.fabric import Fabric
from split_model.attention import attend
from split_model.partial_attention import attend_part, visible

SIZES = RowSizes(4, 2, 8, torch.float32)


@dataclass
class Both:
    """An owner's link, and where it leads; ``fabric`` is the owner's."""

    link: RowLink
    lodging: Lodging
    fabric: Fabric


@pytest.fixture
def both() -> Iterator[Both]:
    """Two members, the second of which has room for 100 rows."""
    with fabrics(2) as [one, two]:
        lodging = Lodging(Collectives(two), 0, SIZES, two.lose)
        lodging.admit(100)
        yield Both(RowLink(Collectives(one), 1, SIZES, LinkPace(1e9, 1e-4)), lodging, one)
    lodging._thread.join(30)
    assert not lodging._thread.is_alive() and not lodging.rows


def stored(rows: int) -> torch.Tensor:
    """Keys and values of so many rows."""
    return torch.randn((2, rows, 2, 8), generator=torch.Generator().manual_seed(rows))


def test_what_is_stored_comes_back_and_what_has_no_room_is_refused(both: Both) -> None:
    """In pieces, one behind the other; cut back and stored anew; and all of a session is freed at once."""
    rows, link = stored(60), both.link
    assert link.store(7, 3, 0, rows[:, :40].contiguous()).wait().item() == 1
    assert link.store(7, 3, 40, rows[:, 40:].contiguous()).wait().item() == 1
    assert link.store(8, 1, 0, stored(50)).wait().item() == 0 and both.lodging.rows == 60
    assert link.fetch(7, 3, range(30, 50)).wait().equal(rows[:, 30:50])
    link.cut(7, 3, 10)
    link.cut(9, 9, 0)
    assert link.store(7, 3, 10, rows[:, 10:11].contiguous()).wait().item() == 1
    assert link.fetch(7, 3, range(11)).wait().equal(rows[:, :11]) and both.lodging.rows == 11
    link.free(7)
    assert link.store(8, 1, 0, stored(50)).wait().item() == 1 and both.lodging.rows == 50


@pytest.mark.parametrize(("window", "fetches"), [(None, False), (6, False), (None, True)])
def test_queries_see_what_they_would_see_at_home(window: int | None, fetches: bool, both: Both) -> None:
    """Whether they go there or keys and values come here, which they do for many rows. Of three sessions of a step two
    have any away; those beyond a window are not asked for."""
    link, sessions, rows = both.link, [], stored(30)
    for number, away in ((1, 20), (2, 0), (3, 30)):
        session = SessionCaches([], 100, 8, torch.float32, number)
        session.away = [away]
        sessions.append(session)
        if away:
            link.store(number, 0, 0, rows[:, :away].contiguous()).wait()
    stretches = [GroupStretch(23, range(0, 1)), GroupStretch(5, range(1, 3)), GroupStretch(30, range(3, 6))]
    queries = torch.randn((6, 4, 8), generator=torch.Generator().manual_seed(1))
    link.fetches = fetches
    found = link.ask(0, window, stretches, sessions, queries).wait()
    assert set(found) == {0, 2} and found[2].out.shape == (3, 4, 8)
    keys, values = rows[:, :20].transpose(1, 2)
    # Alone, a row sees the last of what is away as its own would be.
    expected = attend(queries[:1], keys[:, :20], values[:, :20], 19, None if window is None else window - 4)
    torch.testing.assert_close(found[0].context, expected, atol=1e-5, rtol=1e-5)
    far = [GroupStretch(90, range(0, 1))]
    assert window is None or not link.ask(0, window, far, sessions[:1], queries[:1]).wait()
    many = torch.randn((40, 4, 8), generator=torch.Generator().manual_seed(2))
    question = link.ask(0, window, [GroupStretch(20, range(40))], sessions[:1], many)
    assert question.asked is None and question.fetched, "it is less to carry"
    mask = visible(20, 40, range(20), window)
    torch.testing.assert_close(question.wait()[0].out, attend_part(many, keys, values, mask).out, atol=1e-5, rtol=1e-5)


def test_room_that_is_needed_is_waited_for(both: Both) -> None:
    """Nothing more is taken then, and the wait ends as the owner takes its rows back."""
    both.link.store(1, 0, 0, stored(40)).wait()
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(both.lodging.freeze(10)))
    waiting.start()
    while both.link.store(1, 1, 0, stored(5)).wait().item():
        both.link.cut(1, 1, 0)  # It has not frozen yet.
    assert not found
    both.link.cut(1, 0, 10)
    waiting.join(30)
    assert found == [10]


def test_who_asks_for_what_is_not_there_ends_the_life(both: Both) -> None:
    """For both, and the owner is told; and so does who never takes its rows back."""
    with pytest.raises(PeerLost):
        both.link.fetch(1, 0, range(5)).wait()
    assert both.fabric.failure is not None


def test_rows_that_stay_where_room_is_needed_end_the_life(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that hangs does not hang the other."""
    monkeypatch.setattr("device_agent.group.relief.lodging.GONE_WITHIN_S", 0.1)
    both.link.store(1, 0, 0, stored(40)).wait()
    with pytest.raises(PeerLost, match="has not taken back"):
        both.lodging.freeze(0)


def test_questions_are_read_as_they_were_written() -> None:
    """All kinds; anything else is refused, and so are more rows than a step has."""
    parts = tuple(Looking(2**32 - 1, 2**24, 4096 // 16, 2**24) for _ in range(15))
    for ask in (
        StoreAsk(1, 2, 3, 4),
        FetchAsk(1, 2, 3, 4),
        CutAsk(1, 2, 3),
        FreeAsk(1),
        AttendAsk(2**31, 2**24, parts),
        PulseAsk(),
        ByeAsk(),
    ):
        assert len(written(ask)) == ASK_BYTES and read(written(ask)) == ask
    for data in (
        b"",
        b"\0\1\xc1",
        b"\xff\xff",
        msgspec.msgpack.encode([9]),
        written(FreeAsk(1)).numpy().tobytes()[:-1] + b"1",
    ):
        with pytest.raises(BadRowAsk):
            read(torch.frombuffer(bytearray(data.ljust(ASK_BYTES, b"\0")), dtype=torch.uint8))
    with pytest.raises(BadRowAsk, match="too many"):
        read(written(AttendAsk(0, 0, (Looking(1, 0, 4096, 1), Looking(2, 0, 1, 1)))))
