"""Members of a group whose layers, keys and values are on another device than the CPU; the portal's ends are on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from elsewhere import elsewhere
from group_reads import read_of
from group_writes import Written, ids, oracle_written
from groups import NAMES, PORTAL, UNEVEN, group_here, joined_plan, plan_of, streamed
from stand_in import DEVICE, watched
from submodel_conformance import rows
from tiny_models import built

from device_agent.group.asking.reached import NOTHING_HANDED, Resumes
from device_agent.group.formation.joining import Part, Refused
from device_agent.group.holding.kept_layers import KeptLayers
from device_agent.group.member import MemberConfig, device_of, serve
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.profile import AXES
from device_agent.planning.table import Table
from device_agent.profiling import kept_profiles
from device_agent.profiling.kept_profiles import kept_or_measured
from device_agent.profiling.layer_runs import LayerRuns
from device_agent.profiling.reordered_runs import ReorderedRuns, has_order
from device_agent.sharing.compute import Compute
from split_model.checkpoint import Checkpoint
from split_model.slices import Slice
from split_model.stack import Span, Stack

THREE = ("one", PORTAL, "three")
SHARES = (2.0, 1.0, 1.0)


def on(device: torch.device, cpu_at: int = 1) -> Sequence[torch.device]:
    """All ranks there, but one that has the CPU only."""
    return [torch.device("cpu") if rank == cpu_at else device for rank in range(3)]


@elsewhere
@pytest.mark.parametrize("form", ["mixed", "edgeformer", "voltage-prefix-keys-values", "pipeline"])
async def test_every_form_is_what_one_process_gives(form: str, device: torch.device, tiny_folder: Path) -> None:
    """Tensors and rows shared, gathers and sums by tiles, heads lent, keys and values caught up, among a member that
    has the CPU only."""
    path = built("llama", tiny_folder)
    checkpoint = Checkpoint.open(path)
    stack = Stack.load(checkpoint, Slice(0, checkpoint.spec.num_layers), torch.float32)
    cache, hidden = stack.new_cache(40), rows(40, stack.spec.hidden_size, 7)
    with group_here(path, plan_of(stack.spec, form, THREE, SHARES), devices=on(device)) as group:
        session = group.open(40)
        for begin, end in ((0, 9), (9, 10), (10, 22), (22, 23), (16, 28)):
            session.truncate(begin)
            cache.truncate(begin)
            got = await asyncio.wait_for(session.forward(hidden[begin:end], 1), 60)
            wanted = stack.forward(hidden[begin:end], [Span(cache, end - begin)])[-1:]
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
        session.close()


@elsewhere
@pytest.mark.parametrize("form", ["edgeformer", "mixed"])
async def test_sessions_are_handed_over_there(form: str, device: torch.device, tiny_folder: Path) -> None:
    """Keys and values go from member to member where one leaves, and where it comes back, among one that has the CPU
    only; nothing is computed again."""
    path, kept = built("llama", tiny_folder), dict[str, KeptLayers]()
    checkpoint = Checkpoint.open(path)
    stack = Stack.load(checkpoint, Slice(0, checkpoint.spec.num_layers), torch.float32)
    hidden = rows(45, stack.spec.hidden_size, 7)
    wanted = stack.forward(hidden, [Span(stack.new_cache(45), 45)])
    plans = [plan_of(stack.spec, form, names) for names in (THREE, THREE[:2], THREE)]
    group, session, resumes = None, None, NOTHING_HANDED
    for at, plan in enumerate(plans):
        following, before = plans[at + 1] if at < 2 else None, joined_plan(plan)
        more: dict[str, Any] = {"submodel": group, "following": following, "resumes": resumes, "kept": kept}
        with group_here(path, plan, devices=on(device), **more) as group:
            life = group.life
            assert life is not None
            session = session or group.open(45)
            found = await asyncio.wait_for(session.forward(hidden[15 * at : 15 * (at + 1)], 15), 60)
            torch.testing.assert_close(found, wanted[15 * at : 15 * (at + 1)], atol=1e-5, rtol=0)
            assert list(life.steps) == [(15, 15 * at)]
        group.pause()
        resumes = Resumes(life.handed, None if at == 0 else before)
    assert session is not None
    session.close()


@elsewhere
@pytest.mark.parametrize(("name", "form"), [("bert", "voltage-reordered"), ("vit", "galaxy-1")])
async def test_whole_texts_are_read_there(name: str, form: str, device: torch.device, tiny_folder: Path) -> None:
    """Rows that see all others, and Eq. 8's order."""
    read = read_of(name, tiny_folder)
    with group_here(read.path, plan_of(read.spec, form, NAMES[:3], UNEVEN[3]), devices=on(device)) as group:
        read.check(await asyncio.wait_for(group.read(read.hidden, read.lengths), 30))


@elsewhere
async def test_a_source_is_attended_to_there(device: torch.device, tiny_folder: Path) -> None:
    """Relative positions and cross-attention: what transformers writes."""
    path, compute, text = built("t5", tiny_folder), Compute(), ids(20)
    spec = Checkpoint.open(path, "cross").spec
    with group_here(path, plan_of(spec, "mixed", THREE, SHARES), devices=on(device)) as group:
        assert await Written.over(path, group, compute).of(text, 6) == oracle_written(path, text, 6)
    compute.stop()


async def test_rows_cross_once_each_way_at_a_member(tiny: Path) -> None:
    """Of a pipeline's step: the portal's rows to its device, and to the other's from there; what comes out likewise.
    Nothing else crosses to a host."""
    spec = Checkpoint.open(tiny).spec
    hidden = rows(9, spec.hidden_size, 3)
    with group_here(tiny, plan_of(spec, "pipeline", (PORTAL, "one")), devices=[DEVICE]) as group:
        session = group.open(20)
        await asyncio.wait_for(session.forward(hidden[:8], 1), 60)
        with watched() as found:
            await asyncio.wait_for(session.forward(hidden[8:], 1), 60)
    one = (1, spec.hidden_size)
    assert found.to_host == [one, one] and found.to_device.count(one) == 2


def test_a_part_that_streams_is_refused_there_before_anything_is_loaded(tiny: Path) -> None:
    """By what to do instead; weights of which some are read at each use, and sessions that are counted."""
    checkpoint = Checkpoint.open(tiny)
    plan = streamed(plan_of(checkpoint.spec, "interleaved", (PORTAL,)), checkpoint.spec, 2)
    joined = JoinedPlan.of(plan, "", "float32", 0, 0)
    Part(joined, checkpoint, 0)
    with pytest.raises(Refused, match="--device cpu"):
        Part(joined, checkpoint, 0, kept=KeptLayers(DEVICE))


def test_what_is_measured_there_is_kept_apart(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from the disk there, and the CPU's profile is another."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checkpoint, measured = Checkpoint.open(tiny), []
    tables = {part: Table(((1,),) * len(axes), (0.5,)) for part, axes in AXES.items() if part != "reordered"}

    def noted(*arguments: Any, device: Any) -> dict[str, Table]:
        measured.append(device)
        return tables

    monkeypatch.setattr(kept_profiles, "measured_seconds", noted)
    for _ in range(2):
        found = kept_or_measured(checkpoint, "float32", "here", 1, quick=True, device=DEVICE)
        assert (found.read_bytes_s, found.byte_cost_s, found.decoding, found.seconds) == (0.0, 0.0, None, tables)
    assert measured == [DEVICE]
    [kept] = (tmp_path / "trilby" / "profiles").iterdir()
    assert '"device":"stand"' in kept.read_text()


@elsewhere
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_layers_are_measured_there(name: str, device: torch.device, tiny_folder: Path) -> None:
    """Every part of one, its attention, and Eq. 8's order, with rows of their own."""
    checkpoint = Checkpoint.open(built(name, tiny_folder), None)
    spec = checkpoint.spec
    runs = LayerRuns(checkpoint, torch.float32, spec.num_kv_heads, spec.intermediate_size, device)
    parts = [*runs.parts(3)[0].values(), runs.attend(3, 9)[0]["attend"]]
    if has_order(spec):
        parts.append(ReorderedRuns(checkpoint, torch.float32, device).run(3, 9))
    for each in parts:
        found = each()
        assert all(part.device == device for part in (found if isinstance(found, tuple) else (found,)))


async def test_a_member_says_where_it_cannot_compute(tiny: Path) -> None:
    """Before it dials; where nothing is said and no GPU is there, it is the CPU."""
    config = MemberConfig(join="127.0.0.1:9", model=str(tiny), group_key="k" * 16, device="cuda:99")
    with pytest.raises(ValueError, match="--device cuda:99"):
        await asyncio.wait_for(serve(config), 30)
    config = MemberConfig(join="127.0.0.1:9", model=str(tiny), group_key="k" * 16, memory="1GB")
    assert device_of(config) == torch.device("cpu")
