"""What training makes small: how far a drafter's rows or distributions are from the model's.

p is the model's distribution of the next token, q the drafter's, both float32 [rows, vocab]; every loss is the mean
over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

CROSS_ENTROPY_WEIGHT = 0.1
HYBRID_SLOPE = 3.0
SMALLEST = 1e-9
"""Under the logarithm of an overlap, which is zero where two distributions share no token."""


@dataclass(frozen=True)
class Compared:
    """Rows of drafter and model for the same positions.

    Attributes:
        normed, target_normed: after the final norm, [rows, hidden_size].
        log_q: of the drafter, log-softmax [rows, vocab].
        p: of the model, softmax [rows, vocab].
        entropy: of p, [rows].
    """

    normed: Tensor
    target_normed: Tensor
    log_q: Tensor
    p: Tensor
    entropy: Tensor


def cross_entropy(log_q: Tensor, p: Tensor) -> Tensor:
    """-sum p log q: of soft labels."""
    return -(p * log_q).sum(-1).mean()


def entropy(log_p: Tensor) -> Tensor:
    """[rows]: -sum p log p."""
    return -(log_p.exp() * log_p).sum(-1)


def divergence(rows: Compared) -> Tensor:
    """KL(p || q), zero where the two are equal."""
    return cross_entropy(rows.log_q, rows.p) - rows.entropy.mean()


def overlap(log_q: Tensor, p: Tensor) -> Tensor:
    """[rows]: sum min(p, q), the chance that rejection sampling accepts a token drawn from q."""
    return torch.minimum(p, log_q.exp()).sum(-1)


def hat(rows: Compared) -> Tensor:
    """HAT's Eq. 4: SmoothL1 between features + 0.1 x cross entropy.

    The features are those behind the final norm. That is where the head reads them, so it is what must agree; before
    the norm the length of a row means nothing to the head, but would rule the loss.
    """
    features = F.smooth_l1_loss(rows.normed, rows.target_normed)
    return features + CROSS_ENTROPY_WEIGHT * cross_entropy(rows.log_q, rows.p)


def kl(rows: Compared) -> Tensor:
    """KL(p || q)."""
    return divergence(rows)


def lk_hybrid(rows: Compared) -> Tensor:
    """-log overlap, blended with KL by exp(-3 x mean overlap).

    The overlap is what is wanted, but where it is small its gradient is too: KL leads until the two meet.
    """
    shared = overlap(rows.log_q, rows.p)
    share = torch.exp(-HYBRID_SLOPE * shared.detach().mean())
    wanted = -(shared + SMALLEST).log().mean()
    return share * divergence(rows) + (1 - share) * wanted


LOSSES: dict[str, Callable[[Compared], Tensor]] = {"hat": hat, "kl": kl, "lk-hybrid": lk_hybrid}
