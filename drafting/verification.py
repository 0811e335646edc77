"""What becomes of a draft once the target's logits are there: how many of its tokens stay, and the token after them.

Three rules, all lossless; greedy answers need none of them, for a drafted token stays when it is the likeliest.

- ``keyed``: each token is drawn as it would be without a draft, with the noise of its position, and the draft stays as
  far as it agrees. The text of a seed is the same whatever was drafted (Gumbel coupling, arXiv 2408.07978). That is no
  more than to choose, and is left to whoever chooses tokens; the other two are here.
- ``rejection``: a token drawn from q stays with chance ``min(1, p / q)``, and the first that does not is drawn anew
  from ``max(p - q, 0)`` (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). The distribution is the
  same, the text of a seed is not.
- ``block``: the same with the ratios of whole prefixes (Sun et al., arXiv 2403.10444, algorithm 2), which keeps more.

All p and q have been through the same warpers. A draft without q was chosen, not drawn: its q is 1 for its token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch

from split_model.sampling import SamplingParams, draw, noise, probabilities

Rule = Literal["keyed", "rejection", "block"]

DRAFT_STREAM, ACCEPT_STREAM, RESIDUAL_STREAM = 1, 2, 3
"""Streams of noise beside that of plain sampling, 0; see ``stream``."""


class Drafted(Protocol):
    """A token of a draft, and the probabilities it was drawn from; None where it was chosen, not drawn."""

    @property
    def token(self) -> int: ...

    @property
    def chances(self) -> torch.Tensor | None: ...


def stream(purpose: int, start: int) -> tuple[int, int]:
    """The stream of noise for ``purpose`` in the round whose first token to choose has the position ``start``.

    Each round has its own: the verdict of a block depends on noise of positions that the next round drafts again.
    """
    return (start, purpose)


@torch.inference_mode()
def verify(
    logits: torch.Tensor,
    draft: Sequence[Drafted],
    rule: Rule,
    params: SamplingParams,
    prompt: Sequence[int],
    generated: Sequence[int],
    seed: int,
) -> tuple[int, ...]:
    """The verdict on a chain by ``rejection`` or ``block``: the drafted tokens that stay, then one more.

    Args:
        logits: the target's, float32 ``[len(draft) + 1, vocab]``: after the last token chosen, then after each drafted.
        generated: the tokens chosen so far.

    Raises:
        BadSampling: ``logit_bias`` names an id outside the vocabulary.
        ValueError: the logits are not numbers.
    """
    assert len(logits) == len(draft) + 1 and not params.is_greedy and rule != "keyed"
    judge = _reject if rule == "rejection" else _judge_block
    tokens = [each.token for each in draft]
    start = len(prompt) + len(generated)
    text = [*generated, *tokens]

    def target(row: int) -> torch.Tensor:
        return probabilities(logits[row], params, prompt, text[: len(generated) + row])

    accepted, rates = judge(target, draft, seed, start)
    if not float(rates.sum()) > 0:
        rates = target(accepted)  # rounding left nothing, or the logits are not numbers
    token = draw(rates, seed, start + accepted, stream(RESIDUAL_STREAM, start))
    return (*tokens[:accepted], token)


class _Target(Protocol):
    def __call__(self, row: int) -> torch.Tensor:
        """p after the first ``row`` tokens of the draft, ``[vocab]``."""
        ...


def _reject(target: _Target, draft: Sequence[Drafted], seed: int, start: int) -> tuple[int, torch.Tensor]:
    """How many tokens stay, and the rates to draw the next one at."""
    for index, drafted in enumerate(draft):
        p = target(index)
        q = 1.0 if drafted.chances is None else float(drafted.chances[drafted.token])
        if not noise(seed, start + index, stream(ACCEPT_STREAM, start)) * q < float(p[drafted.token]):
            return index, _residual(p, drafted, 1.0)
    return len(draft), target(len(draft))


def _judge_block(target: _Target, draft: Sequence[Drafted], seed: int, start: int) -> tuple[int, torch.Tensor]:
    """The same for a block: ``joint`` is p_i of algorithm 2, the chance that at least i tokens stay, given them."""
    joint, accepted, rates = 1.0, 0, None
    for index in range(len(draft) + 1):
        p = target(index)
        if index < len(draft):
            residual = _residual(p, draft[index], joint)
            left = float(residual.sum())
            # 0 / 0 is where p and q are the same: more will stay for sure.
            chance = left / (left + (1 - joint)) if left > 0 else 0.0  # 1 - joint first: left may be 1e-17.
        else:
            residual, chance = p, joint
        # Nothing drafted is sure to stay: 0 tokens always may.
        if index == 0 or noise(seed, start + index - 1, stream(ACCEPT_STREAM, start)) < chance:
            accepted, rates = index, residual
        if index < len(draft):
            drafted = draft[index]
            q = 1.0 if drafted.chances is None else float(drafted.chances[drafted.token])
            joint = min(joint * float(p[drafted.token]) / q, 1.0) if q > 0 else 1.0
    assert rates is not None
    return accepted, rates


def _residual(p: torch.Tensor, drafted: Drafted, joint: float) -> torch.Tensor:
    """``max(joint p - q, 0)``."""
    if drafted.chances is not None:
        return (p * joint - drafted.chances).clamp_(min=0)
    rates = p * joint
    rates[drafted.token] = 0.0
    return rates
