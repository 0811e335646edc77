"""Where a request that has been read is let in: its key may use the model, and has something left of its limits."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from gateway.answer import Answer
from gateway.errors import RequestError, model_not_found
from gateway.key_book import KeyBook, KeyRecord
from gateway.limits.estimate import expected_tokens
from gateway.limits.limiter import Grant, Limiter
from gateway.request import AnyAsk, Ask
from gateway.roster import Roster


class Reception:
    """Lets requests in."""

    def __init__(self, book: KeyBook, limiter: Limiter, roster: Roster) -> None:
        self._book = book
        self._limiter = limiter
        self._roster = roster

    def meant(self, ask: Any, key: KeyRecord) -> Any:
        """Return a request (``AnyAsk``; all are dataclasses) with its model named: where it names none, the first that
        its key may use and that does what is asked, if there is any. All who look at it then mean the same one."""
        if ask.model is not None:
            return ask
        models = (each.id for each in self._roster.models() if ask.task in each.tasks and key.may_use(each.id))
        model = next(models, None)
        return ask if model is None else replace(ask, model=model)

    def check_model(self, ask: AnyAsk, key: KeyRecord) -> None:
        """Raises ``RequestError`` where the key is not for the model: the same as where there is no such model."""
        if key.models:
            model = self._roster.model(ask.model, ask.draft, ask.task).id
            if not key.may_use(model):
                raise model_not_found(model if ask.model is not None else key.models[0])

    def still(self, key: KeyRecord) -> RequestError | None:
        """Return why a key that was good when its client came is good no more, None where it is."""
        return self._book.still(key, time.time())

    async def admit(self, ask: AnyAsk, key: KeyRecord) -> Grant | None:
        """Return leave for a request, which ``over`` gives back; None where its key has no limits.

        Raises:
            RequestError: the key is worth nothing any more, not for this model, or over one of its limits.
        """
        refused = self.still(key)
        if refused is not None:
            raise refused
        self.check_model(ask, key)
        limits = self._book.limits(key)
        if not limits.some:
            return None
        unsaid = isinstance(ask, Ask) and ask.terms.max_tokens is None
        return await self._limiter.admit(ask.tenant, limits, expected_tokens(ask), unsaid=unsaid)


def charge(grant: Grant | None, answer: Answer, ask: AnyAsk) -> None:
    """Have an answer take of its key's limit as it comes, and end where there is nothing left."""
    if grant is None or not isinstance(ask, Ask):
        return

    def spend(cost: int) -> None:
        if not grant.spend(cost):
            answer.cut(ask.choices)

    answer.charge = spend


def over(grant: Grant | None, answer: Answer | None, *, elsewhere: bool = False) -> None:
    """The request has ended with this answer, None where it has none. Safe to call again.

    elsewhere: nobody here has taken it, and whoever sent it asks another gateway, where it counts.
    """
    if grant is not None:
        grant.tokens = answer.cost if answer is not None else 0
        grant.close(counts=not elsewhere)
