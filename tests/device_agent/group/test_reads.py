"""Groups that read whole texts and images say what transformers says, however the layers are shared."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from group_reads import Read, read_of
from groups import FORMS, NAMES, ONE_SHOT_FORMS, PORTAL, UNEVEN, group_here, plan_of, submodel_for
from peers_together import fabrics
from tiny_models import built

from device_agent.group.asking.life import GroupLife
from device_agent.group.asking.record import MAX_LOSSES
from device_agent.group.messages.heads import MAX_ROWS, MAX_TEXTS
from split_model.checkpoint import Checkpoint
from split_model.slices import whole
from split_model.stack import Span, Stack
from wire.errors import SessionFailed

READING = [form for form in (*FORMS, *ONE_SHOT_FORMS) if "prefix" not in form]
SAMPLE = [
    ("bert", "voltage", 3),
    ("bert", "mixed", 2),
    ("distilbert", "galaxy-2", 3),
    ("distilbert", "voltage-keys-values", 6),
    ("vit", "galaxy-1", 2),
    ("vit", "tensor", 3),
    ("vit", "pipeline", 2),
    ("bert", "edgeformer", 3),
    ("vit", "lent", 2),
    ("bert", "voltage-reordered", 3),
    ("vit", "voltage-reordered", 2),
]


async def check_form(read: Read, form: str, names: Sequence[str], shares: Sequence[float] = ()) -> None:
    with group_here(read.path, plan_of(read.spec, form, names, shares)) as group:
        read.check(await asyncio.wait_for(group.read(read.hidden, read.lengths), 30))


@pytest.mark.parametrize(("name", "form", "count"), SAMPLE)
async def test_several_texts_at_once(name: str, form: str, count: int, tiny_folder: Path) -> None:
    """Texts of different lengths, one of a single row, with uneven shares of which one is nothing."""
    await check_form(read_of(name, tiny_folder), form, NAMES[:count], UNEVEN[count])


@pytest.mark.parametrize("form", ["voltage-pieces", "voltage", "voltage-reordered", "mixed"])
async def test_rows_go_round_in_tiles(form: str, tiny_folder: Path) -> None:
    """So many rows that they go by ring; in pieces, of which the first leaves while the next is computed, or whole."""
    await check_form(read_of("bert", tiny_folder, [60] * 10), form, NAMES[:3], (3, 0, 2))


@pytest.mark.slow
@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize("count", UNEVEN)
@pytest.mark.parametrize("form", READING)
@pytest.mark.parametrize("name", ["bert", "distilbert", "vit"])
async def test_every_way(name: str, form: str, count: int, even: bool, tiny_folder: Path) -> None:
    """All ways to share a layer, with 1 to 6 members."""
    await check_form(read_of(name, tiny_folder), form, NAMES[:count], () if even else UNEVEN[count])


@pytest.mark.parametrize("form", ["voltage", "galaxy-2"])
async def test_few_rows(form: str, tiny_folder: Path) -> None:
    """Two rows are computed by heads and columns; the portal computes too."""
    await check_form(read_of("bert", tiny_folder, [1, 1]), form, ("one", PORTAL))


async def test_more_texts_than_one_step_takes(tiny_folder: Path) -> None:
    """They are read in several steps, and come back in their order; two reads at once each get their own."""
    many, other = read_of("distilbert", tiny_folder, [2] * (MAX_TEXTS + 5)), read_of("distilbert", tiny_folder, [9])
    with group_here(many.path, plan_of(many.spec, "voltage", NAMES[:2])) as group:
        first, second = (group.read(each.hidden, each.lengths) for each in (many, other))
        many.check(await asyncio.wait_for(first, 30))
        other.check(await asyncio.wait_for(second, 30))


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("llama", "voltage-prefix"),
        ("mistral-window", "voltage-keys-values"),
        ("llama", "mixed"),
        ("gpt2", "voltage-reordered"),
        ("opt-post-norm", "voltage-reordered-prefix"),
    ],
)
async def test_causal_models_read_too(name: str, form: str, tiny_folder: Path) -> None:
    """Each text is as it would be alone in a session; sessions go on beside it, also where Eq. 8 is for reading."""
    path = built(name, tiny_folder)
    checkpoint = Checkpoint.open(path)
    stack = Stack.load(checkpoint, whole(checkpoint.spec), torch.float32)
    lengths = [11, 1, 20]
    hidden = torch.randn(sum(lengths), stack.spec.hidden_size, generator=torch.Generator().manual_seed(3))
    wanted = [
        stack.forward(each, [Span(stack.new_cache(len(each)), len(each))]) for each in hidden.split_with_sizes(lengths)
    ]
    with group_here(path, plan_of(checkpoint.spec, form, NAMES[:3], (1, 2, 1))) as group:
        session = group.open(20)
        before = session.forward(wanted[2], 20)
        read = await asyncio.wait_for(group.read(hidden, lengths), 30)
        torch.testing.assert_close(read, torch.cat(wanted), atol=1e-5, rtol=0)
        cache = stack.new_cache(20)
        torch.testing.assert_close(await before, stack.forward(wanted[2], [Span(cache, 20)]), atol=1e-5, rtol=0)
        session.close()


async def test_the_next_life_reads_again(tiny_folder: Path) -> None:
    """A member is lost while it reads: whoever waits gets the same rows later; who has gone is not read for."""
    read = read_of("bert", tiny_folder)
    checkpoint = Checkpoint.open(read.path, None)
    group, gone, loop = submodel_for(checkpoint), asyncio.Event(), asyncio.get_running_loop()
    plan = plan_of(read.spec, "voltage", NAMES[:1])
    with fabrics(2) as links:
        life = GroupLife(links[0], plan.layers, (1,), None)
        life.start(lambda why, rank: loop.call_soon_threadsafe(gone.set))
        group.begin(life)
        asked, left = group.read(read.hidden, read.lengths), group.read(read.hidden, read.lengths)
        left.cancel()
        links[1].lose("killed")
        await asyncio.wait_for(gone.wait(), 30)
        await asyncio.to_thread(life.end)
    group.lost("killed")
    assert not asked.done()
    with group_here(read.path, plan_of(read.spec, "voltage", NAMES[:2]), submodel=group):
        read.check(await asyncio.wait_for(asked, 30))


async def test_a_read_that_ends_lives_fails(tiny_folder: Path) -> None:
    """After so many lives it may be the cause; and where no life follows, nobody waits."""
    read = read_of("bert", tiny_folder)
    group = submodel_for(Checkpoint.open(read.path, None))
    asked = group.read(read.hidden, read.lengths)
    for _ in range(MAX_LOSSES - 1):
        group.lost("killed")
    later = group.read(read.hidden, read.lengths)
    assert not asked.done()
    group.lost("killed again")
    with pytest.raises(SessionFailed, match="killed again"):
        await asked
    assert not later.done()
    group.end("nobody is left")
    for each in (later, group.read(read.hidden, read.lengths)):
        with pytest.raises(SessionFailed, match="nobody is left"):
            await each


@pytest.mark.parametrize("lengths", [[], [3, 0], [4], [MAX_ROWS, 1], [-1, 4]])
async def test_what_is_no_read_is_refused(lengths: list[int], tiny_folder: Path) -> None:
    """Texts without rows, more rows than there are, or than one step takes."""
    read = read_of("bert", tiny_folder)
    with pytest.raises(ValueError, match="rows"):
        submodel_for(Checkpoint.open(read.path, None)).read(torch.zeros(3, read.spec.hidden_size), lengths)
