"""A member that comes again and again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from peers import staying
from peers.membership import Unproved
from peers.staying import stay
from wire.errors import Code, ConnectionFailed

WRONG = Unproved(Code.UNAUTHORIZED, "the key is wrong")


class Enough(Exception):
    """The test has seen enough."""


async def visited(*outcomes: ConnectionFailed | None) -> int:
    """How many visits there were until one of these outcomes, one after the other, was the end; None: a place, until
    the host is gone."""
    left, visits = list(outcomes), 0

    async def visit(welcomed: Callable[[], None]) -> None:
        nonlocal visits
        if not left:
            raise Enough
        visits += 1
        outcome = left.pop(0)
        if outcome is not None:
            raise outcome
        welcomed()
        raise ConnectionFailed(Code.LOST, "the host is gone")

    with pytest.raises((ConnectionFailed, Enough)):
        await stay(visit)
    return visits


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staying, "delay_s", lambda attempt, chance: 0.0)


async def test_a_wrong_key_is_told_at_once() -> None:
    """Another visit would not help."""
    assert await visited(WRONG, None) == 1


async def test_a_stranger_at_the_hosts_address_ends_nobodys_stay() -> None:
    """Somebody else listens there while the host is gone; a host that has proved itself may still refuse."""
    assert await visited(None, WRONG, WRONG, None) == 4
    assert await visited(None, ConnectionFailed(Code.UNAUTHORIZED, "you are no member"), None) == 2
