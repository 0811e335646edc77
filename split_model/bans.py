"""Tokens that may not come next: what is not allowed, the end of a bad word, and the end of an answer before its time.

What is banned has the logit -inf, before any filter, for target and drafts alike. As transformers' SuppressTokens,
NoBadWords and MinNewTokens have it; a bad word counts where it began in the prompt, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from split_model.device import put

ANY = -1  # in a word's beginning: whatever stands there
NOTHING = -2  # before the text's first token: equal to no id


class NothingLeft(ValueError):
    """Every token is banned."""


@dataclass(frozen=True)
class Bans:
    """What an answer may not say; ids are inside the vocabulary.

    Attributes:
        allowed: the only tokens that may come; empty: all.
        words: each of one token or more, the last of which may not follow the others.
        ends: what may not come before `least` tokens have been generated.
    """

    allowed: tuple[int, ...] = ()
    words: tuple[tuple[int, ...], ...] = ()
    ends: tuple[int, ...] = ()
    least: int = 0

    @property
    def member(self) -> str:
        """The member of a request that leaves nothing, where nothing is left."""
        return "allowed_token_ids" if self.allowed else "bad_words" if self.words else "min_tokens"

    @cached_property
    def _allowed(self) -> torch.Tensor:
        return torch.tensor(self.allowed)

    @cached_property
    def _ends(self) -> torch.Tensor:
        return torch.tensor(self.ends)

    @cached_property
    def _lasts(self) -> torch.Tensor:
        """The last token of each word, int64 [words]."""
        return torch.tensor([word[-1] for word in self.words])

    @cached_property
    def _begins(self) -> torch.Tensor:
        """What is before it, int64 [words, the longest word's], the shorter ones behind `ANY`."""
        longest = max(map(len, self.words)) - 1
        return torch.tensor([[*[ANY] * (longest + 1 - len(word)), *word[:-1]] for word in self.words])

    def lift(
        self,
        logits: torch.Tensor,
        prompt_ids: Sequence[int],
        generated_ids: Sequence[int],
        further: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The logits float32 [vocab] without what is banned; what came before is as of `sampling.penalised`. Their
        device is not waited for."""
        if self.allowed:
            ids = put(self._allowed, logits.device)
            logits = torch.full_like(logits, -math.inf).index_copy(0, ids, logits.index_select(0, ids))
        if self.ends and len(generated_ids) + (0 if further is None else len(further)) < self.least:
            logits = logits.index_fill(0, put(self._ends, logits.device), -math.inf)
        if not self.words:
            return logits
        begins, lasts = put(self._begins, logits.device), put(self._lasts, logits.device)
        text = self._before(begins.shape[1], prompt_ids, generated_ids, further, logits.device)
        said = ((begins == ANY) | (begins == text)).all(1)
        # Added up, since words may end alike.
        hits = torch.zeros_like(logits).index_add(0, lasts, said.to(logits.dtype))
        return logits.masked_fill(hits > 0, -math.inf)

    @staticmethod
    def _before(
        count: int,
        prompt_ids: Sequence[int],
        generated_ids: Sequence[int],
        further: torch.Tensor | None,
        device: torch.device,
    ) -> torch.Tensor:
        """The last `count` tokens of all, int64 [count] on the device; `NOTHING` where there are fewer."""
        known = [*prompt_ids[-count:], *generated_ids[-count:]] if count else []
        text = put(torch.tensor([*[NOTHING] * count, *known], dtype=torch.int64), device)
        text = text if further is None else torch.cat([text, further])
        return text[len(text) - count :]
