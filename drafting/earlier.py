"""What was answered earlier in the same form: the next answer in it may well say some of it again.

A form that is asked for once is mostly asked for often: facts drawn out of many texts, a tool that is called all the
time. Of the last answers in each of the last forms the tokens are kept, in memory alone; a drafter that looks at what a
text has said looks at them too.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Final

from split_model.sampling import NOBODY

MOST_FORMS: Final = 16
"""Of one tenant. The form that was answered in longest ago is forgotten first."""

MOST_TOKENS: Final = 512
"""Of the answers in one form, the last ones. Indexing so many takes some 3 ms, once for each answer."""


class EarlierAnswers:
    """The answers of one tenant that had to be of a form."""

    def __init__(self) -> None:
        self._by_form: OrderedDict[Hashable, array[int]] = OrderedDict()

    def of(self, form: Hashable) -> Sequence[int]:
        """Tokens of the last answers in a form, ``NOBODY`` behind each; none where there was none."""
        return self._by_form.get(form, ())

    def add(self, form: Hashable, answer: Sequence[int]) -> None:
        """``answer``, its tokens, was of this form."""
        kept = self._by_form.pop(form, array("i"))
        self._by_form[form] = (kept + array("i", [*answer, NOBODY]))[-MOST_TOKENS:]
        if len(self._by_form) > MOST_FORMS:
            self._by_form.popitem(last=False)
