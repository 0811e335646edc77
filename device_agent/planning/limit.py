"""A limit of time that no pruning reaches. Pure."""

from __future__ import annotations


class LimitTooShort(ValueError):
    """No pruning can reach the limit: MLPs and whatever else heads cannot shorten takes longer.

    Attributes:
        floor_s: what it takes with no head at all.
    """

    def __init__(self, limit_s: float, floor_s: float, what: str = "a layer") -> None:
        super().__init__(
            f"{what} takes {floor_s:.3g} s with all attention heads left out, and the limit is "
            f'{limit_s:.3g} s: shorten the prompt, raise --t-max, or ask with "exact": true, for which there is none'
        )
        self.floor_s = floor_s
