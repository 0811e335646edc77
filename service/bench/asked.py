"""A request of a load, and what became of it."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import Final

NOT_SENT: Final = "not sent: too many are open"
"""What became of a request that found no place."""


@dataclass(eq=False)
class Asked:
    """A request, and what became of it; times are seconds since the load has begun.

    Attributes:
        due: when it was to be sent. sent: when it was; NaN: it was not.
        ended: when its answer was over, well or not; NaN: it was not.
        times: when something of the answer came; events that came at once count once.
        events: how many had something of the answer.
        prompt_tokens, tokens: of the prompt and the answer, as the server counts them; None: it does not say.
        error: why it failed, in a few words that are the same for all that fail so; "": it did not.
        reason: the server's words for it.
    """

    due: float
    sent: float = math.nan
    ended: float = math.nan
    times: array[float] = field(default_factory=lambda: array("d"))
    events: int = 0
    prompt_tokens: int | None = None
    tokens: int | None = None
    error: str = ""
    reason: str = ""

    @property
    def answered(self) -> bool:
        """It has come to a good end."""
        return not self.error and not math.isnan(self.ended)
