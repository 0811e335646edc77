"""What may not come next, beside transformers' own processors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from drafting.choosing import Chooser
from drafting.proposing import Candidate
from drafting.verification import Rule
from split_model.bans import Bans, NothingLeft
from split_model.sampling import NOBODY, SamplingParams, checked, penalised, picked, probabilities
from split_model.tree import Tree

VOCAB = 12
ids_of = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8)
words_of = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3).map(tuple), max_size=4, unique=True)
some_of = st.sets(st.integers(0, VOCAB - 1), max_size=VOCAB - 2).map(sorted).map(tuple)


@given(st.integers(0, 1000), ids_of, ids_of, words_of, some_of, some_of, st.integers(0, 9), st.floats(0.5, 2))
def test_bans_are_those_of_transformers(
    seed: int,
    prompt: list[int],
    generated: list[int],
    words: list[tuple[int, ...]],
    allowed: tuple[int, ...],
    ends: tuple[int, ...],
    least: int,
    repetition: float,
) -> None:
    """Bad words, tokens that are allowed, ends before their time, and a repetition penalty before all of them; the same
    where the host does not know the last tokens, as when a GPU drafts."""
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed))
    prompt = [*prompt, *prompt, *prompt]  # As long as the longest word: transformers leaves longer ones out.
    processors: list[Any] = [RepetitionPenaltyLogitsProcessor(repetition)]
    processors += [NoBadWordsLogitsProcessor([list(each) for each in words])] if words else []
    processors += [SuppressTokensLogitsProcessor([each for each in range(VOCAB) if each not in allowed])] * bool(
        allowed
    )
    processors += [MinNewTokensLengthLogitsProcessor(len(prompt), least, list(ends))] * bool(ends)
    wanted = LogitsProcessorList(processors)(torch.tensor([[*prompt, *generated]]), logits[None].clone())[0]
    bans = Bans(allowed, tuple(words), ends, least)
    params = SamplingParams(1.0, repetition_penalty=repetition, bans=bans)
    before = logits.clone()
    for known in (len(generated), len(generated) // 2, 0):
        further = None if known == len(generated) else torch.tensor(generated[known:])
        torch.testing.assert_close(penalised(logits, params, prompt, generated[:known], further), wanted)
    assert torch.equal(logits, before)
    greedy = SamplingParams(repetition_penalty=repetition, bans=bans)
    token = int(picked(logits, greedy, prompt, generated, 0))
    if wanted.max() == -math.inf:
        assert token == NOBODY
    else:
        assert wanted[token] == wanted.max()
        torch.testing.assert_close(probabilities(logits, params, prompt, generated), wanted.softmax(0))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("bans", "member"),
    [
        (Bans((5,), ((7, 5),)), "allowed_token_ids"),
        (Bans(words=tuple((each,) for each in range(VOCAB))), "bad_words"),
        (Bans(ends=tuple(range(VOCAB)), least=3), "min_tokens"),
    ],
)
def test_where_nothing_is_left_the_member_is_named(bans: Bans, member: str, temperature: float) -> None:
    """Never a token that was banned; and of logits that are no numbers it is not said that they were banned."""
    chooser = Chooser(SamplingParams(temperature, bans=bans), [1, 7], 3)
    with pytest.raises(NothingLeft, match=member):
        chooser.judge(torch.zeros(1, VOCAB), Tree(0), [], [], "keyed")
    broken = torch.full((1, VOCAB), math.nan)
    with pytest.raises(ValueError, match="not numbers") as caught:
        Chooser(SamplingParams(0.8, bans=Bans((1, 2))), [1], 3).judge(broken, Tree(0), [], [], "keyed")
    assert not isinstance(caught.value, NothingLeft)
    with pytest.raises(ValueError, match="not numbers"):
        checked(picked(torch.zeros(VOCAB), chooser.params, [1, 7], [], 3).tolist())


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_draft_behind_which_nothing_is_left_is_as_likely_as_without_drafts(rule: Rule) -> None:
    """Half of the answers come to where nothing may follow, whoever looks ahead."""
    params = SamplingParams(1.0, bans=Bans((1, 2), ((1, 1), (1, 2))))
    draft = [Candidate(token, 1.0, None, "test") for token in (1, 2)]
    ended = 0
    for seed in range(60):
        try:
            Chooser(params, [0], seed).judge(torch.zeros(3, VOCAB), Tree(0), [0, 1], draft, rule)
        except NothingLeft:
            ended += 1
    assert 15 < ended < 45
