"""Which tokens a drafter's guess stands for, best first: through the same warpers as the target's logits.

The rule of verification decides what the best one is. ``keyed``: the token that this guess would give if it were the
target's, drawn with the same noise; so a draft agrees where the distributions do. ``rejection`` and ``block``: a token
drawn from the guess with noise of its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from drafting.drafter import Guess
from drafting.masks import Masks, masked
from drafting.verification import DRAFT_STREAM, Rule, stream
from split_model.device import on_host
from split_model.sampling import NOBODY, SamplingParams, drawn, penalised, probabilities
from split_model.tree import TRUNK


@dataclass(frozen=True)
class Candidate:
    """A token that may be drafted.

    Attributes:
        weight: the drafter's confidence, 0 to 1, as it says it. For a draft that is drawn this is the highest of
            ``chances``: whether a token is sent must not depend on which one was drawn, or what is chosen would.
        chances: q ``[vocab]`` that the token was drawn from, after all warpers; None where it was chosen, not drawn.
        source: the drafter.
    """

    token: int
    weight: float
    chances: torch.Tensor | None
    source: str


class Proposer:
    """Turns the guesses about one answer into candidates.

    Args:
        params: of the answer; greedy ones make the rule idle.
        prompt: the tokens before the answer.
        seed: of the answer's noise.
        rule: how its drafts will be verified.
        masks: what may follow in it.
    """

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], seed: int, rule: Rule, masks: Masks | None = None
    ) -> None:
        self._params = params
        self._prompt = prompt
        self._seed = seed
        self._rule = rule
        self._masks = masks
        self._warps_by_text = bool(
            params.logit_bias
            or params.repetition_penalty != 1
            or params.presence_penalty
            or params.frequency_penalty
            or params.bans
        )

    @torch.inference_mode()
    def candidates(self, guess: Guess, generated: Sequence[int], drafted: Sequence[int], count: int) -> list[Candidate]:
        """At most ``count`` different tokens that may follow, best first; the first is the one to draft.

        None come out of logits that are not numbers: a draft is never worth an answer.

        Args:
            generated: tokens chosen so far.
            drafted: the drafted ones between them and this guess.

        Raises:
            BadSampling: ``logit_bias`` names an id outside the vocabulary.
            CannotTell: as the answer's masks.
        """
        assert count > 0
        text = [*generated, *drafted] if self._warps_by_text or self._masks is not None else ()
        if guess.logits is None:
            barred = None if self._masks is None else self._masks.barred(text)
            ranked = [each for each in guess.ranked if barred is None or not barred[each[0]]]
            return [Candidate(token, weight, None, guess.source) for token, weight in ranked[:count]]
        logits = masked(guess.logits, self._masks, text)
        if self._params.is_greedy:
            return self._likeliest(logits, text, count, guess.source)
        q = probabilities(logits, self._params, self._prompt, text)
        start = len(self._prompt) + len(generated)
        if self._rule == "keyed":
            ids = drawn(q, self._seed, start + len(drafted), count)
            found = on_host(ids, q.take(ids.clamp(min=0)))
            return [
                Candidate(token, chance, None, guess.source)
                for token, chance in zip(*found, strict=True)
                if token != NOBODY
            ]
        return self._drawn(q, start, len(drafted), count, guess.source)

    @torch.inference_mode()
    def pick(
        self, guess: Guess, generated: Sequence[int], drafted: Sequence[int], unseen: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The first of ``candidates`` where ``guess`` has logits. Their device is not waited for.

        Args:
            generated, drafted: see ``candidates``.
            unseen: the drafted tokens behind them that the host does not know, int64 ``[1]`` each, where the logits
                are.

        Returns:
            token int64 ``[1]``, weight float32 ``[1]``, both where the logits are, and ``Candidate.chances``. The token
            is ``NOBODY``, or the weight no number, where there is none.
        """
        logits, start, depth = guess.logits, len(self._prompt) + len(generated), len(drafted) + len(unseen)
        assert logits is not None
        text = [*generated, *drafted] if self._warps_by_text else ()
        further = torch.cat(list(unseen)) if unseen and self._warps_by_text else None
        if self._params.is_greedy:
            if self._warps_by_text:
                logits = penalised(logits, self._params, self._prompt, text, further)
            ids = logits.argmax(0, keepdim=True)
            return ids, (logits.take(ids) - logits.logsumexp(0)).exp(), None
        q = probabilities(logits, self._params, self._prompt, text, further)
        if self._rule == "keyed":
            ids = drawn(q, self._seed, start + depth)
            return ids, q.take(ids.clamp(min=0)), None
        return drawn(q, self._seed, start + depth, 1, stream(DRAFT_STREAM, start)), q.amax(0, keepdim=True), q

    def _likeliest(self, logits: torch.Tensor, text: Sequence[int], count: int, source: str) -> list[Candidate]:
        """By logits; the weight is the probability at temperature 1, as in HAT Eq. 5."""
        if self._warps_by_text:
            logits = penalised(logits, self._params, self._prompt, text)
        ids = logits.argmax(0, keepdim=True) if count == 1 else logits.topk(min(count, len(logits))).indices
        total, tokens, values = on_host(logits.logsumexp(0), ids, logits.take(ids))
        if not math.isfinite(total):
            return []
        return [
            Candidate(token, math.exp(logit - total), None, source)
            for token, logit in zip(tokens, values, strict=True)
            if logit > -math.inf
        ]

    def _drawn(self, q: torch.Tensor, start: int, depth: int, count: int, source: str) -> list[Candidate]:
        first = drawn(q, self._seed, start + depth, 1, stream(DRAFT_STREAM, start))
        best = q.topk(min(count, len(q)))
        drawn_here, tokens, chances = on_host(first, best.indices, best.values)
        found = [Candidate(token, chances[0], q, source) for token in drawn_here if token != NOBODY]
        if not found:
            return []
        found += [
            Candidate(token, chance, q, source)
            for token, chance in zip(tokens, chances, strict=True)
            if token != found[0].token and chance > 0
        ]
        return found[:count]


def likeliest_tree(choices: Sequence[Sequence[Candidate]], most: int) -> list[tuple[int, Candidate]]:
    """Of all trees of at most ``most`` nodes the one that is accepted furthest: parent and candidate of each node.

    choices: what may follow every node of depth 0, 1, …, best first; weights are taken for chances.
    """
    return grown_tree(lambda path: choices[len(path)] if len(path) < len(choices) else (), most)


def grown_tree(behind: Callable[[Sequence[int]], Sequence[Candidate]], most: int) -> list[tuple[int, Candidate]]:
    """The same tree where what follows a node depends on the tokens on the way to it, its own last.

    behind: of those tokens, what may follow; asked once of each node of the tree.
    """
    found: list[tuple[int, Candidate]] = []
    paths: list[tuple[int, ...]] = []
    # Best first: a node's chance is never above its parent's, so parents come before their children.
    waiting = [(-each.weight, at, TRUNK, each) for at, each in enumerate(behind(()))]
    heapq.heapify(waiting)
    count = len(waiting)
    while waiting and len(found) < most:
        negative, _, parent, candidate = heapq.heappop(waiting)
        paths.append((*(() if parent == TRUNK else paths[parent]), candidate.token))
        found.append((parent, candidate))
        if len(found) == most:
            break
        for each in behind(paths[-1]):
            heapq.heappush(waiting, (negative * each.weight, count, len(found) - 1, each))
            count += 1
    return found
