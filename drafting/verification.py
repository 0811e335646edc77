"""What becomes of a draft once the target's logits are there: how many of its tokens stay, and the token after them.

Three rules, all lossless; greedy answers need none of them, for a drafted token stays when it is the likeliest.

- ``keyed``: each token is drawn as it would be without a draft, with the noise of its position, and the draft stays as
  far as it agrees. The text of a seed is the same whatever was drafted (Gumbel coupling, arXiv 2408.07978). That is no
  more than to choose, and is left to whoever chooses tokens; the other two are here.
- ``rejection``: a token drawn from q stays with chance ``min(1, p / q)``, and the first that does not is drawn anew
  from ``max(p - q, 0)`` (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). The distribution is the
  same, the text of a seed is not.
- ``block``: the same with the ratios of whole prefixes (Sun et al., arXiv 2403.10444, algorithm 2), which keeps more.

A verdict is made where the logits are and crosses to the host whole: a device that is not the CPU is waited for once.

All p and q have been through the same warpers. A draft without q was chosen, not drawn: its q is 1 for its token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import torch

from split_model.device import on_host
from split_model.sampling import SamplingParams, checked, draw, drawn_at, noise, probabilities

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

    verdict = judge(target, draft, seed, start)
    # Where rounding left nothing, or the logits are not numbers.
    rates = torch.where(verdict.rates.sum() > 0, verdict.rates, verdict.otherwise)
    after = stream(RESIDUAL_STREAM, start)
    if logits.is_cpu:
        accepted = int(verdict.accepted)
        return (*tokens[:accepted], draw(rates, seed, start + accepted, after))
    # Which position is drawn for the host does not know yet: the count of tokens that stay crosses with the next one.
    positions = range(start, start + len(draft) + 1)
    accepted, ids = on_host(verdict.accepted, drawn_at(rates, seed, positions, verdict.accepted, after))
    return (*tokens[:accepted], *checked(ids))


class _Target(Protocol):
    def __call__(self, row: int) -> torch.Tensor:
        """p after the first ``row`` tokens of the draft, ``[vocab]``."""
        ...


class _Verdict(NamedTuple):
    """Where the target's logits are, and known to nobody yet.

    Attributes:
        accepted: how many tokens stay, int64 without a dimension.
        rates: to draw the next one at, float32 ``[vocab]``.
        otherwise: where these are all 0: p.
    """

    accepted: torch.Tensor
    rates: torch.Tensor
    otherwise: torch.Tensor

    def unless(self, goes_on: torch.Tensor, accepted: int, rates: torch.Tensor, otherwise: torch.Tensor) -> _Verdict:
        """This one, or where it ``goes_on`` another."""
        return _Verdict(
            self.accepted.masked_fill(goes_on, accepted),
            torch.where(goes_on, rates, self.rates),
            torch.where(goes_on, otherwise, self.otherwise),
        )


def _reject(target: _Target, draft: Sequence[Drafted], seed: int, start: int) -> _Verdict:
    """Each token stays or not, and the first that does not ends it."""
    p = target(0)
    stays = torch.ones((), dtype=torch.bool, device=p.device)
    verdict = _Verdict(torch.zeros((), dtype=torch.int64, device=p.device), p, p)
    for index in range(len(draft) + 1):
        rates = _residual(p, draft[index], 1.0) if index < len(draft) else p
        verdict = verdict.unless(stays, index, rates, p)
        if index == len(draft):
            break
        token = draft[index].token
        stays = stays & (
            noise(seed, start + index, stream(ACCEPT_STREAM, start)) * _q(draft[index], p) < p[token].double()
        )
        if p.is_cpu and not stays:  # On another device nobody is waited for, and the rest changes nothing.
            break
        p = target(index + 1)
    return verdict


def _judge_block(target: _Target, draft: Sequence[Drafted], seed: int, start: int) -> _Verdict:
    """The same for a block: ``joint`` is p_i of algorithm 2, the chance that at least i tokens stay, given them."""
    p = target(0)
    joint = torch.ones((), dtype=torch.float64, device=p.device)
    over = torch.zeros((), dtype=torch.bool, device=p.device)
    # Nothing drafted is sure to stay: 0 tokens always may.
    rates = _residual(p, draft[0], joint) if draft else p
    verdict = _Verdict(torch.zeros((), dtype=torch.int64, device=p.device), rates, p)
    for index, drafted in enumerate(draft, 1):
        q = _q(drafted, p)
        joint = torch.where(q > 0, (joint * p[drafted.token].double() / q).clamp(max=1.0), 1.0)
        p = target(index)
        if index < len(draft):
            rates = _residual(p, draft[index], joint)
            left = rates.sum().double()
            # 0 / 0 is where p and q are the same: more will stay for sure.
            chance = torch.where(left > 0, left / (left + (1 - joint)), 0.0)  # 1 - joint first: left may be 1e-17.
        else:
            rates, chance = p, joint
        # Where nothing may follow the draft ends: that it does is no reason to prefer another text.
        nothing = p.isnan().any()
        rates, chance = torch.where(nothing, p, rates), torch.where(nothing, joint, chance)
        goes_on = noise(seed, start + index - 1, stream(ACCEPT_STREAM, start)) < chance
        verdict = verdict.unless(goes_on & ~over, index, rates, p)
        over = over | nothing
    return verdict


def _q(drafted: Drafted, p: torch.Tensor) -> torch.Tensor:
    """The chance that a token was drawn with, float64 without a dimension where ``p`` is; 1 where it was chosen."""
    if drafted.chances is None:
        return torch.ones((), dtype=torch.float64, device=p.device)
    return drafted.chances[drafted.token].double()


def _residual(p: torch.Tensor, drafted: Drafted, joint: torch.Tensor | float) -> torch.Tensor:
    """``max(joint p - q, 0)``."""
    if drafted.chances is not None:
        return (p * joint - drafted.chances).clamp_(min=0)
    rates = p * joint
    rates[drafted.token] = 0.0
    return rates
