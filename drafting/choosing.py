"""The tokens of one answer: sampling with what came before, drafts judged, and the log-probabilities asked for."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch

from drafting.masks import Masks, masked
from drafting.proposing import Candidate
from drafting.verification import Rule, verify
from split_model.bans import NothingLeft
from split_model.sampling import BadSampling, SamplingParams, checked, logprobs, picked, top_logprobs
from split_model.tree import TRUNK, Tree

Reason = Literal["stop", "length", "complete"]


@dataclass(frozen=True)
class Chosen:
    """A token of the answer.

    Attributes:
        logprob, top: where asked for, its log-probability and the likeliest alternatives ``(id, logprob)``, best first.
        reason: why it is the last one: ``stop`` (an end token, without text), ``length``, or ``complete`` (nothing may
            follow in the form that the answer has to have); None where it is not.
        source: the drafter that had proposed it; empty: none had, or it stands behind what was drafted.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    reason: Reason | None = None
    source: str = ""


@dataclass(frozen=True)
class Verdict:
    """The tokens that were chosen, and the drafted nodes that stand in the text before the last of them."""

    chosen: tuple[Chosen, ...]
    path: tuple[int, ...]

    def named(self, sources: Sequence[str]) -> Verdict:
        """The same with the drafters that had proposed the nodes of the path."""
        named = [replace(chosen, source=source) for chosen, source in zip(self.chosen, sources, strict=False)]
        return Verdict((*named, *self.chosen[len(named) :]), self.path)


class NotNumbers(ValueError):
    """What the model says of the next token is not finite: broken weights, or numbers too large for their format."""


class Chooser:
    """Chooses the tokens of one answer, in order.

    Args:
        params: how; greedy when its temperature is 0.
        seed: of this answer's noise; a token's noise depends on it and the token's position only.
        top: alternatives to report with each token; None reports nothing.
        end_ids: tokens that end the answer.
        max_tokens: most tokens of the answer.
        masks: what may follow, where the answer has to be of a form.

    Attributes:
        generated: the tokens chosen so far.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        seed: int,
        top: int | None = None,
        end_ids: Collection[int] = (),
        max_tokens: int = sys.maxsize,
        masks: Masks | None = None,
    ) -> None:
        self.generated: list[int] = []
        self.params = params
        self.prompt = prompt
        self.seed = seed
        self.end_ids = end_ids
        self.masks = masks
        self._max_tokens = max_tokens
        self._top = top

    @property
    def left(self) -> int:
        """Tokens that may still be chosen."""
        return self._max_tokens - len(self.generated)

    @torch.inference_mode()
    def judge(
        self,
        logits: torch.Tensor,
        tree: Tree,
        sent: Sequence[int],
        drafted: Sequence[Candidate],
        rule: Rule,
        picks: Sequence[int] = (),
    ) -> Verdict:
        """Choose the next tokens, as many as a draft allows and one where there is none.

        Args:
            logits: float32 ``[1 + len(sent), vocab]``: after the last token chosen, then after each node of the draft.
            sent: the draft's nodes in ``tree``, parents before children; a path for the rules that draw drafts.
            drafted: what they were, in the same order.
            picks: what ``picks`` said, where it was asked already.

        Raises:
            BadSampling: ``logit_bias`` names an id outside the vocabulary.
            NothingLeft: every token is banned.
            NotNumbers: the logits are none.
        """
        with self._blaming(logits):
            if self.follows(rule, sent):
                return self._follow(logits, tree, sent, picks)
            return self._verified(logits, sent, drafted, rule)

    @contextmanager
    def _blaming(self, logits: torch.Tensor) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            if isinstance(error, BadSampling):
                raise
            if not bool((logits < math.inf).all()):
                raise NotNumbers("what the model says of the next token are not numbers") from error
            if self.params.bans is None:
                raise
            raise NothingLeft(f"'{self.params.bans.member}' leaves no token that could come next") from error

    def _verified(self, logits: torch.Tensor, sent: Sequence[int], drafted: Sequence[Candidate], rule: Rule) -> Verdict:
        """The rules that keep the distribution."""
        target = logits
        if self.masks is not None:
            text = [*self.generated, *(each.token for each in drafted)]
            texts = (text[: len(self.generated) + row] for row in range(len(logits)))
            target = torch.stack([masked(row, self.masks, said) for row, said in zip(logits, texts, strict=True)])
        tokens = verify(target, drafted, rule, self.params, self.prompt, self.generated, self.seed)
        chosen: list[Chosen] = []
        for token, row in zip(tokens, logits, strict=False):
            chosen.append(self._take(token, row))
            if chosen[-1].reason:
                break
        return Verdict(tuple(chosen), tuple(sent[: len(chosen) - 1]))

    def follows(self, rule: Rule, sent: Sequence[int]) -> bool:
        """Whether tokens are chosen as without the draft, which stays as far as it agrees."""
        return rule == "keyed" or self.params.is_greedy or not sent

    @torch.inference_mode()
    def picks(self, logits: torch.Tensor, tree: Tree, sent: Sequence[int]) -> torch.Tensor:
        """What follows the last token chosen and each node of a draft, needed or not, so that a device that is not the
        CPU is waited for once: int64 ``[1 + sent]``, where the logits are. Raises BadSampling as ``judge`` does."""
        texts = [[*self.generated, *(tree.tokens[each] for each in tree.path(node))] for node in (TRUNK, *sent)]
        return torch.cat([self._pick(row, text) for row, text in zip(logits, texts, strict=True)])

    def _follow(self, logits: torch.Tensor, tree: Tree, sent: Sequence[int], picks: Sequence[int]) -> Verdict:
        """The rule ``keyed``: choose as without a draft, and go on while there is a node of what was chosen."""
        row_of = {TRUNK: 0} | {node: row for row, node in enumerate(sent, 1)}
        if not (picks or logits.is_cpu):
            picks = self.picks(logits, tree, sent).tolist()
        chosen: list[Chosen] = []
        path: list[int] = []
        node: int | None = TRUNK
        while node is not None and node in row_of:
            path.append(node)
            row = logits[row_of[node]]
            [token] = checked([picks[row_of[node]]] if picks else self._pick(row, self.generated).tolist())
            chosen.append(self._take(token, row))
            node = tree.child(node, token) if chosen[-1].reason is None else None
        return Verdict(tuple(chosen), tuple(path[1:]))

    def _pick(self, row: torch.Tensor, text: Sequence[int]) -> torch.Tensor:
        return picked(masked(row, self.masks, text), self.params, self.prompt, text, self.seed)

    def _take(self, token: int, row: torch.Tensor) -> Chosen:
        """``token`` was chosen with the logits ``row [vocab]``; it counts as generated from now on."""
        self.generated.append(token)
        reason: Reason | None = None
        if token in self.end_ids:
            reason = "stop"
        elif self.masks is not None and self.masks.ended(self.generated):
            reason = "complete"
        elif not self.left:
            reason = "length"
        if self._top is None:
            return Chosen(token, reason=reason)
        top = tuple(top_logprobs(row, self._top)) if self._top else ()
        return Chosen(token, float(logprobs(row)[token]), top, reason)
