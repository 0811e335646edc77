"""The scores of a prompt's own tokens are transformers', however a group shares the layers."""

from __future__ import annotations

import pytest
from checkpoints import DEMO
from groups import FORMS, PORTAL, group_here, plan_of, streamed
from oracle import prompt_for
from scores import check_scores, said_to, scored_in
from served_chains import served

from split_model.checkpoint import Checkpoint

SPEC = Checkpoint.open(DEMO).spec
SAMPLE = ("tensor", "pipeline", "galaxy-1", "voltage", "voltage-prefix-keys-values", "mixed")


@pytest.mark.parametrize(
    "form", [form if form in SAMPLE else pytest.param(form, marks=pytest.mark.slow) for form in FORMS]
)
async def test_scores_are_transformers(form: str) -> None:
    """Of two prompts, one of them so short that a step of it is few rows, with uneven shares; what follows is told."""
    plan = plan_of(SPEC, form, (PORTAL, "other"), (2.0, 1.0), SPEC.num_layers)
    with group_here(DEMO, plan) as group:
        async with served(group, split=0) as model:
            for ids in (prompt_for(DEMO, 150), prompt_for(DEMO, 2, seed=1)):
                check_scores(scored_in(await said_to(model, ids)), DEMO, ids)


async def test_streamed_layers_score_alike() -> None:
    """As LIME has them: each member several times a step, its weights from its disk."""
    plan = streamed(plan_of(SPEC, "interleaved", (PORTAL, "other")), SPEC)
    with group_here(DEMO, plan) as group:
        async with served(group, split=0) as model:
            ids = prompt_for(DEMO, 150)
            check_scores(scored_in(await said_to(model, ids)), DEMO, ids)
