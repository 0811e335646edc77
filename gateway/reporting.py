"""What is said of a request once it is over: in the log, and of its span."""

from __future__ import annotations

import time

import structlog

from gateway.answer import Answer, Complete
from gateway.meter import RequestMeter
from gateway.request import AnyAsk

log = structlog.get_logger()


def report(ask: AnyAsk, meter: RequestMeter, answer: Answer | None, outcome: str) -> None:
    """One line for one request, and the same for its span; no prompt, no answer."""
    total, span = answer.total if answer else Complete(0, 0), meter.span
    log.info(
        "request",
        request_id=meter.request_id,
        endpoint=ask.endpoint,
        model=answer.model if answer else None,
        outcome=outcome,
        choices=ask.choices,
        prompt_tokens=total.prompt_tokens,
        completion_tokens=total.completion_tokens,
        seconds=round(time.perf_counter() - meter.began, 3),
        **({"trace_id": span.trace_id} if span.trace_id else {}),
    )
    span.note(endpoint=ask.endpoint, streamed=ask.stream, choices=ask.choices, outcome=outcome)
    span.note(prompt_tokens=total.prompt_tokens, completion_tokens=total.completion_tokens)
    span.note(cached_tokens=total.cached_tokens, drafted=total.proposed, accepted=total.accepted)
    if answer is not None:
        span.note(model=answer.model)
