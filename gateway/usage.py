"""What an answer took, as clients are told: tokens, where its time went, and what was left out to be faster. Pure."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from gateway.answer import Complete
from gateway.origins import phase_ms
from gateway.reply_schema import AnswerTimings, CompletionDetails, PhaseTimings, PromptDetails, RoundsSpent, Usage
from wire.request_messages import Finished


def usage_of(complete: Complete) -> Usage:
    """Return OpenAI's usage object."""
    prompt, generated = complete.prompt_tokens, complete.completion_tokens
    cached = PromptDetails(complete.cached_tokens) if complete.cached_tokens else UNSET
    drafted: CompletionDetails | UnsetType = UNSET
    if complete.proposed:
        drafted = CompletionDetails(complete.accepted, complete.proposed - complete.accepted)
    return Usage(prompt, generated, prompt + generated, cached, drafted)


def timings_of(finished: Finished) -> AnswerTimings | UnsetType:
    """Return where an answer's time went, and what was left out for it, as clients are told; nothing where neither is
    known."""
    timings, pruned = finished.timings, finished.heads_pruned
    told = UNSET if pruned is None else pruned
    if timings is None:
        return UNSET if pruned is None else AnswerTimings(heads_pruned=told)
    decode = RoundsSpent(*phase_ms(timings.decode), timings.rounds)
    return AnswerTimings(PhaseTimings(*phase_ms(timings.prompt)), decode, heads_pruned=told)
