"""What is recorded is what drafting really does, and the file keeps it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from bench.acceptance import HAT
from bench.draft_models import Target, drafters_of
from bench.draft_runs import CountedLength, answer, chain_here
from bench.draft_texts import end_ids
from bench.hat import tape
from bench.hat.long_drafters import MADE, SPLIT, digest
from bench.hat.recording import asked, record
from bench.hat.tape import Draft, Heads, Tape, decoded, encoded, level, load, read, weight_of
from bench.hat.tape_rounds import chain as chain_of
from bench.hat.tape_rounds import rounds, tau, tree
from checkpoints import DEMO
from hypothesis import given
from hypothesis import strategies as st

from device_agent.speculative.way import DraftingWay
from drafting.length import Fixed
from drafting.medusa import TREE_NODES
from split_model.sampling import SamplingParams

TOKENS = 32
"""Of a recorded answer; the shorter ones of service never come near its end."""

WEIGHTS = st.floats(0, 1)


@pytest.fixture(scope="module")
def tapes() -> dict[str, Tape]:
    """The recording that is shipped."""
    return load()


@pytest.mark.slow
async def test_the_drafts_are_those_of_service() -> None:
    """With every drafter an answer takes the very rounds that the recording of it says, of as many tokens."""
    drafters, _ = drafters_of(Target("demo", DEMO, SPLIT, [], []))
    ends = end_ids(DEMO)
    async with chain_here(DEMO, SPLIT) as chain:
        for prompt in asked([90, 120, 150, 180]):
            if len((await answer(chain, prompt, TOKENS, SamplingParams(), None, ends)).tokens) == TOKENS:
                break
        found = await record(chain, drafters, [prompt], TOKENS, ends)
        for name, drafter in drafters.items():
            played = read(found[name])
            way = DraftingWay.of(drafter, HAT)
            way.length = length = CountedLength(Fixed())
            await answer(chain, prompt, TOKENS // 2, SamplingParams(), way, ends)
            if name == "hybrid":  # It learns while it is recorded, so that its choices differ.
                continue
            if drafter.tree_nodes:
                at, expected = 0, []
                while at + 1 + TREE_NODES < TOKENS // 2:  # Near the end of its positions there are no trees.
                    expected.append(tree(played, at, TREE_NODES, TREE_NODES))
                    at += expected[-1][1] + 1
                del length.rounds[len(expected) :]
            else:
                expected = rounds(played, 0, TOKENS // 2, 0.6, 8)
            assert expected and length.rounds == expected, name


def test_what_is_shipped_is_small_and_of_the_drafters_that_are_kept(tapes: dict[str, Tape]) -> None:
    """Of the drafters that are kept for long prompts, all along the same answers, of which there are enough; those that
    are better take fewer rounds."""
    assert tape.RECORDED.stat().st_size < 300_000
    assert json.loads(tape.RECORDED.read_text(encoding="utf-8"))["digest"] == digest(MADE)
    assert {len(each) for each in tapes.values()} == {len(tapes["adapter"])} and len(tapes["adapter"]) > 2000
    taus = {name: tau(rounds(each, 0, len(each), 0.6, 8)) for name, each in tapes.items() if name != "medusa"}
    assert taus["fused"] > taus["adapter"] > taus["small"] > taus["lookup"] > 1
    assert taus["hybrid"] == pytest.approx(taus["fused"], rel=0.1)


@given(WEIGHTS, st.integers(1, 9))
def test_thresholds_in_tenths_survive(weight: float, tenths: int) -> None:
    """A weight that is kept is on the same side of them, and nearly the same."""
    kept = weight_of(level(weight))
    assert (kept >= tenths / 10) == (weight >= tenths / 10 - 1e-9)
    assert abs(kept - weight) < 0.012


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """One of a chain."""
    said = draw(st.lists(st.tuples(WEIGHTS, st.booleans()), max_size=24))
    right = draw(st.integers(0, len(said)))
    rank = draw(st.integers(0, 3)) if right < len(said) else 0
    return Draft(tuple(weight for weight, _ in said), tuple(lookup for _, lookup in said), right, rank)


def behind_its_first(draft: Draft) -> Draft:
    """What is left of it when the text has its first token."""
    return Draft(draft.weights[1:], draft.lookups[1:], draft.right - 1, draft.rank)


@given(st.lists(drafts(), min_size=1, max_size=4))
def test_drafts_come_back_from_the_file(said: list[Draft]) -> None:
    """In levels, also where one follows from the one before."""
    said = [each for draft in said for each in ([draft, behind_its_first(draft)] if draft.right else [draft])]
    text = json.loads(json.dumps(encoded(said)))
    assert decoded(text, False) == tuple(
        replace(draft, weights=tuple(weight_of(level(weight)) for weight in draft.weights)) for draft in said
    )


def test_heads_come_back_from_the_file() -> None:
    """In levels, of which equal ones are made to differ, and no more than 1 together."""
    heads = Heads(((0.55, 0.2, 0.2), (0.999, 0.001, 0.0005, 0.0001)), (2, -1))
    (found,) = decoded(encoded([heads]), True)
    assert isinstance(found, Heads) and found.right == heads.right
    assert found.weights[0] == pytest.approx(heads.weights[0], abs=0.012)
    assert found.weights[0][1] > found.weights[0][2]
    assert all(sum(each) < 1 for each in found.weights)


def test_a_tape_goes_round() -> None:
    """A draft that is right to its answer's end goes on with the next answer's, and behind the last comes the first."""
    sure, wrong = (0.9,), (0.9, 0.3)
    first = (Draft(sure * 2, (False,) * 2, 2, 0), Draft(sure, (False,), 1, 0))
    second = (Draft(wrong, (False,) * 2, 1, 0), Draft((0.4,), (False,), 0, 2))
    played = Tape((0.5,), (first, second))
    assert played.left == (2, 1, 2, 1)
    assert chain_of(played, 0, 8, 0.6) == ([0.9, 0.9, 0.9, 0.3], 3)
    assert chain_of(played, 5, 8, 0.6) == chain_of(played, 1, 8, 0.6) == ([0.9, 0.9, 0.3], 2)
    assert chain_of(played, 0, 2, 0.6) == ([0.9, 0.9], 2)
    # The last round has room for two tokens beside its own.
    assert rounds(played, 0, 8, 0.6, 8) == [(4, 3), (2, 2)]
