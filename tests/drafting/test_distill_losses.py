"""The losses of distillation, on numbers that can be worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from drafting.distill.losses import LOSSES, Compared, cross_entropy, divergence, entropy, overlap

P = torch.tensor([[0.5, 0.25, 0.25]])
Q = torch.tensor([[0.25, 0.25, 0.5]])


def compared(logits: torch.Tensor, p: torch.Tensor, normed: torch.Tensor | None = None) -> Compared:
    rows = torch.zeros(len(p), 4)
    return Compared(rows if normed is None else normed, rows, logits.log_softmax(-1), p, entropy(p.log()))


def test_distances_by_hand() -> None:
    """KL, cross entropy and overlap of two distributions of thirds and halves."""
    assert float(overlap(Q.log(), P)) == pytest.approx(0.75)
    assert float(cross_entropy(Q.log(), P)) == pytest.approx(
        0.5 * math.log(4) + 0.25 * math.log(4) + 0.25 * math.log(2)
    )
    assert float(divergence(compared(Q.log(), P))) == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(0.5))


def test_hat_by_hand() -> None:
    """SmoothL1 is half the square below a difference of one and the difference less a half above; + 0.1 x CE."""
    normed = torch.tensor([[0.5, -2.0, 0.0, 0.0]])
    features = (0.5 * 0.25 + 1.5) / 4
    expected = features + 0.1 * float(cross_entropy(Q.log(), P))
    assert float(LOSSES["hat"](compared(Q.log(), P, normed))) == pytest.approx(expected, rel=1e-5)


def test_lk_hybrid_by_hand() -> None:
    """At an overlap of 3/4, KL weighs exp(-9/4) and the negative logarithm of the overlap the rest."""
    share = math.exp(-2.25)
    expected = share * float(divergence(compared(Q.log(), P))) + (1 - share) * -math.log(0.75)
    assert float(LOSSES["lk-hybrid"](compared(Q.log(), P))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["kl", "lk-hybrid"])
def test_least_where_equal(name: str) -> None:
    """Both are zero, with no gradient to speak of, where the drafter's distribution is the model's."""
    chance = torch.Generator().manual_seed(3)
    logits = torch.randn(5, 7, generator=chance, requires_grad=True)
    loss = LOSSES[name](compared(logits, logits.detach().softmax(-1)))
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    moved = logits.detach() + 0.3 * torch.randn(5, 7, generator=chance)
    assert float(LOSSES[name](compared(moved, logits.detach().softmax(-1)))) > 1e-3


@pytest.mark.parametrize("name", list(LOSSES))
def test_gradient_raises_what_is_too_low(name: str) -> None:
    """A step down the gradient gives more to the token that the model thinks likelier, and less to the other."""
    logits = Q.log().clone().requires_grad_()
    torch.autograd.backward(LOSSES[name](compared(logits, P)))
    assert logits.grad is not None
    assert logits.grad[0, 0] < 0 < logits.grad[0, 2]


@pytest.mark.parametrize("name", ["kl", "lk-hybrid"])
def test_descends_to_the_model(name: str) -> None:
    """Following the gradient from a far-off start, the overlap becomes nearly one."""
    p = torch.tensor([[0.9, 0.06, 0.03, 0.01]])
    logits = torch.tensor([[-4.0, 4.0, 0.0, 0.0]], requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(400):
        optimizer.zero_grad()
        torch.autograd.backward(LOSSES[name](compared(logits, p)))
        optimizer.step()
    assert float(overlap(logits.detach().log_softmax(-1), p)) > 0.98


def test_no_shared_token_is_finite() -> None:
    """Distributions that share nothing give a finite loss with a gradient."""
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    loss = LOSSES["lk-hybrid"](compared(logits, torch.tensor([[1e-30, 1.0]])))
    torch.autograd.backward(loss)
    assert logits.grad is not None and torch.isfinite(loss) and torch.isfinite(logits.grad).all()
    assert logits.grad[0, 1] < 0
