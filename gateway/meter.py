"""The clock of one request: what happens to it, as counters have it and as its span does."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gateway.incidents import OPERATORS
from gateway.metrics import GatewayMetrics
from service.traces import UNTRACED, Span
from wire.request_messages import Done


@dataclass
class _Choice:
    """When a choice's first and last tokens came, and how many behind its first delta."""

    first: float
    last: float
    tokens: int
    behind: int = 0


class RequestMeter:
    """Of one request, from when it ``began``, in seconds of ``time.perf_counter``.

    Args:
        tenant: whose it is, or a word of ``incidents``: who is told what goes wrong with it.

    Attributes:
        request_id: for what is logged of it.
        since: when it began, in seconds since 1970.
        span: all of it, as its trace has it.
    """

    def __init__(
        self,
        metrics: GatewayMetrics,
        began: float,
        request_id: str = "",
        span: Span = UNTRACED,
        tenant: str = OPERATORS,
    ) -> None:
        self.began = began
        self.since = time.time() - (time.perf_counter() - began)
        self._tenant = tenant
        self.request_id = request_id
        self.span = span
        self._metrics = metrics
        self._choices: dict[int, _Choice] = {}
        self._model = ""
        self._sent = False
        self._accepted_at = self._first_at = began

    def sent(self) -> None:
        """It, or one of its prompts, is on its way to an agent."""
        if not self._sent:
            self._sent = True
            self.span.child("queue", from_start=True).end()

    @property
    def first_token_s(self) -> float | None:
        """Seconds until its first token; None before."""
        return self._first_at - self.began if self._choices else None

    def turned_away(self, code: str, agent: str) -> None:
        """This agent does not take it, and another one may."""
        self.span.event("turned away", code=code)
        self._metrics.incidents.note(time.time(), code, agent, "another device is looked for", self._tenant)

    def accepted(self, model: str, prompt_tokens: int) -> None:
        """An agent has taken the request, or one more of its prompts."""
        metrics = self._metrics
        if not self._model:  # Later prompts wait for earlier ones, which is no time in the queue.
            self._accepted_at = time.perf_counter()
            metrics.queue_s.labels(model).observe(self._accepted_at - self.began)
            self.span.event("accepted")
        self._model = model
        self._between = metrics.between_tokens.labels(model)
        self._generated = metrics.generation_tokens.labels(model)
        metrics.prompt_tokens.labels(model).inc(prompt_tokens)
        metrics.prompt_size.labels(model).observe(prompt_tokens)

    def delta(self, index: int, tokens: int) -> None:
        """New tokens of a choice have arrived."""
        if not tokens:
            return
        now = time.perf_counter()
        choice = self._choices.get(index)
        if choice is not None:
            self._between.observe((now - choice.last) / tokens)
            choice.last = now
            choice.tokens += tokens
            choice.behind += tokens
        else:
            if not self._choices:
                self._first(now)
            self._choices[index] = _Choice(now, now, tokens)
        self._generated.inc(tokens)
        self._metrics.tokens += tokens

    def _first(self, now: float) -> None:
        """The first token of all is there."""
        self._first_at = now
        self._metrics.first_token.labels(self._model).observe(now - self.began)
        self._metrics.prefill_s.labels(self._model).observe(now - self._accepted_at)
        self.span.event("first token")
        self.span.note(first_token_s=now - self.began)

    def finished(self, reason: str, index: int | None = None) -> None:
        """A choice is complete: ``stop`` or ``length``; or the client went away: ``abort``."""
        metrics, model = self._metrics, self._model
        metrics.succeeded.labels(model, reason).inc()
        choice = self._choices.get(index) if index is not None else None
        if choice is not None:
            metrics.generation_size.labels(model).observe(choice.tokens)
            if choice.behind:
                metrics.each_token.labels(model).observe((choice.last - choice.first) / choice.behind)

    def part_done(self, done: Done) -> None:
        """The agent is done with a prompt."""
        metrics, model = self._metrics, self._model
        metrics.prefix_queries.labels(model).inc(done.prompt_tokens)
        metrics.prefix_hits.labels(model).inc(done.cached_tokens)
        metrics.cached_tokens.labels(model).inc(done.cached_tokens)
        if done.proposed:
            metrics.draft_tokens.labels(model).inc(done.proposed)
            metrics.accepted_tokens.labels(model).inc(done.accepted)
            metrics.drafts.labels(model).inc(done.drafts)

    def done(self) -> None:
        """The whole answer is there."""
        metrics, model, now = self._metrics, self._model, time.perf_counter()
        metrics.request_s.labels(model).observe(now - self.began)
        metrics.inference_s.labels(model).observe(now - self._accepted_at)
        if self._choices:
            metrics.decode_s.labels(model).observe(now - self._first_at)

    def failed(self, code: str | None) -> None:
        """The request ended with an error."""
        self._metrics.failed.labels(code or "invalid_value").inc()
        told = "its client was told so"
        self._metrics.incidents.note(time.time(), code or "invalid_value", self._model, told, self._tenant)
        self.span.fail(code or "invalid_value")
