"""How long is waited before a connection is dialled again."""

from __future__ import annotations

import pytest

from device_agent.redial import WHILE_IT_DRAINS, stay_connected
from wire.backoff import delay_s
from wire.errors import Code, ConnectionFailed

GOES_ON_WITHIN_S = 2.0
"""An answer whose cloud is gone, once that is known."""


class Enough(Exception):
    """The test has seen what it wanted to."""


async def attempts(codes: list[Code], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The attempts whose waits follow connections that end at once, with these codes."""
    seen: list[int] = []
    left = list(codes)

    def no_wait(attempt: int, random: float) -> float:
        seen.append(attempt)
        return 0.0

    async def connection() -> None:
        if not left:
            raise Enough
        raise ConnectionFailed(left.pop(0), "why")

    monkeypatch.setattr("device_agent.redial.delay_s", no_wait)
    with pytest.raises(Enough):
        await stay_connected("cloud", lambda: "ws://a", connection)
    return seen


async def test_waits_grow_while_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is of the next attempt."""
    assert await attempts([Code.LOST] * 5, monkeypatch) == [1, 2, 3, 4, 5]


async def test_waits_stay_short_while_a_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is there next is soon found; afterwards they grow from there."""
    stopping = await attempts([Code.DRAINING] * 5 + [Code.LOST] * 2, monkeypatch)
    assert stopping == [1, 2, 2, 2, 2, WHILE_IT_DRAINS + 1, WHILE_IT_DRAINS + 2]


async def test_a_good_connection_that_ends_is_dialled_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was before it: who waits for tokens waits no more than an eighth of the time that is theirs."""
    monkeypatch.setattr("device_agent.redial.STEADY_AFTER_S", -1.0)
    assert await attempts([Code.LOST] * 3, monkeypatch) == [0, 0, 0]
    assert delay_s(0, 1.0) <= GOES_ON_WITHIN_S / 8
