"""A prompt's way to an agent that accepts it: it waits for room, is sent, and goes elsewhere where that may help."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

import structlog

from gateway.agents import Reservation
from gateway.answer import Answer
from gateway.config import GatewayConfig
from gateway.errors import RequestError, for_client
from gateway.policy import Wish
from gateway.request import AnyAsk
from gateway.roster import Roster
from gateway.tickets import Ticket
from wire.errors import Code, ConnectionFailed, Crowded, LocalMistake, SessionFailed

ELSEWHERE: Final = frozenset(
    {Code.OVERLOADED, Code.DRAINING, Code.UPSTREAM_LOST, Code.SESSION_LIMIT, Code.TOKEN_LIMIT, Code.TIMEOUT}
)
"""Refusals that are about the agent, not about the request: another agent is tried."""

MAX_LOSSES: Final = 2
"""Agents that may be lost, or fall silent, over one prompt: one that does this to agents must not be taken to all."""

MAX_RETURNS: Final = 16
"""How often a prompt goes back to wait for an agent that was fuller than we counted."""

HEDGE_S: Final = 5.0
"""An agent that has not accepted for this long is left for another that is free, looked for as often: accepting takes a
fraction of a second, of the longest texts a few."""

log = structlog.get_logger()


async def place(
    roster: Roster,
    config: GatewayConfig,
    ask: AnyAsk,
    part: int,
    answer: Answer,
    patience_s: float,
    found: Reservation | None = None,
) -> Reservation:
    """Bring part ``part`` of a request to an agent; it waits up to ``patience_s`` for room, where none was
    ``found`` before.

    Returns the room in which the agent has accepted it; the caller closes it.

    Raises:
        RequestError: no agent takes it, or one refuses it for what it is.
    """
    until = asyncio.get_running_loop().time() + patience_s
    wish, whole = roster.wish(ask, answer.model)
    refused: SessionFailed | None = None
    losses = returns = 0
    while True:
        counted = not part and not returns
        room = found or await _room(
            roster, wish, until, refused, counted=counted, first=returns > 0, priority=ask.priority
        )
        found = None
        others = replace(wish, tried=wish.tried | {room.link.key})
        with ExitStack() as stack:
            stack.callback(room.close)
            try:
                ticket = await room.link.ask(room, ask, part, answer, until)
                slower = others if losses + 1 < MAX_LOSSES else None
                found = await _accepted(roster, ticket, slower, config.accept_within_s)
                if found is None:
                    stack.pop_all()
                    room.link.remember(whole)
                    return room
                losses += 1
                answer.meter.turned_away(Code.TIMEOUT.value, room.link.hello.name)
            except ConnectionFailed:
                refused = SessionFailed(Code.UPSTREAM_LOST, "the device agent is gone")
            except Crowded as crowded:
                refused = crowded
            except LocalMistake as mistake:
                log.warning("request cannot be sent", request_id=answer.meter.request_id, reason=str(mistake))
                text = "the request is too large to be sent to a device agent"
                raise RequestError(413, text, code="body_too_large") from mistake
            except SessionFailed as failure:
                losses += failure.code in (Code.UPSTREAM_LOST, Code.TIMEOUT)
                if failure.code not in ELSEWHERE or losses >= MAX_LOSSES:
                    raise for_client(failure) from failure
                refused = failure
                answer.meter.turned_away(failure.code.value, room.link.hello.name)
                if room.too_early and returns < MAX_RETURNS:
                    returns += 1
                    continue
        wish = others


async def _accepted(roster: Roster, ticket: Ticket, others: Wish | None, within_s: float) -> Reservation | None:
    """Return None once the agent has accepted; or room at another that ``others`` finds, where this one is slow.

    Raises:
        SessionFailed: the agent refuses, or does not accept in time.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + within_s
    while (left_s := until - clock()) > 0:
        await asyncio.wait((ticket.accepted,), timeout=min(left_s, HEDGE_S))
        if ticket.accepted.done():
            ticket.accepted.result()
            return None
        found = roster.find(others) if others is not None else None
        if isinstance(found, Reservation):
            return found
    raise SessionFailed(Code.TIMEOUT, f"the device agent did not accept the request within {within_s:g} s")


async def _room(
    roster: Roster,
    wish: Wish,
    until: float,
    refused: SessionFailed | None,
    *,
    counted: bool,
    first: bool,
    priority: int,
) -> Reservation:
    """Return room at an agent; the rest is as ``WaitingRoom.wait`` has it. Where there will be none, the client is told
    why the last agent ``refused``."""
    found = roster.find(wish)
    if isinstance(found, RequestError):
        raise for_client(refused) if refused else found
    if found is not None:
        return found
    patience_s = max(0.0, until - asyncio.get_running_loop().time())
    return await roster.waiting.wait(wish, patience_s, counted=counted, first=first, priority=priority)
