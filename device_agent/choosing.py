"""The next token of one answer: sampling with what came before, and the log-probabilities that were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from split_model.sampling import SamplingParams, draw, logprobs, penalised, probabilities, top_logprobs


@dataclass(frozen=True)
class Chosen:
    """A token, and where asked for its log-probability and the likeliest alternatives ``(id, logprob)``, best first."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Chooser:
    """Chooses the tokens of one answer, in order.

    Args:
        params: how; greedy when its temperature is 0.
        seed: of this answer's noise; a token's noise depends on it and the token's position only.
        top: alternatives to report with each token; None reports nothing.

    Attributes:
        generated: the tokens chosen so far.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int], seed: int, top: int | None) -> None:
        self.generated: list[int] = []
        self.params = params
        self.prompt = prompt
        self.seed = seed
        self._top = top

    def __call__(self, logits: torch.Tensor) -> Chosen:
        """The token after the last of ``logits [rows, vocab]``; it counts as generated from now on."""
        row = logits[-1]
        if self.params.is_greedy:
            token = int(penalised(row, self.params, self.prompt, self.generated).argmax())
        else:
            chances = probabilities(row, self.params, self.prompt, self.generated)
            token = draw(chances, self.seed, len(self.prompt) + len(self.generated))
        return self.take(token, row)

    def take(self, token: int, row: torch.Tensor) -> Chosen:
        """``token`` was chosen with the logits ``row [vocab]``; it counts as generated from now on."""
        self.generated.append(token)
        if self._top is None:
            return Chosen(token)
        top = tuple(top_logprobs(row, self._top)) if self._top else ()
        return Chosen(token, float(logprobs(row)[token]), top)
