"""Drafts as a check likes to name them: nodes by parents and tokens, in a tree that grows with them, and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch

from drafting.choosing import Chooser
from drafting.drafter import DraftSession, Guess
from drafting.proposing import Candidate
from drafting.verification import Rule, verify
from split_model.sampling import SamplingParams
from split_model.tree import Tree

_TREES: WeakKeyDictionary[DraftSession, Tree] = WeakKeyDictionary()


def extend(
    session: DraftSession, parents: Sequence[int], tokens: Sequence[int], shallow: torch.Tensor
) -> list[Guess | None]:
    """What may follow new nodes; they are numbered on from the last call's until the text is longer or shorter. Those
    that are refused leave no trace."""
    last = _TREES.get(session)
    grown = Tree(session.position)
    if last is not None and last.trunk == grown.trunk:
        grown.add(last.parents, last.tokens)
    grown.add(parents, tokens)
    said = session.extend(grown, shallow)
    _TREES[session] = grown
    return said


def judged(
    logits: torch.Tensor,
    draft: Sequence[Candidate],
    rule: Rule,
    params: SamplingParams,
    prompt: Sequence[int],
    generated: Sequence[int],
    seed: int,
) -> tuple[int, ...]:
    """The tokens that are chosen behind ``generated`` with a chain as the draft: all but the last were drafted."""
    if rule != "keyed" and not params.is_greedy:
        return verify(logits, draft, rule, params, prompt, generated, seed)
    chooser, tree = Chooser(params, prompt, seed), Tree(len(prompt) + len(generated))
    chooser.generated += generated
    tree.add(range(-1, len(draft) - 1), [each.token for each in draft])
    verdict = chooser.judge(logits, tree, range(len(draft)), draft, rule)
    assert verdict.path == tuple(range(len(verdict.chosen) - 1))
    return tuple(each.token for each in verdict.chosen)
