"""Options of a question as a tree of tokens, and how likely each is. Pure.

An option is what is said when the answer begins with its tokens, and with those of no longer option: what is said by
``New York`` is not ``New``. Its chance is the probability of that, the tokens being drawn from the model's own
distribution, divided by the sum over all options. So what the model would say beside the options counts for nothing,
and a longer option is less likely by each of its tokens, as it is in the model's answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf


@dataclass(frozen=True)
class Leg:
    """Tokens to run behind the question and the first ``depth`` tokens of an option."""

    depth: int
    tokens: list[int]


class OptionTree:
    """The options of one question.

    Args:
        options: of each the tokens, one at least; no two are the same.

    Attributes:
        nodes: beginnings of options that further tokens follow, in the order in which they run.
    """

    def __init__(self, options: Sequence[Sequence[int]]) -> None:
        self._options = [tuple(each) for each in options]
        # As tuples are ordered a beginning comes before all that goes on from it, and these before what does not.
        self.nodes = sorted({each[:end] for each in self._options for end in range(1, len(each))})
        self._rows = {(): 0} | {node: row for row, node in enumerate(self.nodes, 1)}

    @cached_property
    def legs(self) -> list[Leg]:
        """What to run so that each node is run once; the first leg follows the question at once and may be empty."""
        legs: list[Leg] = [Leg(0, [])]
        before: tuple[int, ...] = ()
        for node in self.nodes:
            if node[:-1] != before:
                legs.append(Leg(len(node) - 1, []))
            legs[-1].tokens.append(node[-1])
            before = node
        return legs

    @cached_property
    def asked(self) -> list[tuple[int, int]]:
        """Rows and tokens whose log-probabilities ``chances`` needs: row 0 is the question's last, then come the nodes'
        in their order. In the order of rows."""
        return sorted({edge for each in self._options for edge in self._edges(each)})

    def chances(self, logprobs: Sequence[float]) -> list[float] | None:
        """The chance of each option by the log-probabilities of ``asked``; None where the model can say none of them,
        or gives no numbers."""
        known = dict(zip(self.asked, logprobs, strict=True))
        begun = [sum(known[edge] for edge in self._edges(each)) for each in self._options]
        most = max(begun)
        if any(each != each for each in begun) or most == -inf:
            return None
        weights = {each: exp(said - most) for each, said in zip(self._options, begun, strict=True)}
        left = dict(weights)
        for each, weight in weights.items():
            shorter = next((each[:end] for end in range(len(each) - 1, 0, -1) if each[:end] in weights), None)
            if shorter is not None:
                left[shorter] -= weight
        rest = [max(0.0, left[each]) for each in self._options]
        return [each / sum(rest) for each in rest]

    def _edges(self, option: tuple[int, ...]) -> list[tuple[int, int]]:
        """Each token of an option, and the row that says how likely it is."""
        return [(self._rows[option[:end]], token) for end, token in enumerate(option)]
