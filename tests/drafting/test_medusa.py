"""Medusa's heads, held to their formula in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from drafted_nodes import extend
from drafter_conformance import Rows, check_drafter
from tiny_drafters import DIGEST, SPLIT, head_weights, medusa_weights, random_head, tiny_spec

from drafting.drafter_file import write_drafter
from drafting.medusa import MedusaDrafter

SPEC = tiny_spec()


def loaded(folder: Path) -> MedusaDrafter:
    path = folder / "medusa.safetensors"
    write_drafter(path, "medusa", DIGEST, SPLIT, {}, medusa_weights(SPEC))
    return MedusaDrafter.load(path, SPEC, DIGEST, SPLIT, torch.float32, random_head(SPEC))


def said(deep: torch.Tensor, head: int) -> torch.Tensor:
    """Logits of one head, by the formula."""
    weights = {name.split(".")[2]: each.double() for name, each in medusa_weights(SPEC).items() if f".{head}." in name}
    deep = deep.double()
    normed = head_weights(SPEC)["norm"].double() * deep / (deep.square().mean() + SPEC.norm_eps).sqrt()
    inner = weights["block"] @ normed + weights["bias"]
    return (weights["head"] @ (normed + inner * inner.sigmoid())).float()


def test_conforms(tmp_path: Path) -> None:
    """It does what every drafter does."""
    drafter = loaded(tmp_path)
    assert (drafter.name, drafter.tree_nodes) == ("medusa", 8)
    assert drafter.parameters == sum(each.numel() for each in medusa_weights(SPEC).values())
    check_drafter(drafter, SPEC.hidden_size)


def test_each_depth_has_its_head(tmp_path: Path) -> None:
    """The guess is head 0's, from the last deep row; a node's that of the head after its depth, and there are four."""
    rows = Rows(SPEC.hidden_size)
    session = loaded(tmp_path).open(20)
    text = [1, 2, 3, 4, 5]
    session.observe(text, rows.shallow(text, 5), rows.deep(text, 2))
    deep = rows.deep(text, 1)[0]
    guess = session.guess()
    assert guess is not None and guess.logits is not None
    torch.testing.assert_close(guess.logits, said(deep, 0), atol=1e-4, rtol=0)
    nodes = extend(session, (-1, -1, 0, 2, 1, 3), (1, 2, 3, 4, 5, 6), rows.shallow(range(6), 6))
    for node, depth in zip(nodes, (0, 0, 1, 2, 1, 3), strict=True):
        if depth == 3:
            assert node is None
        else:
            assert node is not None and node.logits is not None
            torch.testing.assert_close(node.logits, said(deep, depth + 1), atol=1e-4, rtol=0)
    # One row of logits for each depth, however many nodes have it.
    assert nodes[0] is nodes[1] and nodes[2] is nodes[4]


def test_without_a_deep_row_nothing_is_said(tmp_path: Path) -> None:
    """An older row says nothing about the token after the last one."""
    rows = Rows(SPEC.hidden_size)
    session = loaded(tmp_path).open(20)
    text = [1, 2, 3]
    for before in (None, rows.deep(text, 0)):
        session.observe(text, rows.shallow(text, 3), rows.deep(text, 3))
        assert session.guess() is not None
        session.observe(text, rows.shallow(text, 3), before)
        assert session.guess() is None
        assert extend(session, (-1, 0), (1, 2), rows.shallow(text, 2)) == [None, None]
    session.truncate(2)
    assert session.guess() is None


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Rows of another number or width, positions and parents that are not there, a text that is full."""
    rows = Rows(SPEC.hidden_size).shallow((1, 2, 3), 3)
    session = loaded(tmp_path).open(4)
    session.observe((1, 2, 3), rows, rows)
    for tokens, given, before in (
        ((1, 2), rows[:1], None),
        ((1,), rows[:1, 1:], None),
        ((1,), rows[:1], rows[:2]),
        ((1, 2), rows[:2], None),
    ):
        with pytest.raises(ValueError):
            session.observe(tokens, given, before)
    for parents in ([0], [-2], [-1, 1]):
        with pytest.raises(ValueError):
            extend(session, parents, [1] * len(parents), rows[: len(parents)])
    with pytest.raises(ValueError):
        session.truncate(4)
    assert session.position == 3 and session.guess() is not None
