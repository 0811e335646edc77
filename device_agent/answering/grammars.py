"""The forms that requests ask for, compiled: each once for a tenant, on threads of their own, within bounds.

A form comes from a stranger, and llguidance cannot be interrupted. So what takes long to compile is refused before
(``form_limits``), llguidance has limits of its own, and who waits is told after ``COMPILE_S``, while the thread ends by
itself. Of one tenant one form is compiled at a time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock
from typing import TYPE_CHECKING, Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from device_agent.answering.faulty_part import faulty_part
from device_agent.answering.form import Form
from device_agent.answering.form_limits import check_form
from device_agent.answering.form_probe import TOKENS, breaks_off
from device_agent.answering.grammar_masks import GrammarMasks
from device_agent.answering.tokenizer import Tokenizer
from device_agent.sharing.compute import FairThreads, quiet
from wire.errors import Code, SessionFailed
from wire.request_messages import Grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

COMPILE_S: Final = 5.0
"""Most forms take milliseconds, the largest that is let in about a second."""

MOST_KEPT: Final = 32
"""Compiled forms that are kept, of all tenants."""

MAX_REASON: Final = 300
"""Characters of llguidance's reason that a client is shown."""

MAX_PLACE: Final = 128
"""Characters of the name of the part at fault."""

COMPILERS, LOOKERS = 2, 2
"""Threads that compile; that look masks up beforehand."""


def _limits(items: int) -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=items,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


LIMITS: Final = _limits(2000)
"""What compiling, and each mask, may take: tens of milliseconds, and tens of MB of an answer."""

WRITTEN: Final = _limits(500)
"""The same for grammars and expressions that a stranger wrote. Where one has a text in many ways a row has items for
each of its places, and a token takes the square of them: 6 ms with so many, 60 ms with twice as many."""

BREAKS_OFF: Final = (
    "an answer in it may break off before its end, since it has a text in too many ways or needs too many states"
)


@dataclass
class _Compiled:
    """A form, and how many tokens of texts in it were tried."""

    matcher: LLMatcher
    tried: int = 0


class Grammars:
    """The forms that answers of one model may be asked for.

    Args:
        tokens: the model's tokenizer as llguidance knows it.
        vocabulary: logits of a token.
        ends: tokens that end an answer.
    """

    def __init__(self, tokens: LLTokenizer, vocabulary: int, ends: Collection[int]) -> None:
        self._tokens = tokens
        self._ends = ends
        self._vocabulary = vocabulary
        self._compilers = FairThreads(COMPILERS, "grammar")
        self._lookers = FairThreads(LOOKERS, "mask")
        self._kept: OrderedDict[tuple[str, bytes], _Compiled] = OrderedDict()
        """By tenant and digest, the one that was used last at the end: what one tenant asks for, others cannot time."""
        self._lock = Lock()

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocabulary: int) -> Grammars | None:
        """None where llguidance does not know such a tokenizer, or nothing ends an answer."""
        if not tokenizer.end_ids:
            return None
        for count in (vocabulary, None):  # Embeddings are padded; or there are ids that the model has none for.
            with suppress(ValueError, AttributeError, OverflowError):
                tokens = LLTokenizer(tokenizer.definition(), n_vocab=count, eos_token=sorted(tokenizer.end_ids))
                return cls(tokens, vocabulary, tokenizer.end_ids)
        return None

    async def compiled(self, form: Form, tenant: str, tokens: int = TOKENS) -> Callable[[], GrammarMasks]:
        """What makes the masks of each answer to a request, which may have so many tokens.

        Raises:
            SessionFailed: the form cannot be compiled, or not soon enough; the message says where.
        """
        begun = Event()

        def work() -> LLMatcher:
            begun.set()
            return self._compiled(form, tenant, tokens)

        compiling = quiet(self._compilers.submit(work, tenant))
        try:  # Not `wait_for`, see `set_within`.
            await asyncio.wait([compiling], timeout=COMPILE_S)
        finally:
            compiling.cancel()
        if compiling.cancelled():
            if not begun.is_set():
                told = "too many forms are being compiled at once"
                raise SessionFailed(Code.OVERLOADED, told, retry_after_s=COMPILE_S)
            told = f"the form asked for takes longer than {COMPILE_S:g} s to compile: make it smaller"
            raise SessionFailed(Code.INVALID_REQUEST, told, param=form.param)
        matcher = compiling.result()

        def again() -> LLMatcher:
            self._drop((tenant, form.digest), matcher)
            made = self._matcher(form)
            assert not isinstance(made, str), "it has been compiled before"
            return made

        def look(work: Callable[[], None]) -> None:
            self._lookers.submit(work, tenant)

        return lambda: GrammarMasks(matcher, again, self._vocabulary, form.param, look)

    def stop(self) -> None:
        """End the threads."""
        self._compilers.stop()
        self._lookers.stop()

    def _compiled(self, form: Form, tenant: str, tokens: int) -> LLMatcher:
        key = tenant, form.digest
        with self._lock:
            found = self._kept.get(key)
        if found is None:
            check_form(form)
            matcher = self._matcher(form)
            if isinstance(matcher, str):
                where, why = self._faulty(form, matcher)
                reason = " ".join(why.split())[:MAX_REASON]
                raise SessionFailed(Code.INVALID_REQUEST, f"it cannot be compiled: {reason}", param=where[:MAX_PLACE])
            found = _Compiled(matcher)
        try:
            self._try(form, found, tokens)
        except SessionFailed:
            self._drop(key, found.matcher)
            raise
        with self._lock:
            self._kept[key] = found
            self._kept.move_to_end(key)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return found.matcher

    def _drop(self, key: tuple[str, bytes], matcher: LLMatcher) -> None:
        """Keep that one no longer: it has come to a limit, and nobody can use it."""
        with self._lock:
            if key in self._kept and self._kept[key].matcher is matcher:
                del self._kept[key]

    def _try(self, form: Form, found: _Compiled, tokens: int) -> None:
        """Try texts of so many tokens where a stranger wrote the form's words, if that was not done."""
        wanted = min(tokens + 1, TOKENS)  # Whether anything may follow the last one is asked, too.
        if found.tried >= wanted or not _written(form):
            return
        why = breaks_off(found.matcher, self._ends, wanted)
        if why is not None:
            reason = " ".join(why.split())[:MAX_REASON]
            raise SessionFailed(Code.INVALID_REQUEST, f"{BREAKS_OFF}: {reason}", param=form.param)
        found.tried = wanted

    def _faulty(self, form: Form, reason: str) -> tuple[str, str]:
        """The member at fault, and why it is."""
        for part, options in form.parts:

            def why_not(text: str, part: Grammar = part, options: JsonCompileOptions = options) -> str | None:
                found = self._matcher(Form.of(Grammar(part.kind, text, part.param), options))
                return found if isinstance(found, str) else None

            if (why := why_not(part.text)) is not None:
                return faulty_part(part, why_not, why), why
        return form.param, reason

    def _matcher(self, form: Form) -> LLMatcher | str:
        """Compiled, and seen to have a first mask; or why not."""
        try:
            made = form.made(self._token_of)
        except (ValueError, RecursionError) as error:
            return str(error)
        matcher = LLMatcher(self._tokens, made, log_level=0, limits=WRITTEN if _written(form) else LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            return matcher.get_error() or "it is no valid form"
        if matcher.is_stopped():
            return "nothing can be said in it"
        return matcher

    def _token_of(self, text: str) -> int | None:
        found = self._tokens.tokenize_str(text, parse_special=True)
        return found[0] if len(found) == 1 and self._tokens.is_special_token(found[0]) else None


def _written(form: Form) -> bool:
    """Whether words of a form are a stranger's own, and no schema's."""
    return any(part.kind in ("regex", "grammar") for part, _ in form.parts)
