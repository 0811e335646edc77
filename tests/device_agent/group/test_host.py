"""The life of a group: who is let in, who is waited for, what it goes on with, and what it says of itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import chain_over, greedy, until
from groups import KEY, PORTAL, hosted, member_here, plan_of, replanned, streamed, submodel_for
from oracle import oracle_tokens, prompt_for
from tiny_models import built

from device_agent.group import member
from device_agent.group.asking.record import MAX_LOSSES
from device_agent.group.formation import forming
from device_agent.group.formation.joining import Part
from device_agent.group.formation.loading import all_loaded
from device_agent.group.formation.making import PlanMaker
from device_agent.group.formation.planned import ModePlanner
from device_agent.group.holding.held import HeldLayer
from device_agent.group.host import GroupHost
from device_agent.group.lives.state import MemberState
from device_agent.group.messages.heads import BadGroupHead, GroupHead, RowsHead
from device_agent.group.messages.notes import Card, written
from device_agent.group.rows.sending import PORTAL as PORTAL_RANK
from device_agent.group.rows.sending import Tag
from device_agent.group.steps.worker import Worker
from device_agent.planning.memory import DoesNotFit, Lack
from device_agent.planning.memory import held as planned_bytes
from device_agent.planning.plan import GroupPlan, Layer
from device_agent.planning.profile import DeviceProfile, Profile, read
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Work
from device_agent.profiling.kept_profiles import folder, kept_or_measured
from device_agent.sharing.compute import Compute
from peers.frames import Kind, PeerFrame
from peers.membership import attend
from split_model.checkpoint import Checkpoint
from split_model.hub import identity, resolve
from split_model.offload.errors import ReadFailed
from split_model.offload.store import UnitStore
from split_model.offload.units import Unit
from split_model.slices import held_bytes, input_slice, output_slice
from wire.errors import Code, ConnectionFailed, SessionFailed
from wire.peer_messages import PeerPost

TOKENS = 12
PROMPT = 40
FREE = 10**9
"""Bytes of memory that a test says are free."""
NOT_HERE = "192.0.2.1"
"""An address that no machine has."""


def of(host: GroupHost, name: str) -> MemberState:
    """What the group says of one."""
    return next(each for each in host.state().members if each.name == name)


def working(host: GroupHost) -> list[str]:
    """Who computes now."""
    return [each.name for each in host.state().members if each.state == "working"]


@asynccontextmanager
async def computing() -> AsyncIterator[Compute]:
    """A compute thread."""
    compute = Compute()
    yield compute
    compute.stop()


async def right(host: GroupHost, path: Path) -> bool:
    """Whether an answer is transformers'."""
    prompt = prompt_for(path, PROMPT)
    async with computing() as compute:
        found = await greedy(chain_over(path, 0, 0, host.submodel, compute, 64), list(prompt), TOKENS)
    return found == oracle_tokens(path, prompt, TOKENS)


async def test_a_number_of_members_gathers_and_the_next_waits(tiny: Path) -> None:
    """The portal and two who come make three; a fourth waits, and takes the place of one who goes."""
    async with hosted(tiny, "voltage", 3) as host, AsyncExitStack() as stack:
        port = host.listens.result()
        assert host.state().formed is False
        first = await stack.enter_async_context(member_here(tiny, "one", port))
        await stack.enter_async_context(member_here(tiny, "two", port))
        await until(host.formed.is_set)
        await stack.enter_async_context(member_here(tiny, "three", port))
        await until(lambda: "three" in [each.name for each in host.state().members])
        assert set(working(host)) == {PORTAL, "one", "two"} and of(host, "three").state == "joining"
        state = of(host, "one")
        assert state.layers == "0-3" and state.heads == "4" and state.rows_share == pytest.approx(1 / 3, abs=1e-3)
        assert await right(host, tiny)
        first.cancel()
        await until(lambda: set(working(host)) == {PORTAL, "two", "three"} and host.formed.is_set())
        assert of(host, "one").state == "lost" and "one" in of(host, "one").why
        assert await right(host, tiny)


async def test_it_begins_with_those_who_have_come(tiny: Path) -> None:
    """Where one does not come in time the others begin, and say so; when it comes, it is planned in, and what is asked
    meanwhile is answered; members keep the layers that both plans have."""
    async with hosted(tiny, "tensor", ("one", "two"), join_within_s=3.0) as host, AsyncExitStack() as stack:
        port = host.listens.result()
        await stack.enter_async_context(member_here(tiny, "one", port))
        await until(host.formed.is_set)
        assert working(host) == ["one"] and of(host, "two").state == "lost"
        await stack.enter_async_context(member_here(tiny, "nobody", port))
        answers = asyncio.gather(*(right(host, tiny) for _ in range(3)))
        await stack.enter_async_context(member_here(tiny, "two", port))
        await until(lambda: working(host) == ["one", "two"])
        assert await answers == [True] * 3 and await right(host, tiny)
        assert of(host, "nobody").state == "excluded" and "not one of those" in of(host, "nobody").why


async def test_nobody_comes(tiny: Path) -> None:
    """The group ends, and says that; so do its sessions."""
    async with hosted(tiny, "tensor", ("one",), join_within_s=0.2) as host:
        session = host.submodel.open(10)
        await host.news()
        await until(lambda: "no member has come" in host.state().why)
        with pytest.raises(Exception, match="no member has come"):
            host.submodel.open(10)
        session.close()


async def test_a_portal_may_be_its_own_group(tiny: Path) -> None:
    """With nobody else there it computes everything."""
    async with hosted(tiny, "pipeline", 1) as host:
        await until(host.formed.is_set)
        assert working(host) == [PORTAL] and await right(host, tiny)


async def test_a_second_of_a_name_is_refused(tiny: Path) -> None:
    """By name, and the first goes on."""
    async with hosted(tiny, "tensor", ("one",)) as host:
        port = host.listens.result()
        async with member_here(tiny, "one", port):
            await until(host.formed.is_set)
            async with member_here(tiny, "one", port, redial=False) as second:
                with pytest.raises(ConnectionFailed, match="'one'") as refused:
                    await second
            assert refused.value.code is Code.NAME_TAKEN
            assert working(host) == ["one"] and await right(host, tiny)


async def test_who_cannot_take_part_is_planned_without(tiny: Path, tiny_folder: Path) -> None:
    """Another model, another dtype or too little memory: both sides say why, the member ends, and what the group
    answers meanwhile is right."""
    other = built("qwen2", tiny_folder)
    async with hosted(tiny, "tensor", 5, positions=200_000, join_within_s=0.1) as host, AsyncExitStack() as stack:
        port = host.listens.result()
        await until(host.formed.is_set)
        answers = asyncio.gather(*(right(host, tiny) for _ in range(3)))
        wrong = await stack.enter_async_context(member_here(other, "wrong", port))
        half = await stack.enter_async_context(member_here(tiny, "half", port, dtype="bfloat16"))
        small = await stack.enter_async_context(member_here(tiny, "small", port, memory="1MB"))
        for task, name, code, why in (
            (wrong, "wrong", Code.DIGEST_MISMATCH, "not the portal's"),
            (half, "half", Code.DTYPE_MISMATCH, "computes in bfloat16"),
            (small, "small", Code.TOO_LITTLE_MEMORY, "MB are needed"),
        ):
            with pytest.raises(ConnectionFailed, match=why) as refused:
                await asyncio.wait_for(task, 30)
            assert refused.value.code is code
            await until(lambda: of(host, name).state == "excluded")  # noqa: B023
            assert why in of(host, name).why
        await until(host.formed.is_set)
        assert working(host) == [PORTAL] and await answers == [True] * 3 and await right(host, tiny)


async def test_who_has_too_little_memory_for_any_plan_ends_no_group(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not measured, so the life ends for that; then the others go on without it, and so they do behind a loss,
    and where one of them comes back."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = Checkpoint.open(tiny).spec

    def planned(_: Profile, names: Sequence[str]) -> GroupPlan:
        if "small" in names:
            raise DoesNotFit("voltage", [Lack("small", 2_000_000, 1_000_000)])
        return plan_of(spec, "voltage", names)

    async with hosted(tiny, "voltage", 3, planner=planned, measured=True, join_within_s=0.1) as host:
        port = host.listens.result()
        async with AsyncExitStack() as stack:
            await until(host.formed.is_set, 60)
            one = await stack.enter_async_context(member_here(tiny, "one", port))
            await until(lambda: working(host) == [PORTAL, "one"], 60)
            epoch = host.state().epoch
            await stack.enter_async_context(member_here(tiny, "small", port))
            await until(lambda: host.state().epoch > epoch and working(host) == [PORTAL, "one"], 60)
            assert await right(host, tiny)
            one.cancel()
            await until(lambda: working(host) == [PORTAL] and host.formed.is_set(), 60)
            assert await right(host, tiny)
            await stack.enter_async_context(member_here(tiny, "one", port))
            await until(lambda: working(host) == [PORTAL, "one"] and host.formed.is_set(), 60)
            assert await right(host, tiny)


async def test_what_is_started_again_each_time_that_it_refuses_disturbs_nobody_for_long(tiny: Path) -> None:
    """It is believed once that it was set right, and then it waits, longer each time."""
    async with hosted(tiny, "tensor", 2, positions=200_000, join_within_s=0.1) as host:
        port = host.listens.result()
        await until(host.formed.is_set)
        for _ in range(2):
            async with member_here(tiny, "small", port, memory="1MB") as small:
                with pytest.raises(ConnectionFailed, match="MB are needed"):
                    await asyncio.wait_for(small, 30)
        await until(lambda: working(host) == [PORTAL] and host.formed.is_set())
        epoch = host.state().epoch
        async with member_here(tiny, "small", port, memory="1MB"):
            await until(lambda: "it may come back in" in of(host, "small").why)
            assert await right(host, tiny) and host.state().epoch == epoch


async def test_a_portal_that_could_not_do_its_part_tries_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks for a while, memory or room on its disk, does not end the group; what is asked meanwhile waits."""
    monkeypatch.setattr("device_agent.group.formation.roll.FIRST_WAIT_S", 0.2)
    lacks = ["memory"] * 3

    def lacking(*of: Any) -> Any:
        if formed_once and lacks:
            raise ValueError(f"a test of too little {lacks.pop()}")
        return Part(*of)

    monkeypatch.setattr(forming, "Part", lacking)
    formed_once: list[bool] = []
    async with hosted(tiny, "tensor", 2) as host, member_here(tiny, "one", host.listens.result()) as one:
        await until(host.formed.is_set)
        formed_once.append(True)
        one.cancel()
        await until(lambda: not host.formed.is_set())
        assert await right(host, tiny) and working(host) == [PORTAL] and not lacks


async def test_a_portal_outlives_whatever_goes_wrong_as_it_plans_and_forms(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members have a part in what it plans of and waits for; what is asked meanwhile is answered by the next life."""
    goes_wrong, spec = set[str](), Checkpoint.open(tiny).spec

    def planner(_: object, there: Sequence[str]) -> GroupPlan:
        if "planning" in goes_wrong:
            goes_wrong.remove("planning")
            raise ZeroDivisionError("a test")
        return plan_of(spec, "tensor", there)

    async def loaded(*of: Any) -> None:
        if "forming" in goes_wrong:
            goes_wrong.remove("forming")
            raise ZeroDivisionError("a test")
        await all_loaded(*of)

    monkeypatch.setattr(forming, "all_loaded", loaded)
    monkeypatch.setattr("device_agent.group.host.ALONE_WITHIN_S", 5.0)
    async with (
        hosted(tiny, "", 3, planner=planner) as host,
        member_here(tiny, "two", port := host.listens.result()),
        member_here(tiny, "one", port) as one,
    ):
        await until(host.formed.is_set)
        goes_wrong |= {"planning", "forming"}
        one.cancel()
        await until(lambda: not host.formed.is_set())
        assert await right(host, tiny) and working(host) == [PORTAL, "two"] and not goes_wrong


async def test_a_portal_outlives_what_goes_wrong_between_two_plans(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot tell whether sessions had better be handed over they are replayed, and the next life begins."""

    def wrong(*_: object) -> bool:
        raise ZeroDivisionError("a test")

    monkeypatch.setattr(PlanMaker, "hands_over", wrong)
    async with hosted(tiny, "tensor", 2) as host, member_here(tiny, "one", host.listens.result()):
        await until(host.formed.is_set)
        await replanned(host, "one", slow=True)
        assert await right(host, tiny) and working(host) == [PORTAL]


@pytest.mark.parametrize("key", ["load", "fits/1", "link/1/0"])
async def test_who_posts_what_others_have_to_say_ends_its_own_part_alone(key: str, tiny: Path) -> None:
    """Not the portal, and not the member whose post it is: both answer without it."""
    async with (
        hosted(tiny, "tensor", (PORTAL, "one", "two")) as host,
        attend(f"127.0.0.1:{host.listens.result()}", KEY, "two") as liar,
    ):
        liar.note(written(Card(identity(Checkpoint.open(tiny)))))

        async def lie() -> None:
            place = await liar.place()
            place._post(PeerPost(key, b"", place.epoch))

        lying = asyncio.create_task(lie())
        async with member_here(tiny, "one", host.listens.result()) as one:
            await until(lambda: working(host) == [PORTAL, "one"] and host.formed.is_set())
            assert await right(host, tiny) and not one.done()
            assert "to say" in of(host, "two").why
        await lying


async def test_a_portal_whose_disk_fails_is_planned_without(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own part of a step fails each time: after the second the members go on alone, and no answer is lost."""
    do, failing = Worker.do, threading.Event()

    def broken(worker: Worker, head: GroupHead, given: torch.Tensor | None = None) -> torch.Tensor | None:
        if failing.is_set() and worker._collectives._fabric.rank == PORTAL_RANK:
            raise ReadFailed(Unit(0, "mlp"), tiny, "a test")
        return do(worker, head, given)

    monkeypatch.setattr(Worker, "do", broken)
    async with hosted(tiny, "pipeline", 2) as host, member_here(tiny, "one", host.listens.result()):
        await until(lambda: working(host) == [PORTAL, "one"] and host.formed.is_set())
        failing.set()
        assert await right(host, tiny)
        assert working(host) == ["one"] and "cannot compute a step" in of(host, PORTAL).why


async def test_a_member_whose_disk_hangs_while_it_loads_holds_nobody_up_for_long(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said that it loads, and says nothing more: it is named and sent away, and the others answer what waits. A
    member that reads slowly, but reads, is waited for."""
    monkeypatch.setattr("device_agent.group.formation.loading.TOLD_EVERY_S", 0.05)
    monkeypatch.setattr("device_agent.group.formation.loading.STALLED_S", 1.0)
    read_layer, hangs, slow = HeldLayer.load, threading.Event(), threading.Event()

    def reading(checkpoint: Checkpoint, layer: Layer, number: int, place: int, *more: Any) -> HeldLayer:
        if threading.current_thread().name.startswith("member"):
            if slow.is_set():
                time.sleep(0.5)
            elif hangs.is_set():
                over.wait(30)
        return read_layer(checkpoint, layer, number, place, *more)

    monkeypatch.setattr(HeldLayer, "load", reading)
    over = threading.Event()
    slow.set()
    async with hosted(tiny, "pipeline", 2) as host, AsyncExitStack() as stack:
        port = host.listens.result()
        one = await stack.enter_async_context(member_here(tiny, "one", port))
        await until(lambda: working(host) == [PORTAL, "one"] and host.formed.is_set())
        assert Checkpoint.open(tiny).spec.num_layers * 0.5 > 1.0  # Longer than a stall, in parts.
        slow.clear()
        one.cancel()
        await until(lambda: working(host) == [PORTAL] and host.formed.is_set())
        hangs.set()
        await stack.enter_async_context(member_here(tiny, "two", port))
        await until(lambda: not host.formed.is_set())
        assert await right(host, tiny)
        assert working(host) == [PORTAL] and "read no further layer for 1 s" in of(host, "two").why
        over.set()


async def test_a_member_that_takes_its_place_and_says_nothing_holds_nobody_up_for_long(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, and the others begin without it. One that needs long to find out whether its part fits, since the
    model has to come first, is waited for."""
    monkeypatch.setattr("device_agent.group.formation.loading.TOLD_EVERY_S", 0.2)
    monkeypatch.setattr("device_agent.group.formation.loading.STALLED_S", 1.0)
    took: list[float] = []

    def slowly(*of: Any, **how: Any) -> Path:
        if threading.current_thread().name.startswith("member"):
            took.append(2.5)
            time.sleep(2.5)
        return resolve(*of, **how)

    monkeypatch.setattr(member, "resolve", slowly)
    async with (
        hosted(tiny, "tensor", (PORTAL, "one", "two")) as host,
        attend(f"127.0.0.1:{host.listens.result()}", KEY, "two") as silent,
        member_here(tiny, "one", host.listens.result()),
    ):
        silent.note(written(Card(identity(Checkpoint.open(tiny)))))
        await until(lambda: working(host) == [PORTAL, "one"] and host.formed.is_set(), 30)
        assert took and "that it finds out whether its part fits" in of(host, "two").why
        assert await right(host, tiny)


async def test_requests_do_not_wait_for_ever_while_a_life_forms(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes long to begin behind one that has worked: they are refused, and those that come later, until it
    works."""
    monkeypatch.setattr("device_agent.group.lives.living.FORMED_WITHIN_S", 1.0)
    loads = asyncio.Event()
    loads.set()

    async def long(*group_and_seats: Any) -> None:
        await loads.wait()
        await all_loaded(*group_and_seats)

    monkeypatch.setattr(forming, "all_loaded", long)
    spec = Checkpoint.open(tiny).spec
    async with hosted(tiny, "tensor", 2) as host, member_here(tiny, "one", host.listens.result()) as one:
        await until(host.formed.is_set)
        loads.clear()
        session = host.submodel.open(10)
        one.cancel()
        await until(lambda: not host.formed.is_set())
        with pytest.raises(SessionFailed, match="takes long to begin again"):
            await asyncio.wait_for(session.forward(torch.zeros(1, spec.hidden_size), 1), 10)
        assert host.submodel.ended
        loads.set()
        await until(host.formed.is_set)
        assert await right(host, tiny)


@pytest.mark.parametrize(
    "mode", ["galaxy", *(pytest.param(each, marks=pytest.mark.slow) for each in ("pipeline", "edgeformer"))]
)
async def test_devices_and_links_are_measured_before_they_are_planned_with(
    mode: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each measures itself while it waits, all measure their links, and the plan is for what was found; one that goes
    and comes back is not measured again, and a new one is. What is known then is kept for ``trilby plan``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = Checkpoint.open(tiny).spec
    planner = ModePlanner(mode, spec, "float32", PORTAL, Work(32, 8))
    seen: list[Profile] = []

    def planned(profile: Profile, names: Sequence[str]) -> GroupPlan:
        seen.append(profile)
        return planner(profile, names)

    async with hosted(tiny, "tensor", 3, planner=planned, measured=True) as host, AsyncExitStack() as stack:
        port = host.listens.result()
        one = await stack.enter_async_context(member_here(tiny, "one", port))
        two = await stack.enter_async_context(member_here(tiny, "two", port, memory="500"))
        await until(host.formed.is_set, 60)
        budgets = {each.name: each.memory_bytes for each in seen[0].devices}
        assert budgets["two"] == 500 * 10**6 and set(budgets) == {PORTAL, "one", "two"} and len(seen[0].links) == 6
        assert [read(each.read_bytes()) for each in folder().glob("group-*")] == [seen[0]]
        assert await right(host, tiny)
        two.cancel()
        await until(lambda: len(seen) == 2 and host.formed.is_set())
        await stack.enter_async_context(member_here(tiny, "two", port))
        await until(lambda: len(seen) == 3 and host.formed.is_set(), 60)
        assert {each.name: each for each in seen[2].devices}["one"] == {each.name: each for each in seen[0].devices}[
            "one"
        ]
        assert all(each in seen[0].links for each in seen[2].links)
        one.cancel()
        await stack.enter_async_context(member_here(tiny, "three", port))
        await until(lambda: "three" in [each.name for each in seen[-1].devices] and host.formed.is_set(), 60)
        assert len(seen[-1].links) == 6 and await right(host, tiny)


@pytest.mark.parametrize(("budget", "device", "more"), [(0, "cpu", True), (10**8, "cpu", False), (10**8, "cuda", True)])
async def test_a_portals_ends_are_counted_once(
    budget: int, device: str, more: bool, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans count them. What is free has been found with both of them loaded; of what ``--memory`` gives they are a
    part; and on a GPU they never are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checkpoint = Checkpoint.open(tiny)

    def measured(of: Checkpoint, dtype: str, name: str, memory_bytes: int, **how: Any) -> DeviceProfile:
        return kept_or_measured(of, dtype, name, memory_bytes or FREE, **how | {"device": "cpu"})

    monkeypatch.setattr("device_agent.group.host.kept_or_measured", measured)
    settings = {"budget": budget, "device": device, "measured": True}
    host = GroupHost(checkpoint, submodel_for(checkpoint), plan_of, 1, 0, "float32", KEY, **settings)  # type: ignore[arg-type]
    found = host._measure_portal()
    spec = checkpoint.spec
    ends = held_bytes(spec, [input_slice(spec, 0), output_slice(spec, 0)], torch.float32)
    plan = plan_of(spec, "tensor", (PORTAL, "one"))
    counted = planned_bytes(ModelShape.of(spec, "float32"), plan, 1, 0)
    assert counted[PORTAL].ends - counted["one"].ends == ends
    assert found.memory_bytes == (budget or FREE) + (ends if more else 0)


async def test_plans_for_each_loss_are_wanted_beforehand(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as a life has formed, one after the other, for whoever would be there then; with the life that ends."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted: list[tuple[str, ...]] = []
    given_up: list[tuple[str, ...]] = []

    async def ahead(profile: Profile, names: Sequence[str]) -> None:
        assert {each.name for each in profile.devices} == {PORTAL, *names}
        wanted.append(tuple(names))
        if len(names) == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                given_up.append(tuple(names))
                raise

    async with hosted(tiny, "tensor", 3, measured=True, ahead=ahead) as host, AsyncExitStack() as stack:
        port = host.listens.result()
        one = await stack.enter_async_context(member_here(tiny, "one", port))
        await stack.enter_async_context(member_here(tiny, "two", port))
        await until(lambda: len(wanted) == 2, 60)
        first, second = sorted(set(working(host)) - {PORTAL}, key=working(host).index)
        assert wanted == [(PORTAL, second), (PORTAL, first)]
        one.cancel()
        await until(lambda: (PORTAL,) in wanted, 60)
        assert given_up == [] and await right(host, tiny)
    assert given_up == [(PORTAL,)]


async def test_a_spare_member_has_nothing_to_do_until_another_is_lost(tiny: Path) -> None:
    """The planner leaves it out, and the group says so; it comes and goes and disturbs nobody. Then it is needed."""
    spec = Checkpoint.open(tiny).spec

    def planned(_: object, names: Sequence[str]) -> GroupPlan:
        return plan_of(spec, "tensor", [name for name in names if name != "two" or "one" not in names])

    async with hosted(tiny, "", 3, planner=planned) as host, AsyncExitStack() as stack:
        port = host.listens.result()
        one = await stack.enter_async_context(member_here(tiny, "one", port))
        two = await stack.enter_async_context(member_here(tiny, "two", port))
        await until(host.formed.is_set)
        epoch = host.state().epoch
        assert working(host) == [PORTAL, "one"]
        assert (of(host, "two").state, of(host, "two").why) == ("spare", "the group is as fast without it")
        two.cancel()
        await until(lambda: of(host, "two").state == "lost")
        await stack.enter_async_context(member_here(tiny, "two", port))
        await until(lambda: of(host, "two").state == "spare")
        assert await right(host, tiny) and host.state().epoch == epoch
        one.cancel()
        await until(lambda: working(host) == [PORTAL, "two"])
        assert await right(host, tiny) and host.state().epoch == epoch + 1


@pytest.mark.parametrize("lie", ["a tile of no collective", "outputs of another shape", "a head that cannot be"])
async def test_a_lie_ends_the_liars_part_and_no_request(lie: str, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says what cannot be loses its place, by name; what was asked is answered by the others, and rightly."""
    lies = threading.Event()
    do = Worker.do

    def lying(worker: Worker, head: GroupHead, given: torch.Tensor | None = None) -> torch.Tensor | None:
        if lies.is_set() and worker._place == 1 and isinstance(head, RowsHead):
            lies.clear()
            links = worker._collectives
            if lie == "a tile of no collective":
                fabric = links._fabric
                frame = PeerFrame(Kind.GATHER, fabric.epoch, 10**6, 0, 4)
                fabric.link(PORTAL_RANK).outgoing.send(frame, memoryview(bytes(4)))
            elif lie == "outputs of another shape":
                links.send(torch.zeros(3), PORTAL_RANK, Tag.RESULT).wait()
            else:
                raise BadGroupHead("a test")
        return do(worker, head, given)

    monkeypatch.setattr(Worker, "do", lying)
    async with (
        hosted(tiny, "pipeline", ("one", "two")) as host,
        member_here(tiny, "one", port := host.listens.result()),
        member_here(tiny, "two", port),
    ):
        await until(host.formed.is_set)
        epoch = host.state().epoch
        lies.set()
        assert await right(host, tiny) and not lies.is_set()
        assert host.state().epoch > epoch
        await until(lambda: working(host) == ["one", "two"])  # It has lied once, and may come back.
        assert await right(host, tiny)


async def test_a_slow_member_is_planned_without_until_it_is_fast(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own computing takes much longer than is expected of it, and not that of the others, who wait for it: it is
    left out, and comes back when its trials are good again; all answers are right."""
    slow = threading.Event()
    do = Worker.do

    def sometimes_slow(worker: Worker, head: GroupHead, given: torch.Tensor | None = None) -> torch.Tensor | None:
        if slow.is_set() and worker._place == 2:
            time.sleep(0.05)
        return do(worker, head, given)

    monkeypatch.setattr(Worker, "do", sometimes_slow)
    monkeypatch.setattr("device_agent.group.member.speed", lambda: 10.0 if slow.is_set() else 100.0)
    for module in ("lives.living", "member"):
        monkeypatch.setattr(f"device_agent.group.{module}.PERIOD_S", 0.2)
    monkeypatch.setattr("device_agent.group.lives.watch.TRIAL_EVERY_S", 0.1)
    async with (
        hosted(tiny, "tensor", ("one", "two", "three"), expects=lambda rows, position: (0.01,) * 3) as host,
        member_here(tiny, "one", port := host.listens.result()),
        member_here(tiny, "two", port),
        member_here(tiny, "three", port),
    ):
        await until(host.formed.is_set)
        assert await right(host, tiny) and len(working(host)) == 3
        slow.set()
        while of(host, "three").state != "slow":
            assert await right(host, tiny)
        assert "times what is expected" in of(host, "three").why
        await until(lambda: working(host) == ["one", "two"])
        assert await right(host, tiny) and await right(host, tiny)
        assert of(host, "three").state == "slow"
        slow.clear()
        await until(lambda: working(host) == ["one", "two", "three"])
        assert await right(host, tiny)


@pytest.mark.slow
async def test_a_disk_that_has_become_slow_is_measured_again(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One member's reads take much longer than the others' beside what is expected: it is planned without, and with
    again once it has measured itself anew; all answers are right."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slow, read_as_usual = threading.Event(), UnitStore.read
    spec = Checkpoint.open(tiny).spec
    seen: list[Profile] = []
    of_three: set[Unit] = set()

    def planner(profile: Profile, names: Sequence[str]) -> GroupPlan:
        seen.append(profile)
        plan = streamed(plan_of(spec, "pipeline", names), spec)
        of_three.clear()
        of_three.update(plan.streamed[names.index("three")] if "three" in names else ())
        return plan

    def sometimes_slow(store: UnitStore, unit: Unit, *more: Any) -> None:
        if slow.is_set() and unit in of_three:
            time.sleep(0.02)
        read_as_usual(store, unit, *more)

    monkeypatch.setattr(UnitStore, "read", sometimes_slow)
    for module in ("lives.living", "member"):
        monkeypatch.setattr(f"device_agent.group.{module}.PERIOD_S", 0.2)
    expected: dict[str, Any] = {"expects": lambda rows, position: (1.0,) * 3, "reads": lambda: (0.005,) * 3}
    async with (
        hosted(tiny, "", ("one", "two", "three"), planner=planner, measured=True, **expected) as host,
        member_here(tiny, "one", port := host.listens.result()),
        member_here(tiny, "two", port),
        member_here(tiny, "three", port),
    ):
        await until(host.formed.is_set, 60)
        assert await right(host, tiny) and len(working(host)) == 3
        slow.set()
        until_s = time.monotonic() + 60
        while working(host) == ["one", "two", "three"]:
            assert await right(host, tiny) and time.monotonic() < until_s
        slow.clear()
        assert await right(host, tiny)
        await until(lambda: working(host) == ["one", "two", "three"], 60)
        assert await right(host, tiny)
        before, after = ({each.name: each for each in profile.devices} for profile in (seen[0], seen[-1]))
        assert after["three"] != before["three"] and after["one"] == before["one"]


async def test_a_slow_portal_keeps_its_part(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and head are its own whoever computes the layers: it is not planned without."""
    do, asked = Worker.do, 0

    def slow_at_the_portal(worker: Worker, head: GroupHead, given: torch.Tensor | None = None) -> torch.Tensor | None:
        nonlocal asked
        if worker._place == 0 and isinstance(head, RowsHead):
            asked += 1
            time.sleep(0.05)
        return do(worker, head, given)

    monkeypatch.setattr(Worker, "do", slow_at_the_portal)
    for module in ("lives.living", "member"):
        monkeypatch.setattr(f"device_agent.group.{module}.PERIOD_S", 0.2)
    async with (
        hosted(tiny, "tensor", 3, expects=lambda rows, position: (0.01,) * 3) as host,
        member_here(tiny, "one", port := host.listens.result()),
        member_here(tiny, "two", port),
    ):
        await until(host.formed.is_set)
        epoch = host.state().epoch
        while asked < 80:
            assert await right(host, tiny)
        assert len(working(host)) == 3 and host.state().epoch == epoch


async def test_members_outlive_their_portal(tiny: Path) -> None:
    """They dial again and are there for the next; no thread of the group before is left."""
    before = threading.active_count()
    async with AsyncExitStack() as stack:
        async with hosted(tiny, "voltage", 2) as host:
            port = host.listens.result()
            await stack.enter_async_context(member_here(tiny, "one", port))
            await until(host.formed.is_set)
            assert await right(host, tiny)
        async with hosted(tiny, "voltage", 2, port=port) as host:
            await until(host.formed.is_set)
            assert await right(host, tiny)
    await until(lambda: threading.active_count() <= before + 2)


async def test_members_look_for_each_portal_anew(tiny: Path) -> None:
    """The next one is somewhere else."""
    ports: list[int] = []

    async def where(useless: object) -> str:
        return f"127.0.0.1:{ports[-1]}"

    async with AsyncExitStack() as stack:
        for count in (1, 2):
            async with hosted(tiny, "voltage", 2) as host:
                ports.append(host.listens.result())
                if count == 1:
                    await stack.enter_async_context(member_here(tiny, "one", 0, where=where))
                await until(host.formed.is_set)
                assert len(working(host)) == 2 and await right(host, tiny)
    assert len(set(ports)) == 2


async def test_a_portal_without_its_network_waits_for_it(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address is gone, and then a member: no life can begin, and what is asked meanwhile is answered once it is
    back, however often that was tried. On its own it needs no address."""
    monkeypatch.setattr("device_agent.group.lives.living.AGAIN_S", 0.02)
    async with (
        hosted(tiny, "tensor", 3) as host,
        member_here(tiny, "one", port := host.listens.result()) as one,
        member_here(tiny, "two", port) as two,
    ):
        await until(lambda: len(working(host)) == 3 and host.formed.is_set())
        assert host._company is not None
        rendezvous, epoch = host._company.rendezvous, host.state().epoch
        here, rendezvous.address = rendezvous.address, NOT_HERE
        one.cancel()
        await until(lambda: not host.formed.is_set())
        answer = asyncio.create_task(right(host, tiny))
        await until(lambda: host.state().epoch > epoch + MAX_LOSSES + 1 and NOT_HERE in host.state().why)
        assert not answer.done()
        rendezvous.address = here
        assert await answer and working(host) == [PORTAL, "two"]
        rendezvous.address = NOT_HERE
        two.cancel()
        await until(lambda: working(host) == [PORTAL] and host.formed.is_set())
        assert await right(host, tiny)
