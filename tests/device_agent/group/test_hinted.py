"""Members that were told where the portal is by whoever said so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import pytest
from groups import FORMED_WITHIN_S, hosted, member_here

from device_agent.group.hinted import hinted
from peers.membership import Unproved
from wire.errors import Code, ConnectionFailed

WHERE = ("first:1", "second:2")


async def tried(failures: dict[str, type[ConnectionFailed]], times: int) -> list[str]:
    """The addresses of so many visits; those to addresses without a failure get a place, and end."""
    visited: list[str] = []

    async def where(useless: Collection[str]) -> str:
        return next((each for each in WHERE if each not in useless), WHERE[0])

    async def visit(placed: Callable[[], None], join: str) -> None:
        visited.append(join)
        if join not in failures:
            return placed()
        raise failures[join](Code.UNAUTHORIZED, "no")

    somewhere = hinted(where, visit)
    for _ in range(times):
        with suppress(ConnectionFailed):
            await somewhere(lambda: None)
    return visited


async def test_who_gave_no_place_is_passed_over_until_all_were_tried() -> None:
    """And who did give one is dialled again."""
    first, second = WHERE
    assert await tried({}, 3) == [first] * 3
    assert await tried({first: Unproved}, 3) == [first, second, second]
    assert await tried(dict.fromkeys(WHERE, Unproved), 5) == [first, second, first, second, first]


@pytest.mark.parametrize(("failure", "code"), [(Unproved, Code.LOST), (ConnectionFailed, Code.UNAUTHORIZED)])
async def test_only_who_proved_to_be_the_portal_refuses_for_good(failure: type[ConnectionFailed], code: Code) -> None:
    """What others say is as if nobody were there."""

    async def where(useless: Collection[str]) -> str:
        return "first:1"

    async def visit(placed: Callable[[], None], join: str) -> None:
        raise failure(Code.UNAUTHORIZED, "no")

    with pytest.raises(ConnectionFailed) as raised:
        await hinted(where, visit)(lambda: None)
    assert raised.value.code is code


async def test_a_liar_who_listens_keeps_no_member_from_its_group(tiny: Path) -> None:
    """One who knows another key, and one who takes the connection and says nothing that proves anything."""

    async def shut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    silent = await asyncio.start_server(shut, "127.0.0.1", 0)
    asked: list[Collection[str]] = []
    async with hosted(tiny, "pipeline", 2) as host, hosted(tiny, "pipeline", 2, key="another key of others") as liar:
        liars = [liar.listens.result(), silent.sockets[0].getsockname()[1]]

        async def where(useless: Collection[str]) -> str:
            asked.append(list(useless))
            ports = [*liars, host.listens.result()]
            return next(each for each in (f"127.0.0.1:{port}" for port in ports) if each not in useless)

        async with member_here(tiny, "one", 0, where=where) as member:
            await asyncio.wait_for(host.formed.wait(), FORMED_WITHIN_S)
            assert not member.done()
    silent.close()
    assert len(asked) == 3
