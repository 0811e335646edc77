"""Sampling against transformers' own processors, and the draw against statistics."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from split_model.sampling import (
    BadSampling,
    SamplingParams,
    checked,
    draw,
    logprobs,
    picked,
    probabilities,
    top_logprobs,
)

VOCAB = 40
logits_of = st.integers(0, 10_000).map(
    lambda seed: torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * (1 + seed % 5)
)
ids_of = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=10)


def by_transformers(processors: list[Any], logits: torch.Tensor, ids: list[int]) -> torch.Tensor:
    scores: torch.Tensor = LogitsProcessorList(processors)(torch.tensor([ids]), logits[None].clone())
    return scores[0].softmax(0)


@given(
    logits_of,
    ids_of,
    st.floats(0.1, 3),
    st.integers(0, VOCAB + 5),
    st.floats(0.05, 1),
    st.floats(0, 0.9),
    st.floats(0.5, 2),
)
def test_the_whole_pipeline_is_that_of_transformers(
    logits: torch.Tensor, ids: list[int], temperature: float, top_k: int, top_p: float, min_p: float, repetition: float
) -> None:
    """Repetition penalty, temperature, top-k, top-p and min-p, alone and together, in transformers' order."""
    processors = [RepetitionPenaltyLogitsProcessor(repetition), TemperatureLogitsWarper(temperature)]
    processors += [TopKLogitsWarper(top_k)] if top_k else []
    processors += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    processors += [MinPLogitsWarper(min_p)]
    params = SamplingParams(temperature, top_p, top_k, min_p, repetition_penalty=repetition)
    found = probabilities(logits, params, ids[:3], ids[3:])
    torch.testing.assert_close(found, by_transformers(processors, logits, ids), rtol=0, atol=1e-6)


@given(logits_of, st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), min_size=1, max_size=5))
def test_bias_is_that_of_transformers(logits: torch.Tensor, bias: dict[int, float]) -> None:
    """logit_bias adds to the logits before everything else."""
    wanted = by_transformers(
        [SequenceBiasLogitsProcessor([[[key], value] for key, value in bias.items()])], logits, [0]
    )
    found = probabilities(logits, SamplingParams(temperature=1.0, logit_bias=bias))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


@given(logits_of, ids_of, ids_of, st.floats(-2, 2), st.floats(-2, 2))
def test_presence_and_frequency_follow_the_published_formula(
    logits: torch.Tensor, prompt: list[int], generated: list[int], presence: float, frequency: float
) -> None:
    """Each generated token loses presence + frequency * count; the prompt does not count."""
    wanted = logits.clone()
    for token in set(generated):
        wanted[token] -= presence + frequency * generated.count(token)
    params = SamplingParams(temperature=1.0, presence_penalty=presence, frequency_penalty=frequency)
    torch.testing.assert_close(probabilities(logits, params, prompt, generated), wanted.softmax(0), rtol=0, atol=1e-6)


@given(logits_of, ids_of)
def test_greedy_is_the_lowest_of_the_highest(logits: torch.Tensor, ids: list[int]) -> None:
    """Temperature 0 gives all to the argmax after the penalties; equals go to the lowest id."""
    chances = probabilities(logits, SamplingParams())
    assert chances.sum() == 1 and int(chances.argmax()) == int(logits.argmax())
    tied = logits.round()
    chosen = int(probabilities(tied, SamplingParams()).argmax())
    assert chosen == min(index for index, value in enumerate(tied.tolist()) if value == tied.max())
    penalised = probabilities(logits, SamplingParams(frequency_penalty=2.0), ids, [chosen] * 90)
    assert int(penalised.argmax()) != chosen


def test_what_is_no_number_is_no_choice() -> None:
    """Greedy or not, and whatever else has a number: broken weights say nothing."""
    for params in (SamplingParams(), SamplingParams(temperature=1.0)):
        for logits in ([math.nan] * 3, [1.0, math.nan, 2.0], [-math.inf] * 3):
            with pytest.raises(ValueError):
                checked(picked(torch.tensor(logits), params, [], [], 0).tolist())


@given(logits_of, st.floats(0.1, 3), st.integers(0, 10), st.floats(0.05, 1))
def test_probabilities_are_a_distribution_and_the_logits_stay(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float
) -> None:
    """They sum to 1, keep the likeliest token, and leave their input as it was."""
    before = logits.clone()
    params = SamplingParams(temperature, top_p, top_k, logit_bias={1: 1.0}, presence_penalty=1.0)
    chances = probabilities(logits, params, [1, 2], [3, 3])
    assert torch.equal(logits, before)
    assert math.isclose(float(chances.sum()), 1, abs_tol=1e-5) and chances.min() >= 0 and chances.max() > 0


def test_draws_follow_the_probabilities() -> None:
    """Chi-square over 20,000 positions: the counts fit, for the marginals and for pairs of neighbours."""
    chances = torch.tensor([0.4, 0.3, 0.0, 0.15, 0.1, 0.05])
    count = 20_000
    drawn = torch.tensor([draw(chances, 7, position) for position in range(count)])
    observed = torch.bincount(drawn, minlength=6).double()
    assert observed[2] == 0
    possible = chances > 0
    expected = chances[possible].double() * count
    assert float(((observed[possible] - expected) ** 2 / expected).sum()) < 18.5  # 4 degrees of freedom, p = 0.001
    pairs = torch.bincount(drawn[:-1] * 6 + drawn[1:], minlength=36).double().view(6, 6)[possible][:, possible]
    expected = torch.outer(chances[possible], chances[possible]).double() * (count - 1)
    assert float(((pairs - expected) ** 2 / expected).sum()) < 51.2  # 24 degrees of freedom, p = 0.001


def test_draws_depend_on_seed_and_position_only() -> None:
    """The same pair gives the same token, whatever was drawn between; other pairs give others."""
    chances = torch.full((1000,), 0.001)
    drawn = {(seed, position): draw(chances, seed, position) for seed in range(20) for position in range(20)}
    assert len(set(drawn.values())) > 250
    for (seed, position), token in reversed(drawn.items()):
        assert draw(chances, seed, position) == token
    assert draw(chances, (1 << 64) - 1, 1 << 40) == draw(chances, (1 << 64) - 1, 1 << 40)


def test_a_draw_is_the_same_on_every_machine() -> None:
    """Fixed values: a change of them changes every seeded text that users have seen."""
    chances = torch.linspace(1, 2, 500)
    chances /= chances.sum()
    assert [draw(chances, seed, position) for seed, position in ((0, 0), (0, 1), (1, 0), (2**63, 9))] == [
        162,
        338,
        476,
        177,
    ]


def test_a_small_change_of_the_probabilities_mostly_keeps_the_token() -> None:
    """The noise belongs to the token id, so nearly equal distributions draw nearly equal texts."""
    chances = torch.rand(200, generator=torch.Generator().manual_seed(1)).softmax(0)
    nudged = chances * (1 + 0.02 * torch.rand(200, generator=torch.Generator().manual_seed(2)))
    same = sum(draw(chances, 3, position) == draw(nudged, 3, position) for position in range(500))
    assert same > 470


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "1"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("top_k", 1.0),
        ("top_k", True),
        ("min_p", 2),
        ("presence_penalty", None),
        ("frequency_penalty", float("inf")),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e-38),
        ("logit_bias", [1]),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {1: float("nan")}),
        ("seed", -1),
        ("seed", 1 << 64),
        ("seed", 1.0),
    ],
)
def test_bad_parameters_name_their_field(field: str, value: Any) -> None:
    """Every value out of range is a BadSampling, which is a ValueError, with the field's name."""
    with pytest.raises(BadSampling) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field and isinstance(caught.value, ValueError)


def test_bias_outside_the_vocabulary_is_refused_when_used() -> None:
    """Only the logits know the vocabulary's size."""
    with pytest.raises(BadSampling, match="vocabulary"):
        probabilities(torch.zeros(VOCAB), SamplingParams(logit_bias={VOCAB: 1.0}))


def test_logprobs_are_of_the_raw_logits() -> None:
    """Log-softmax without bias or filters; the top n come most likely first."""
    logits = torch.tensor([1.0, 3.0, 2.0])
    found = logprobs(logits)
    torch.testing.assert_close(found.exp().sum(), torch.tensor(1.0))
    assert [token for token, _ in top_logprobs(logits, 2)] == [1, 2]
    assert top_logprobs(logits, 1)[0][1] == pytest.approx(float(found[1]))
    assert len(top_logprobs(logits, 10)) == 3


@pytest.mark.parametrize("temperature", [1e-3, 1e-37, 1e-38, 5e-324])
def test_however_small_the_temperature_the_likeliest_is_drawn(temperature: float) -> None:
    """Dividing by almost nothing must not end in infinities that make token 0 of everything."""
    logits = torch.randperm(500, generator=torch.Generator().manual_seed(1)) * 0.1
    chances = probabilities(logits, SamplingParams(temperature=temperature))
    assert bool(torch.isfinite(chances).all())
    assert {draw(chances, seed, 3) for seed in range(5)} == {int(logits.argmax())}


@pytest.mark.parametrize("chances", [[0.0, 0.0], [float("nan"), 0.5], [float("nan")] * 2])
def test_nothing_is_drawn_from_no_probabilities(chances: list[float]) -> None:
    """A typed error instead of some token."""
    with pytest.raises(ValueError, match="drawn"):
        draw(torch.tensor(chances), 1, 1)
