"""Every way to compute a layer gives what one process gives, whoever has which share of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from groups import FORMS, NAMES, PORTAL, UNEVEN, group_here, plan_of
from submodel_conformance import check_submodel, rows
from tiny_models import built

from split_model.checkpoint import Checkpoint
from split_model.slices import Slice
from split_model.stack import Span, Stack

ATOL = 1e-5
SAMPLE = ("mixed", "edgeformer")


def stack_of(path: Path, first: int = 0) -> Stack:
    """The same layers in one process."""
    checkpoint = Checkpoint.open(path)
    return Stack.load(checkpoint, Slice(first, checkpoint.spec.num_layers), torch.float32)


async def check_turns(path: Path, form: str, names: tuple[str, ...], shares: tuple[float, ...]) -> None:
    """A prompt, steps of one row, a longer turn behind them, a step back and another turn: as in one process."""
    stack = stack_of(path)
    cache = stack.new_cache(80)
    hidden = rows(60, stack.spec.hidden_size, 7)
    with group_here(path, plan_of(stack.spec, form, names, shares)) as group:
        session = group.open(80)
        for begin, end, want in (
            (0, 17, 17),
            (17, 18, 1),
            (18, 19, 1),
            (19, 40, 3),
            (40, 41, 1),
            (35, 60, 25),
            (60, 60, 0),
        ):
            if begin < session.position:
                session.truncate(begin)
                cache.truncate(begin)
            if begin == end:
                continue
            got = await asyncio.wait_for(session.forward(hidden[begin:end], want), 30)
            expected = stack.forward(hidden[begin:end], [Span(cache, end - begin)])
            torch.testing.assert_close(got, expected[end - begin - want :], atol=ATOL, rtol=0)
        session.close()


@pytest.mark.parametrize("form", FORMS)
async def test_uneven_shares(form: str, tiny_folder: Path) -> None:
    """Uneven shares, of which one is nothing."""
    await check_turns(built("llama", tiny_folder), form, NAMES[:3], (3.0, 0.0, 5.0))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shares", [(1.0,), (1.0, 1.0), (0.0, 2.0), *(UNEVEN[count] for count in (4, 5, 6))], ids=str)
async def test_all_forms_with_all_shares(form: str, shares: tuple[float, ...], tiny_folder: Path) -> None:
    """One member, even shares, one member that has nothing, and more members than groups."""
    await check_turns(built("llama", tiny_folder), form, NAMES[: len(shares)], shares)


@pytest.mark.parametrize("form", ["tensor", "galaxy-2", "voltage-keys-values", "mixed"])
async def test_the_portal_may_compute_too(form: str, tiny_folder: Path) -> None:
    """The portal in the middle of the members."""
    await check_turns(built("llama", tiny_folder), form, ("one", PORTAL, "three"), (2.0, 1.0, 1.0))


@pytest.mark.parametrize("name", ["llama-biases", "mistral-window", "qwen3", "gpt2", "opt-post-norm"])
@pytest.mark.parametrize(
    "form", [*SAMPLE, *(pytest.param(each, marks=pytest.mark.slow) for each in FORMS if each not in SAMPLE)]
)
async def test_families(name: str, form: str, tiny_folder: Path) -> None:
    """Biases are added once, windows hide what they should, norms stand where they do, positions are added once."""
    await check_turns(built(name, tiny_folder), form, NAMES[:2], (1.0, 2.0))


@pytest.mark.parametrize("form", ["mixed", "edgeformer", pytest.param("voltage", marks=pytest.mark.slow)])
async def test_a_group_conforms(form: str, tiny_folder: Path) -> None:
    """A group is a submodel as any other."""
    path = built("llama", tiny_folder)
    spec = Checkpoint.open(path).spec
    with group_here(path, plan_of(spec, form, NAMES[:2], layers=3), first=1) as group:
        await check_submodel(group, stack_of(path, 1))
