"""A prompt's way to an agent that accepts it: it waits for room, is sent, and goes elsewhere where that may help."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import structlog

from gateway import errors
from gateway.answer import Answer
from gateway.config import GatewayConfig
from gateway.errors import RequestError, for_client
from gateway.policy import Wish
from gateway.request import Ask
from gateway.tickets import Reservation, Ticket
from gateway.waiting import Find, WaitingRoom
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


class Placer:
    """Finds agents for prompts.

    Args:
        find: room at an agent now, for a wish.
    """

    def __init__(self, config: GatewayConfig, waiting: WaitingRoom, find: Find) -> None:
        self._config = config
        self._waiting = waiting
        self._find = find

    async def start(self, ask: Ask, part: int, request_id: str, answer: Answer, patience_s: float) -> Ticket:
        """Prompt ``part`` of a request at an agent that has accepted it; it waits up to ``patience_s`` for room.

        Raises:
            RequestError: no agent takes it, or one refuses it for what it is.
        """
        until = asyncio.get_running_loop().time() + patience_s
        wish = Wish(answer.model, frozenset(), ask.terms.draft, ask.terms.tenant, ask.terms.n)
        refused: SessionFailed | None = None
        losses = returns = 0
        room: Reservation | None = None
        while True:
            if room is None:
                room = await self._room(wish, until, refused, counted=not part, again=returns > 0)
            others = replace(wish, tried=wish.tried | {room.link.key})
            try:
                ticket = await room.link.ask(room, ask, part, request_id, answer, until)
            except ConnectionFailed:
                refused = SessionFailed(Code.UPSTREAM_LOST, "the device agent is gone")
                wish, room = others, None
                continue
            except Crowded as crowded:
                refused, wish, room = crowded, others, None
                continue
            except LocalMistake as mistake:
                log.warning("request cannot be sent", request_id=request_id, reason=str(mistake))
                raise errors.too_large_to_send() from mistake
            try:
                room = await self._accepted(ticket, others if losses + 1 < MAX_LOSSES else None)
                if room is None:
                    return ticket
                ticket.close()
                losses += 1
                wish = others
            except SessionFailed as failure:
                ticket.close()
                losses += failure.code in (Code.UPSTREAM_LOST, Code.TIMEOUT)
                if failure.code not in ELSEWHERE or losses >= MAX_LOSSES:
                    raise for_client(failure) from failure
                refused, room = failure, None
                if ticket.too_early and returns < MAX_RETURNS:
                    returns += 1
                else:
                    wish = others
            except BaseException:
                ticket.close()
                raise

    async def _accepted(self, ticket: Ticket, others: Wish | None) -> Reservation | None:
        """None once the agent has accepted; or room at another that ``others`` finds, where this one is slow.

        Raises:
            SessionFailed: the agent refuses, or does not accept in time.
        """
        clock, within_s = asyncio.get_running_loop().time, self._config.accept_within_s
        until = clock() + within_s
        while (left_s := until - clock()) > 0:
            await asyncio.wait((ticket.accepted,), timeout=min(left_s, HEDGE_S))
            if ticket.accepted.done():
                ticket.accepted.result()
                return None
            found = self._find(others) if others is not None else None
            if isinstance(found, Reservation):
                return found
        raise SessionFailed(Code.TIMEOUT, f"the device agent did not accept the request within {within_s:g} s")

    async def _room(
        self, wish: Wish, until: float, refused: SessionFailed | None, *, counted: bool, again: bool
    ) -> Reservation:
        found = self._find(wish)
        if isinstance(found, RequestError):
            raise for_client(refused) if refused else found
        if found is not None:
            return found
        patience_s = max(0.0, until - asyncio.get_running_loop().time())
        return await self._waiting.wait(wish, patience_s, counted=counted and not again, first=again)
