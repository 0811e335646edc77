"""Candidates: the order in which tokens come out of a guess, and the weights they carry."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafting.drafter import Guess
from drafting.proposing import Proposer
from drafting.verification import Rule
from split_model.sampling import BadSampling, SamplingParams, draw, probabilities

VOCAB = 30
logits_of = st.integers(0, 10_000).map(
    lambda seed: 2 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))
)
counts_of = st.integers(1, VOCAB + 3)
params_of = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([1.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
)


@settings(max_examples=25)
@given(logits_of, counts_of)
def test_greedy_candidates_are_the_likeliest(logits: torch.Tensor, count: int) -> None:
    """In order, with their probability at temperature 1, HAT's confidence; one alone is the first of many."""
    proposer = Proposer(SamplingParams(), [1, 2], 0, "block")
    found = proposer.candidates(Guess("a", logits), [3], [4], count)
    expected = logits.softmax(0).sort(descending=True)
    assert [each.token for each in found] == expected.indices[:count].tolist()
    torch.testing.assert_close(torch.tensor([each.weight for each in found]), expected.values[:count])
    assert {(each.source, each.chances) for each in found} == {("a", None)}
    [alone] = proposer.candidates(Guess("a", logits), [3], [4], 1)
    assert alone.token == found[0].token and alone.weight == pytest.approx(found[0].weight)


@settings(max_examples=25)
@given(logits_of, params_of, st.integers(0, 2**64 - 1), counts_of)
def test_keyed_candidates_race_as_the_targets_would(
    logits: torch.Tensor, params: SamplingParams, seed: int, count: int
) -> None:
    """The first is what the target would draw at this position were it of the drafter's mind; the second, what it would
    draw without the first."""
    proposer = Proposer(params, [1, 2], seed, "keyed")
    found = proposer.candidates(Guess("a", logits), [3, 4], [5], count)
    q = probabilities(logits, params, [1, 2], [3, 4, 5])
    left = q.clone()
    for candidate in found:
        assert candidate.token == draw(left, seed, 5)
        assert candidate.weight == float(q[candidate.token]) > 0
        assert candidate.chances is None
        left[candidate.token] = 0
    assert len(found) == min(count, int((q > 0).sum()))


@pytest.mark.parametrize("rule", ["rejection", "block"])
@settings(max_examples=25)
@given(logits=logits_of, params=params_of, seed=st.integers(0, 2**64 - 1), count=counts_of)
def test_a_drawn_candidate_carries_what_it_was_drawn_from(
    rule: Rule, logits: torch.Tensor, params: SamplingParams, seed: int, count: int
) -> None:
    """The weight of the first is that of the likeliest, whichever was drawn; the others come by q, none twice."""
    found = Proposer(params, [1, 2], seed, rule).candidates(Guess("a", logits), [3, 4], [5], count)
    q = probabilities(logits, params, [1, 2], [3, 4, 5])
    assert all(torch.equal(each.chances, q) for each in found if each.chances is not None)
    assert None not in [each.chances for each in found]
    assert q[found[0].token] > 0 and found[0].weight == float(q.max())
    weights = [each.weight for each in found[1:]]
    assert weights == sorted(weights, reverse=True) == [float(q[each.token]) for each in found[1:]]
    assert len({each.token for each in found}) == len(found) == min(count, int((q > 0).sum()))


def test_drawn_candidates_follow_q() -> None:
    """Over many seeds, and independently of what the same seed draws without a draft."""
    q = torch.tensor([0.5, 0.3, 0.2])
    pairs = torch.zeros(3, 3)
    for seed in range(2_000):
        proposer = Proposer(SamplingParams(temperature=1.0), [1], seed, "rejection")
        [drafted] = proposer.candidates(Guess("a", q.log()), [2], [], 1)
        pairs[drafted.token, draw(q, seed, 2)] += 1
    expected = 2_000 * q[:, None] * q[None]
    statistic = float(((pairs - expected) ** 2 / expected).sum())
    assert torch.special.gammaincc(torch.tensor(4.0), torch.tensor(statistic / 2)) > 0.001


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_see_the_drafted_tokens_too(temperature: float) -> None:
    """What the draft says already weighs as much against a token as what was chosen."""
    params = SamplingParams(temperature=temperature, presence_penalty=50.0)
    proposer = Proposer(params, [0], 3, "keyed")
    guess = Guess("a", torch.tensor([0.0, 9.0, 5.0, 1.0]))
    assert proposer.candidates(guess, [0], [], 1)[0].token == 1
    assert proposer.candidates(guess, [0], [1], 1)[0].token == 2
    assert proposer.candidates(guess, [0, 2], [1], 1)[0].token == 3


@pytest.mark.parametrize("rule", ["keyed", "rejection", "block"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ranked_guesses_are_taken_as_they_are(rule: Rule, temperature: float) -> None:
    """Their tokens are chosen, not drawn, so there are no chances."""
    guess = Guess("suffix", ranked=((7, 0.9), (2, 0.4), (5, 0.1)))
    found = Proposer(SamplingParams(temperature=temperature), [0], 0, rule).candidates(guess, [1], [], 2)
    assert [(each.token, each.weight, each.chances) for each in found] == [(7, 0.9, None), (2, 0.4, None)]
    assert Proposer(SamplingParams(), [0], 0, rule).candidates(Guess("suffix"), [1], [], 2) == []


@pytest.mark.parametrize("rule", ["keyed", "rejection", "block"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers_propose_nothing(rule: Rule, temperature: float, bad: float) -> None:
    """A broken drafter costs its drafts, never the answer."""
    proposer = Proposer(SamplingParams(temperature=temperature), [0], 0, rule)
    assert proposer.candidates(Guess("a", torch.full((5,), bad)), [1], [], 3) == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_outside_the_vocabulary_is_refused(temperature: float) -> None:
    """As it is by verification."""
    proposer = Proposer(SamplingParams(temperature=temperature, logit_bias={5: 1.0}), [0], 0, "keyed")
    with pytest.raises(BadSampling, match="logit_bias"):
        proposer.candidates(Guess("a", torch.zeros(5)), [1], [], 1)
