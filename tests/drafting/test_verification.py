"""Verdicts on single drafts: what each rule accepts, in small cases that can be followed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from drafted_nodes import judged
from hypothesis import given, settings
from hypothesis import strategies as st

from drafting.choosing import Chooser
from drafting.proposing import Candidate
from drafting.verification import Rule
from split_model.sampling import BadSampling, SamplingParams, probabilities
from split_model.tree import Tree

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)
RULES: tuple[Rule, ...] = ("keyed", "rejection", "block")


def rows_of(*likeliest: int, vocab: int = 6) -> torch.Tensor:
    """Logits whose likeliest tokens are these."""
    return torch.nn.functional.one_hot(torch.tensor(likeliest), vocab).float()


def chosen(*tokens: int) -> list[Candidate]:
    return [Candidate(token, 0.5, None, "test") for token in tokens]


def drawn(token: int, q: torch.Tensor) -> Candidate:
    return Candidate(token, float(q.max()), q, "test")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("draft", "tokens"),
    [((), (4,)), ((4, 2, 5), (4, 2, 5, 1)), ((4, 2, 3), (4, 2, 5)), ((1, 2, 5), (4,)), ((4, 1, 5), (4, 2))],
)
def test_greedy_drafts_stay_as_far_as_they_are_the_likeliest(
    rule: Rule, draft: tuple[int, ...], tokens: tuple[int, ...]
) -> None:
    """Under every rule, and then comes the token that should have been."""
    logits = rows_of(4, 2, 5, 1)[: len(draft) + 1]
    assert judged(logits, chosen(*draft), rule, GREEDY, [0], [3], 1) == tokens


def test_among_equals_the_lowest_is_the_likeliest() -> None:
    """As without a draft."""
    logits = torch.zeros(3, 6)
    assert judged(logits, chosen(0, 5), "keyed", GREEDY, [], [1], 0) == (0, 0)


def test_penalties_see_the_drafted_tokens_before_a_position() -> None:
    """And none behind it: each position is judged as if it had been reached without a draft."""
    logits = torch.tensor([[1.0, 0.9, 0.0]] * 3)
    params = SamplingParams(presence_penalty=0.5)
    # 0 was not chosen yet, then it was, then both were.
    assert judged(logits, chosen(0, 1), "keyed", params, [], [2], 0) == (0, 1, 0)
    assert judged(logits, chosen(0, 0), "keyed", params, [], [2], 0) == (0, 1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_a_bias_outside_the_vocabulary_is_refused(rule: Rule, params: SamplingParams) -> None:
    """As it is without a draft."""
    params = SamplingParams(temperature=params.temperature, logit_bias={6: 1.0})
    with pytest.raises(BadSampling, match="logit_bias"):
        judged(rows_of(1, 2), chosen(1), rule, params, [], [0], 0)


@pytest.mark.parametrize("rule", RULES)
def test_logits_that_are_no_numbers_are_refused(rule: Rule) -> None:
    """Nothing is drawn from them, and no draft stays by them."""
    with pytest.raises(ValueError, match="not numbers"):
        judged(torch.full((2, 6), math.nan), chosen(1), rule, SAMPLED, [], [0], 0)


@pytest.mark.parametrize("rule", ["rejection", "block"])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**64 - 1), tokens=st.lists(st.integers(0, 5), max_size=4), data=st.integers(0, 1000))
def test_a_draft_from_the_target_itself_stays(rule: Rule, seed: int, tokens: list[int], data: int) -> None:
    """Where p and q are the same nothing is ever dropped, and the last token can be any possible one."""
    logits = torch.randn(len(tokens) + 1, 6, generator=torch.Generator().manual_seed(data))
    draft = [drawn(token, probabilities(row, SAMPLED)) for token, row in zip(tokens, logits, strict=False)]
    verdict = judged(logits, draft, rule, SAMPLED, [0], [1], seed)
    assert verdict[:-1] == tuple(tokens)
    assert verdict == judged(logits, draft, rule, SAMPLED, [0], [1], seed)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_what_rounding_leaves_of_a_difference_breaks_nothing(rule: Rule) -> None:
    """p and q that differ by less than 1e-16, of a token that is next to impossible: the draft stays."""
    logits = torch.tensor([[0.0, -80.0]] * 2)
    draft = [drawn(0, probabilities(torch.tensor([0.0, -90.0]), SAMPLED))]
    assert judged(logits, draft, rule, SAMPLED, [0], [1], 5)[:-1] == (0,)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("ranked", [True, False])
@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_what_the_warpers_rule_out_never_stays(rule: Rule, ranked: bool, seed: int) -> None:
    """Nor does it come as the next token, and what is sure is always taken."""
    params = SamplingParams(temperature=1.0, top_k=1)
    q = torch.tensor([0.5, 0.5, 0.0])
    draft = [Candidate(token, 0.5, None if ranked else q, "test") for token in (0, 1, 1)]
    verdict = judged(torch.tensor([[2.0, 1.0, 0.0]] * 4), draft, rule, params, [0], [1], seed)
    assert verdict == (0, 0)


@pytest.mark.parametrize(("rule", "expected"), [("rejection", 10 / 9), ("block", 11 / 9)])
def test_acceptance_is_that_of_the_papers_example(rule: Rule, expected: float) -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), two tokens: block verification keeps 11/9 of them on average, not 10/9."""
    p, q = torch.tensor([1 / 3, 2 / 3]), torch.tensor([2 / 3, 1 / 3])
    logits = p.log().expand(3, 2)
    generator = torch.Generator().manual_seed(4)
    texts = torch.multinomial(q, 4_000, replacement=True, generator=generator).reshape(-1, 2).tolist()
    kept = [
        len(judged(logits, [drawn(token, q) for token in text], rule, SAMPLED, [0], [1], seed)) - 1
        for seed, text in enumerate(texts)
    ]
    spread = float(torch.tensor(kept).double().std()) / math.sqrt(len(kept))
    assert abs(sum(kept) / len(kept) - expected) < 4 * spread
    assert 4 * spread < 1 / 9


@settings(max_examples=25)
@given(st.integers(0, 1000), st.lists(st.integers(-1, 6), max_size=7), st.sampled_from([0.0, 1.0]))
def test_a_tree_is_walked_as_the_text_would_go(data: int, parents: list[int], temperature: float) -> None:
    """Token for token what is chosen without a tree, until the tree has no such node."""
    parents = [min(parent, node - 1) for node, parent in enumerate(parents)]
    tokens = [sum(1 for other in parents[:node] if other == parent) for node, parent in enumerate(parents)]
    tree = Tree(2)
    tree.add(parents, tokens)
    logits = torch.randn(len(tokens) + 1, 4, generator=torch.Generator().manual_seed(data))
    params = SamplingParams(temperature=temperature, presence_penalty=0.3)
    choosers = [Chooser(params, [0], data) for _ in range(2)]
    for each in choosers:
        each.generated.append(1)
    verdict = choosers[0].judge(logits, tree, range(len(tokens)), chosen(*tokens), "keyed")
    at = -1
    for found, node in zip(verdict.chosen, [*verdict.path, None], strict=True):
        assert choosers[1].judge(logits[at + 1][None], Tree(0), (), (), "keyed").chosen == (found,)
        assert tree.child(at, found.token) == node
        at = node if node is not None else at


def test_a_verdict_depends_on_seed_and_position_only() -> None:
    """The same prompt and text in other shapes give the same verdict; another seed gives another somewhere."""
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    q = torch.full((6,), 1 / 6)

    def verdicts(rule: Rule, prompt: Sequence[int], generated: Sequence[int], seeds: range) -> list[tuple[int, ...]]:
        draft = [drawn(token, q) for token in (1, 2, 3)]
        return [judged(logits, draft, rule, SAMPLED, prompt, generated, seed) for seed in seeds]

    for rule in RULES:
        here = verdicts(rule, [0, 1], [2, 3], range(20))
        assert here == verdicts(rule, (0, 1, 2), (3,), range(20))
        assert here != verdicts(rule, [0, 1], [2, 3], range(20, 40))
        assert here != verdicts(rule, [0, 1], [2, 3, 4], range(20))
