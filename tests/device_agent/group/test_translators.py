"""Groups with both halves of a model read a text and write another, as transformers does, whoever computes what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import transformers
from encoder_decoder import EncoderDecoder
from group_plans import profile, task
from group_writes import Written, ids, oracle_written
from groups import FORMS, LENDING, NAMES, PORTAL, UNEVEN, group_here, layers_of, plan_of, streamed, submodel_for
from peers_together import fabrics
from tiny_models import TRANSLATOR_NAMES, built

from device_agent.group.asking.life import GroupLife
from device_agent.group.formation.joining import Part
from device_agent.group.holding.halves import readers_of
from device_agent.group.holding.pieces import cache_bytes, weight_bytes
from device_agent.group.messages.heads import (
    MAX_ROWS,
    BadGroupHead,
    CloseHead,
    ForkHead,
    GroupHead,
    OpenHead,
    RowsHead,
    SourceHead,
    TruncateHead,
)
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.memory import held as planned_bytes
from device_agent.planning.modes import plan_for
from device_agent.planning.plan import ByRows, GroupPlan, Whole
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Work
from device_agent.sharing.compute import Compute
from split_model.checkpoint import Checkpoint
from split_model.stack import Span

ATOL = 1e-4
WRITING = [form for form in FORMS if "prefix" not in form and form not in LENDING]
"""A row of an encoder sees later ones too."""
SAMPLE = [
    ("t5", "tensor", 2),
    ("t5-gated", "tensor", 3),
    ("t5", "galaxy-1", 3),
    ("t5-gated", "galaxy-2", 2),
    ("t5", "voltage", 2),
    ("t5-gated", "voltage-keys-values", 3),
    ("t5", "pipeline", 3),
    ("t5-gated", "mixed", 4),
    ("t5", "mixed", 6),
]


async def check_form(
    path: Path, form: str, names: Sequence[str], shares: Sequence[float], compute: Compute, texts: int = 1
) -> None:
    """So many texts at once are written as transformers writes them."""
    wanted = [ids(length, seed) for seed, length in enumerate((23, 1, 40)[:texts])]
    with group_here(path, plan_of(Checkpoint.open(path, None).spec, form, names, shares)) as group:
        written = Written.over(path, group, compute)
        found = await asyncio.wait_for(asyncio.gather(*map(written.of, wanted)), 60)
    assert found == [oracle_written(path, text) for text in wanted]


@pytest.mark.parametrize(("name", "form", "count"), SAMPLE)
async def test_what_is_written(name: str, form: str, count: int, tiny_folder: Path, compute: Compute) -> None:
    """Of three texts of different lengths at once, with uneven shares of which one is nothing."""
    await check_form(built(name, tiny_folder), form, NAMES[:count], UNEVEN[count], compute, 3)


@pytest.mark.parametrize(("name", "share", "ring"), [("t5", 1, 1), ("t5-gated", 2, 3)])
async def test_what_is_streamed_is_written_the_same(
    name: str, share: int, ring: int, tiny_folder: Path, compute: Compute
) -> None:
    """All halves of layers of encoder and decoder are read at each use, or every other; three texts at once."""
    path = built(name, tiny_folder)
    spec = Checkpoint.open(path, None).spec
    plan = streamed(plan_of(spec, "pipeline", ("one", PORTAL, "three"), (2, 1, 1)), spec, share, ring)
    texts = [ids(length, seed) for seed, length in enumerate((23, 1, 40))]
    with group_here(path, plan) as group:
        found = await asyncio.wait_for(asyncio.gather(*map(Written.over(path, group, compute).of, texts)), 60)
    assert found == [oracle_written(path, text) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize("count", UNEVEN)
@pytest.mark.parametrize("form", WRITING)
@pytest.mark.parametrize("name", TRANSLATOR_NAMES)
async def test_every_way(name: str, form: str, count: int, even: bool, tiny_folder: Path, compute: Compute) -> None:
    """All ways to share layers, with 1 to 6 members."""
    shares = () if even else UNEVEN[count]
    await check_form(built(name, tiny_folder), form, NAMES[:count], shares, compute, 2)


@pytest.mark.parametrize("form", ["galaxy-2", "pipeline", "mixed"])
async def test_the_portal_computes_too(form: str, tiny_folder: Path, compute: Compute) -> None:
    """In the middle of the members."""
    await check_form(built("t5", tiny_folder), form, ("one", PORTAL, "three"), (2, 1, 1), compute)


@pytest.mark.parametrize(
    "form", ["mixed", *(pytest.param(each, marks=pytest.mark.slow) for each in WRITING if each != "mixed")]
)
async def test_longer_turns(form: str, tiny_folder: Path) -> None:
    """Many rows of the written text at once, steps behind them, a step back, a fork: as in one process."""
    path = built("t5-gated", tiny_folder)
    model = EncoderDecoder.load(path)
    stack, read, hidden = model.stack, model.encoder.texts([ids(33)]).rows[0], model.embedding.forward(ids(60))
    cache, sources = stack.new_cache(80), [stack.source(read)]
    with group_here(path, plan_of(model.spec, form, NAMES[:3], (3, 0, 5))) as group:
        session = group.open_about(80, read)
        for begin, end, want in ((0, 17, 17), (17, 18, 1), (18, 19, 1), (19, 40, 3), (40, 41, 1), (35, 60, 25)):
            if begin < session.position:
                session.truncate(begin)
                cache.truncate(begin)
            if begin == 19:
                first, session = session, session.fork(19)
                first.close()
            got = await asyncio.wait_for(session.forward(hidden[begin:end], want), 30)
            expected = stack.forward(hidden[begin:end], [Span(cache, end - begin)], sources=sources)
            torch.testing.assert_close(got, expected[end - begin - want :], atol=ATOL, rtol=0)
        session.close()


async def test_many_rows_go_round_in_tiles(tiny_folder: Path, compute: Compute) -> None:
    """A text of so many rows that they are handed out in parts, and gathered."""
    path, text = built("t5", tiny_folder), ids(400)
    for form in ("tensor", "voltage"):
        with group_here(path, plan_of(Checkpoint.open(path, None).spec, form, NAMES[:3], (3, 0, 2))) as group:
            assert await Written.over(path, group, compute).of(text, 8) == oracle_written(path, text, 8)


async def test_an_encoder_alone(tiny_folder: Path) -> None:
    """T5's, read by a group as any encoder."""
    path = built("t5-encoder", tiny_folder)
    checkpoint, lengths = Checkpoint.open(path, "bidirectional"), [9, 30]
    model: Any = transformers.T5EncoderModel.from_pretrained(path, dtype=torch.float32).eval()
    texts = [torch.tensor([ids(length)]) for length in lengths]
    with torch.inference_mode():
        found = [model(text, attention_mask=torch.ones_like(text), output_hidden_states=True) for text in texts]
        hidden = torch.cat([each.hidden_states[0][0] for each in found]).clone()
        wanted = torch.cat([each.last_hidden_state[0] for each in found])
        norm = model.encoder.final_layer_norm
        with group_here(path, plan_of(checkpoint.spec, "mixed", NAMES[:3], (1, 0, 2))) as group:
            rows = await asyncio.wait_for(group.read(hidden, lengths), 30)
        torch.testing.assert_close(norm(rows), wanted, atol=ATOL, rtol=0)


async def test_the_next_life_goes_on(tiny_folder: Path, compute: Compute) -> None:
    """A member is lost in the middle of an answer, of which a copy has been begun too: what was read is made again for
    both, and nobody reads the text a second time."""
    path = built("t5", tiny_folder)
    checkpoint, loop, text = Checkpoint.open(path, None), asyncio.get_running_loop(), ids(30)
    spec, group, gone = checkpoint.spec, submodel_for(checkpoint), asyncio.Event()
    written = Written.over(path, group, compute)
    assert written.chain.sources is not None
    with group_here(path, plan_of(spec, "galaxy-1", NAMES[:3]), submodel=group):
        source = await written.chain.sources.read(text)
        assert isinstance(source, torch.Tensor)
        session = group.open_about(60, source)
        hidden = written.chain.parts.embedding.forward(ids(12))
        before = await session.forward(hidden, 12)
    forked = session.fork(10)
    with fabrics(2) as links:
        plan = plan_of(spec, "tensor", NAMES[:1])
        life = GroupLife(links[0], plan.layers, (1,), None, readers=readers_of(spec))
        life.start(lambda why, rank: loop.call_soon_threadsafe(gone.set))
        group.begin(life)
        waiting = session.forward(hidden[:5], 5)
        links[1].lose("killed")
        await asyncio.wait_for(gone.wait(), 30)
        await asyncio.to_thread(life.end)
    group.lost("killed")
    model = EncoderDecoder.load(path)
    with group_here(path, plan_of(spec, "voltage", NAMES[:2], (1, 2)), submodel=group):
        for each, begin, rows in ((waiting, 12, hidden[:5]), (forked.forward(hidden[10:], 2), 10, hidden[10:])):
            cache, sources = model.stack.new_cache(60), [model.stack.source(source)]
            first = model.stack.forward(hidden[:begin], [Span(cache, begin)], sources=sources)
            torch.testing.assert_close(before[:begin], first, atol=ATOL, rtol=0)
            wanted = model.stack.forward(rows, [Span(cache, len(rows))], sources=sources)
            torch.testing.assert_close(await asyncio.wait_for(each, 30), wanted, atol=ATOL, rtol=0)


@pytest.mark.parametrize("rows", [torch.zeros(0, 32), torch.zeros(3, 31), torch.zeros(3, 32).half(), torch.zeros(3)])
async def test_what_is_no_text_is_refused(rows: torch.Tensor, tiny_folder: Path) -> None:
    """No rows, of another width, or other numbers; and more than are read at once."""
    group = submodel_for(Checkpoint.open(built("t5", tiny_folder), None))
    for each in (rows, torch.zeros(MAX_ROWS + 1, 32)):
        with pytest.raises(ValueError, match="text's rows"):
            group.open_about(10, each)


@dataclass
class Alone:
    """The one member of a group, which is told what its portal tells it."""

    part: Part
    worker: Any

    def do(self, head: GroupHead, rows: int = 0) -> torch.Tensor | None:
        found: torch.Tensor | None = self.worker.do(head, torch.ones(rows, 32) if rows else None)
        return found

    @property
    def held(self) -> int:
        """Bytes of all sessions."""
        return sum(each.nbytes for each in self.worker._sessions.values())


@pytest.fixture
def alone(tiny_folder: Path) -> Iterator[Alone]:
    checkpoint = Checkpoint.open(built("t5", tiny_folder), None)
    part = Part(JoinedPlan.of(plan_of(checkpoint.spec, "tensor", [PORTAL]), "", "float32", 0, 0), checkpoint, 0)
    with fabrics(1) as [link]:
        yield Alone(part, part.worker(part.load(), link))


def test_what_a_session_is_about_goes_with_it(alone: Alone) -> None:
    """Keys and values of a text are held once for a session and its forks, until the last of them ends."""
    alone.do(OpenHead(1, 20))
    assert alone.held == 0
    alone.do(SourceHead(1, 7), 7)
    layers, width = 3, 4 * 10
    assert alone.held == layers * 2 * 7 * width * 4
    alone.do(RowsHead(1, 0, 2, 2), 2)
    alone.do(ForkHead(2, 1, 1, 20))
    first, second = (alone.worker._sessions[number].sources for number in (1, 2))
    assert first is second
    alone.do(CloseHead(1))
    assert alone.do(RowsHead(2, 1, 1, 1), 1) is not None
    alone.do(CloseHead(2))
    assert alone.held == 0


@pytest.mark.parametrize(
    ("heads", "why"),
    [
        ([OpenHead(1, 9), RowsHead(1, 0, 1, 1)], "nobody has said"),
        ([OpenHead(1, 9), SourceHead(1, 3), SourceHead(1, 3)], "cannot be about"),
        ([SourceHead(1, 3)], "no session 1"),
        ([OpenHead(1, 9), SourceHead(1, 3), RowsHead(1, 0, 2, 1), TruncateHead(1, 1), SourceHead(1, 2)], "cannot be"),
    ],
)
def test_a_portal_that_does_not_agree(heads: Sequence[GroupHead], why: str, alone: Alone) -> None:
    """Rows of a session that is about nothing, two texts for one, a text for none, one behind rows."""
    *good, bad = heads
    for head in good:
        alone.do(head, getattr(head, "rows", 0))
    with pytest.raises(BadGroupHead, match=why):
        alone.do(bad, getattr(bad, "rows", 0))


def test_other_models_are_about_nothing(tiny: Path) -> None:
    """A text for a model that writes on from its own."""
    checkpoint = Checkpoint.open(tiny)
    part = Part(JoinedPlan.of(plan_of(checkpoint.spec, "tensor", [PORTAL]), "", "float32", 0, 0), checkpoint, 0)
    with fabrics(1) as [link]:
        worker = part.worker(part.load(), link)
        worker.do(OpenHead(1, 9))
        with pytest.raises(BadGroupHead, match="cannot be about"):
            worker.do(SourceHead(1, 2), torch.ones(2, 32))


@pytest.mark.parametrize("form", ["tensor", "galaxy-1", "pipeline"])
def test_bytes_of_both_halves(form: str, tiny_folder: Path) -> None:
    """What a member says that it needs is what it loads, but for a table of relative positions that each layer counts;
    room for a session's text is room for as many positions again, at the decoder's layers alone."""
    checkpoint = Checkpoint.open(built("t5-gated", tiny_folder), None)
    spec, names = checkpoint.spec, NAMES[:3]
    plan = plan_of(spec, form, names, (3, 0, 5))
    for place in range(len(names)):
        joined = JoinedPlan.of(plan, "", "float32", 0, 10)
        held = Part(joined, checkpoint, place + 1).load()
        tables = sum(each.table.nbytes for layer in held for each in layer.biases if each is not None)
        loaded, said = sum(each.loaded_bytes for each in held), weight_bytes(plan.layers, 0, place, spec, "float32")
        assert loaded <= said <= loaded + tables
        groups = sum(len(piece.groups) for layer in held[readers_of(spec) :] for piece in layer.pieces)
        assert cache_bytes(plan.layers, place, spec, 10, 4) == 2 * 2 * groups * spec.head_dim * 10 * 4


@pytest.mark.parametrize("form", ["tensor", "voltage", "mixed", "pipeline"])
def test_a_planner_keeps_as_much_room_as_members_want(form: str, tiny_folder: Path) -> None:
    """For keys and values of own rows and the encoder's, at whoever has them; for weights no less than what is read."""
    spec = Checkpoint.open(built("t5-gated", tiny_folder), None).spec
    plan = plan_of(spec, form, NAMES[:3], (3, 0, 5))
    found = planned_bytes(ModelShape.of(spec, "float32"), plan, 10, 40)
    for place, name in enumerate(NAMES[:3]):
        assert found[name].cache == cache_bytes(plan.layers, place, spec, 40, 4)


@pytest.mark.parametrize("share", [0.15, 0.3, 0.6])
def test_nobody_refuses_what_was_planned_for_its_memory(share: float, tiny_folder: Path) -> None:
    """Streamed or not: a member that a plan fits takes its part."""
    checkpoint = Checkpoint.open(built("t5-gated", tiny_folder), None)
    shape = ModelShape.of(checkpoint.spec, "float32")
    whole = GroupPlan("local", ("a",), "a", (Whole(0),) * shape.layers)
    needed = planned_bytes(shape, whole, 10, 40)["a"]
    memory = [needed.ends + needed.buffers + share * (needed.layers + needed.cache), needed.total - needed.ends]
    measured = profile(shape, [1e9, 1e9], 1e8, memory=memory, disks=1e9)
    plan = plan_for("lime", task(shape, measured, Work(10, 5, room=40)))
    budgets = {"a": memory[0] - needed.ends, "b": memory[1]}
    joined = JoinedPlan.of(plan, "", "float32", 0, 40)
    for rank, name in zip(joined.ranks, plan.members, strict=True):
        Part(joined, checkpoint, rank, int(budgets[name]))


def test_plans_for_half_a_model_are_refused(tiny_folder: Path) -> None:
    """By name; so is an order in which nothing can be added to scores, and more layers than there are."""
    spec = Checkpoint.open(built("t5", tiny_folder), None).spec
    good = JoinedPlan.of(plan_of(spec, "tensor", NAMES[:2]), "", "float32", 0, 0)
    assert len(good.layers(spec)) == layers_of(spec)
    for layers, first, why in ((layers_of(spec) - 1, 0, "both halves"), (spec.num_layers, 3, "both halves")):
        half = JoinedPlan.of(plan_of(spec, "tensor", NAMES[:2], layers=layers), "", "float32", first, 0)
        with pytest.raises(ValueError, match=why):
            half.layers(spec)
    with pytest.raises(ValueError, match="more layers"):
        msgspec.structs.replace(good, first_layer=1).layers(spec)
    reordered = replace(
        plan_of(spec, "voltage", NAMES[:2]), layers=(ByRows((1, 1), Whole(0), reordered=(True, False)),) * 6
    )
    with pytest.raises(ValueError, match=r"Eq\. 8"):
        JoinedPlan.of(reordered, "", "float32", 0, 0).layers(spec)
