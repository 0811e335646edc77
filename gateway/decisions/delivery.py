"""From decided questions to bytes at the client."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.answer import Answer, Complete, Event
from gateway.decisions.ask import DecisionAsk
from gateway.decisions.schema import DecisionReply, DecisionUsage
from gateway.decisions.wording import answer_of
from gateway.delivery import Delivery, Desk, Outlet, send_json
from gateway.errors import for_client
from wire.decision_messages import Decided
from wire.errors import Code, SessionFailed


class DecisionDelivery(Delivery):
    """The response to a request with questions: one object, its answers in the order of the questions."""

    def __init__(self, desk: Desk, ask: DecisionAsk, request_id: str, began: float) -> None:
        super().__init__(desk, ask, request_id, began)
        self._ask = ask

    async def _send_whole(self, events: Sequence[Event], model: str, outlet: Outlet) -> None:
        complete = events[-1]
        assert isinstance(complete, Complete)
        chances = {each.index: each.chances for each in events if isinstance(each, Decided)}
        if any(len(chances[at]) != len(each.options) for at, each in enumerate(self._ask.asked)):
            raise for_client(SessionFailed(Code.UNEXPECTED_MESSAGE, "the device agent broke the protocol"))
        answers = [answer_of(question, chances[at]) for at, question in enumerate(self._ask.questions)]
        usage = DecisionUsage(complete.prompt_tokens, complete.prompt_tokens)
        await send_json(outlet, DecisionReply(answers, model, usage))

    async def _stream(self, answer: Answer, outlet: Outlet) -> None:
        raise AssertionError("decisions are not streamed")
