"""What an agent says about one prompt, and what becomes of it, without an agent."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.answer import Answer, Complete
from gateway.meter import RequestMeter
from gateway.metrics import GatewayMetrics
from gateway.tickets import Ticket
from wire.errors import Code, SessionFailed
from wire.message import Failed
from wire.request_messages import Accepted, Delta, Done, Finished


def second_of_two(at_once: int = 2) -> tuple[Ticket, Answer]:
    """The ticket of a request's second prompt, with two choices each."""
    answer = Answer("m", 2, RequestMeter(GatewayMetrics(), time.perf_counter()))
    return Ticket(7, answer, range(2, 4), at_once), answer


async def test_choices_count_over_all_prompts_and_room_frees_as_they_end() -> None:
    """So many as are left are to be generated; the last word is the agent's."""
    ticket, answer = second_of_two()
    for message in (Accepted(7, 5), Delta(7, 1, "x", 1), Finished(7, 1, "stop")):
        assert ticket.hear(message) is None
    assert ticket.accepted.result() == 5 and (ticket.load, ticket.done) == (1, False)
    assert ticket.hear(Finished(7, 0, "length")) is None and ticket.hear(Done(7, 5, 2)) is None
    assert (ticket.load, ticket.done) == (0, True)
    told = await answer.take()
    assert [event.index for event in told if not isinstance(event, Complete)] == [3, 3, 2]
    ticket.close()


async def test_fewer_at_once_are_less_load() -> None:
    """Until fewer than that are left."""
    ticket, _ = second_of_two(at_once=1)
    ticket.hear(Accepted(7, 5))
    ticket.hear(Finished(7, 0, "stop"))
    assert ticket.load == 1
    ticket.hear(Finished(7, 1, "stop"))
    assert ticket.load == 0
    ticket.close()


@pytest.mark.parametrize(
    "said",
    [
        [Delta(7, 0, "x", 1)],
        [Accepted(7, 5), Accepted(7, 5)],
        [Accepted(7, 5), Delta(7, 2, "x", 1)],
        [Accepted(7, 5), Finished(7, 0, "stop"), Finished(7, 0, "stop")],
        [Accepted(7, 5), Done(7, 5, 1)],
        [Accepted(7, 5), Finished(7, 0, "stop"), Finished(7, 1, "stop"), Done(7, 5, 1, proposed=1, accepted=2)],
    ],
)
async def test_who_breaks_the_protocol_is_told_of_once(said: list[Any]) -> None:
    """The last of these is refused, and nothing that follows counts; the agent has not said that it is done."""
    ticket, answer = second_of_two()
    *before, last = said
    assert [ticket.hear(each) for each in before] == [None] * len(before)
    assert ticket.hear(last)
    assert ticket.hear(last) is None and ticket.hear(Failed("overloaded", "", 7)) is None and not ticket.done
    if before:
        assert answer.over
    else:
        assert isinstance(ticket.accepted.exception(), SessionFailed)
    ticket.close()


async def test_a_refusal_leaves_the_answer_open() -> None:
    """It may be had elsewhere; after acceptance the client hears of it."""
    ticket, answer = second_of_two()
    assert ticket.hear(Failed("overloaded", "full", 7)) is None
    failure = ticket.accepted.exception()
    assert isinstance(failure, SessionFailed) and failure.code is Code.OVERLOADED
    assert ticket.done and not answer.over
    ticket, answer = second_of_two()
    ticket.hear(Accepted(7, 5))
    ticket.fail(SessionFailed(Code.UPSTREAM_LOST, "gone"))
    assert answer.over and not ticket.done
