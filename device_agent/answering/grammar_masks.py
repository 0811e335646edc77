"""What may follow in an answer that has to be of a form, as llguidance finds it: one parser that goes along with the
answer and with its drafts, forwards and back.

Threads ask: the one that computes, when a token is drafted or chosen, and one that looks up masks beforehand, while the
other submodels work. llguidance frees the interpreter while it computes; a lock keeps the parser to one thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from time import thread_time
from typing import Final

import numpy
import torch
from llguidance import LLMatcher
from numpy.typing import NDArray

from drafting.masks import CannotTell
from wire.errors import Code, SessionFailed

MOST_KNOWN: Final = 64
"""Masks that are kept for an answer: those of a draft, and of what is prepared beside it."""

MOST_FORCED: Final = 32
"""Tokens that are said to be forced at once: no draft is longer."""

FIRST_S: Final = 2.0
EACH_S: Final = 0.005
"""Processor time that the parser may take for an answer, and for each of its tokens beside, those of drafts included:
others wait meanwhile. Most forms take a tenth of a millisecond a token; one that has a text in many ways takes longer
with each."""

MAX_REASON: Final = 300
"""Characters of llguidance's reason that a client is shown."""


@dataclass(frozen=True)
class _After:
    """What is known of a text.

    Attributes:
        may: uint8, a bit for each token that may follow, as llguidance has them: masks of an answer are tens of
            thousands of bytes each. None where nothing follows.
        forced: tokens that are sure to follow, or as good as.
    """

    may: NDArray[numpy.uint8] | None
    forced: Sequence[int] = ()


class _GivenUp(Exception):
    """A form's states are at one of llguidance's limits, and so for all copies of it."""


class FormFailed(SessionFailed, CannotTell):
    """An answer cannot go on in its form."""


class GrammarMasks:
    """The masks of one answer.

    Args:
        form: compiled; the answer's parser is a copy of it, made when it is first asked, since a large one takes time.
        again: compiles it once more. All copies of a form share llguidance's states of it, and one that has come to a
            limit, perhaps in another answer or for a draft that is never said, reads nothing more and does not say so.
        vocabulary: logits of a token.
        param: the member of the request that has the form, for errors.
        beside: runs work on another thread, some time; called on the event loop.
    """

    def __init__(
        self,
        form: LLMatcher,
        again: Callable[[], LLMatcher],
        vocabulary: int,
        param: str,
        beside: Callable[[Callable[[], None]], object],
    ) -> None:
        self._form: LLMatcher | None = form
        self._again = again
        self._alone = False
        """Whether no other answer has this form's states."""
        self._vocabulary = vocabulary
        self._param = param
        self._beside = beside
        self._at: list[int] = []
        """The text that the parser has read."""
        self._known: OrderedDict[tuple[int, ...], _After] = OrderedDict()
        self._lock = Lock()
        self._over = False
        self._spent_s = 0.0
        self._looked = 0
        """Texts that the parser has read, most of them a draft's: what is asked again is known."""

    @cached_property
    def _matcher(self) -> LLMatcher:
        if self._form is None:
            self._form, self._alone = self._again(), True
        return self._form.deep_copy()

    def barred(self, text: Sequence[int]) -> torch.Tensor | None:
        """See ``Masks``, here and below."""
        may = self._after(text).may
        if may is None:
            return None
        barred = numpy.ones(self._vocabulary, numpy.bool_)
        bits = numpy.unpackbits(may, bitorder="little")[: self._vocabulary]
        barred[: len(bits)] = bits == 0
        return torch.from_numpy(barred)

    def foresee(self, texts: Iterable[Sequence[int]]) -> None:
        wanted = [text for text in texts if tuple(text) not in self._known]

        def look() -> None:
            with suppress(FormFailed):  # Who chooses a token there is told.
                for text in wanted:
                    self._after(text)

        if wanted:
            self._beside(look)

    def forced(self, text: Sequence[int]) -> Sequence[int]:
        return self._after(text).forced

    def ended(self, text: Sequence[int]) -> bool:
        return self._after(text).may is None

    def close(self) -> None:
        """The answer is over: nothing of it is kept, and nobody looks further. Safe to call twice, and on the event
        loop: whoever has the parser lets go of all behind it."""
        self._over = True
        if self._lock.acquire(blocking=False):
            try:
                self._known.clear()
                self._begin_again()
            finally:
                self._lock.release()

    @contextmanager
    def _parser(self, text: Sequence[int]) -> Iterator[None]:
        """Nobody else has the parser, and what it takes counts. Raises ``FormFailed`` where that is too much."""
        try:
            with self._lock:
                if self._over:
                    raise self._failed("it is over")
                began = thread_time()
                try:
                    yield
                finally:
                    self._spent_s += thread_time() - began
                if self._spent_s > FIRST_S + EACH_S * max(len(text), self._looked):
                    raise self._failed("it takes too long; one that has each text in one way only is quicker")
        finally:
            if self._over:
                self.close()

    def _after(self, text: Sequence[int]) -> _After:
        key = tuple(text)
        with self._parser(text):
            found = self._known.get(key)
            if found is None:
                self._looked += 1
                found = self._known[key] = self._found(text)
                if len(self._known) > MOST_KNOWN:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
            return found

    def _found(self, text: Sequence[int]) -> _After:
        """Raises ``FormFailed`` where a form that nobody else has used comes to a limit."""
        try:
            return self._looked_up(text)
        except _GivenUp as limit:
            alone = self._alone
            self._begin_again()
            if alone:
                raise self._failed(str(limit)) from None
        return self._found(text)

    def _begin_again(self) -> None:
        self._form = None
        self.__dict__.pop("_matcher", None)
        self._at.clear()

    def _looked_up(self, text: Sequence[int]) -> _After:
        """Raises ``_GivenUp``, and ``FormFailed`` where no token may follow."""
        if not self._goes_on(text):
            return _After(None)
        may = numpy.frombuffer(self._matcher.compute_bitmask(), numpy.uint8)
        _check(self._matcher)
        bits = numpy.unpackbits(may, bitorder="little")[: self._vocabulary]
        left = int(bits.sum())
        if not left:
            raise self._failed("it leaves no token of this model to go on with")
        forced = self._matcher.compute_ff_tokens()[:MOST_FORCED] or ([int(bits.argmax())] if left == 1 else [])
        return _After(may, forced)

    def _goes_on(self, text: Sequence[int]) -> bool:
        """Have the parser read ``text`` and nothing else; whether anything may follow. Texts differ near their ends.

        Raises ``_GivenUp``.
        """
        at, text = self._at, list(text)
        same = len(at)
        if at != text[:same]:
            most = min(same, len(text))
            same = max(0, most - MOST_KNOWN)
            same = same if at[:same] == text[:same] else 0
            while same < most and at[same] == text[same]:
                same += 1
        if same < len(at):
            self._matcher.rollback(len(at) - same)
            del at[same:]
        new = text[same:]
        read = self._matcher.try_consume_tokens(new) if new else 0
        at += new[:read]
        _check(self._matcher)
        if read < len(new) and not self._alone:  # So it is, too, where the states are at their limit.
            assert self._form is not None
            whole = self._form.deep_copy()
            whole.compute_bitmask()
            _check(whole)
        return read == len(new) and not self._matcher.is_stopped()

    def _failed(self, why: str) -> FormFailed:
        reason = why.partition("\n")[0][:MAX_REASON]
        return FormFailed(
            Code.INVALID_REQUEST, f"the answer cannot go on in the form asked for: {reason}", param=self._param
        )


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise _GivenUp(matcher.get_error())
