"""Edge groups for tests: plans of every kind, groups whose members are threads, and groups of real processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from clouds import until
from forked import ForkedProcess
from peers_together import fabrics
from processes import Process, free_port

from device_agent.group.asking.life import GroupLife
from device_agent.group.asking.reached import NOTHING_HANDED, Resumes
from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.group.formation.joining import Part
from device_agent.group.hinted import Where
from device_agent.group.holding.halves import halves_of, readers_of
from device_agent.group.holding.kept_layers import KeptLayers
from device_agent.group.holding.narrowing import can_narrow
from device_agent.group.holding.pieces import pieces_of
from device_agent.group.holding.streaming import Streaming
from device_agent.group.host import GroupEnded, GroupHost
from device_agent.group.member import MemberConfig, serve
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.group.steps.pipeline import Pipeline
from device_agent.planning.moves import Transfer
from device_agent.planning.plan import ByRows, GroupPlan, Hybrid, Layer, Lent, Sharded, Whole
from device_agent.planning.shape import ModelShape
from device_agent.planning.shares import handed_out
from device_agent.planning.thresholds import easy_tokens, most_tokens, token_bytes
from peers.board import PeerLost
from peers.fabric import Fabric
from split_model.checkpoint import Checkpoint
from split_model.entry import RowEntry
from split_model.offload.units import HALVES, Unit
from split_model.spec import ModelSpec

KEY = "a secret of these tests"
FORMED_WITHIN_S = 60.0
PORTAL = "portal"
NAMES = ("one", "two", "three", "four", "five", "six")
UNEVEN: dict[int, tuple[float, ...]] = {
    1: (1,),
    2: (1, 3),
    3: (2, 0, 3),
    4: (1, 2, 0, 4),
    5: (3, 1, 0, 2, 2),
    6: (1, 2, 0, 4, 1, 1),
}
"""Shares of so many members, of whom one of three or more has nothing."""

FormOf = Callable[[ModelSpec, Sequence[float]], list[Layer]]
"""A model and the members' shares to forms, which the layers have by turns."""


def _tensor(spec: ModelSpec, shares: Sequence[float]) -> Sharded:
    return Sharded(handed_out(spec.num_kv_heads, shares), handed_out(spec.intermediate_size, shares))


def _hybrid(spec: ModelSpec, shares: Sequence[float], mlp_by_rows: bool, overlap: bool = True) -> Hybrid:
    step = _tensor(spec, shares)
    return Hybrid(step.groups, step.columns, tuple(shares), mlp_by_rows, overlap)


def _pipeline(spec: ModelSpec, shares: Sequence[float]) -> list[Layer]:
    counts = handed_out(layers_of(spec), shares)
    return [Whole(member) for member, count in enumerate(counts) for _ in range(count)]


def layers_of(spec: ModelSpec) -> int:
    """How many a group has of a model, both halves together."""
    return sum(len(numbers) for _, numbers in halves_of(spec))


def _interleaved(spec: ModelSpec, shares: Sequence[float], segments: int = 2) -> list[Layer]:
    """A pipeline that comes to each member in each segment."""
    return [
        Whole(member)
        for layers in handed_out(layers_of(spec), [1.0] * segments)
        for member, count in enumerate(handed_out(layers, shares))
        for _ in range(count)
    ]


def _lent(spec: ModelSpec, shares: Sequence[float], columns: bool = False, **how: Any) -> list[Layer]:
    """Each member is the home of layers by turns, and lends heads to the others, and columns where these are lent."""
    parts, members = _tensor(spec, shares), range(len(shares))
    at_home = [tuple(spec.intermediate_size * (at == home) for at in members) for home in members]
    return [Lent(home, parts.groups, parts.columns if columns else at_home[home], **how) for home in members]


FORMS: dict[str, FormOf] = {
    "tensor": lambda spec, shares: [_tensor(spec, shares)],
    "pipeline": _pipeline,
    "interleaved": _interleaved,
    "interleaved-layers": lambda spec, shares: _interleaved(spec, shares, spec.num_layers),
    "galaxy-1": lambda spec, shares: [_hybrid(spec, shares, False)],
    "galaxy-2": lambda spec, shares: [_hybrid(spec, shares, True)],
    "galaxy-no-overlap": lambda spec, shares: [_hybrid(spec, shares, False, False)],
    "voltage": lambda spec, shares: [ByRows(tuple(shares), _tensor(spec, shares))],
    "voltage-pieces": lambda spec, shares: [ByRows(tuple(shares), _tensor(spec, shares), pieces=3)],
    "voltage-one-steps": lambda spec, shares: [ByRows(tuple(shares), Whole(len(shares) - 1), overlap=False)],
    "voltage-keys-values": lambda spec, shares: [ByRows(tuple(shares), _tensor(spec, shares), keys_values=True)],
    "voltage-prefix": lambda spec, shares: [ByRows(tuple(shares), Whole(len(shares) - 1), prefix=True)],
    "voltage-prefix-keys-values": lambda spec, shares: [
        ByRows(tuple(shares), Whole(len(shares) - 1), keys_values=True, prefix=True)
    ],
    "lent": _lent,
    "lent-steps-at-home": lambda spec, shares: _lent(spec, shares, columns=True, few_rows=1),
    "lent-projections": lambda spec, shares: _lent(spec, shares, columns=True, projections=True),
    "edgeformer": lambda spec, shares: [
        _lent(spec, shares, few_rows=1)[-1],
        _lent(spec, shares, columns=True, projections=True, few_rows=1)[0],
        Whole(len(shares) // 2),
        _lent(spec, shares[::-1], columns=True)[-1],
    ],
    "mixed": lambda spec, shares: [
        _tensor(spec, shares),
        ByRows(tuple(shares), _tensor(spec, shares)),
        _hybrid(spec, shares, True),
        Whole(0),
        ByRows(tuple(reversed(shares)), Whole(0), keys_values=True),
        _hybrid(spec, shares, False),
        Whole(len(shares) - 1),
    ],
}

LENDING = tuple(form for form in FORMS if "lent" in form or form == "edgeformer")
"""Forms by which members lend one another heads; not those of models with two halves."""

ONE_SHOT_FORMS: dict[str, FormOf] = {
    "voltage-reordered": lambda spec, shares: [
        ByRows(tuple(shares), _tensor(spec, shares), reordered=(True,) * len(shares)),
        ByRows(tuple(shares), Whole(0), reordered=(True, *(False for _ in shares[1:])), overlap=False),
    ],
    "voltage-reordered-prefix": lambda spec, shares: [
        ByRows(tuple(shares), Whole(len(shares) - 1), prefix=True, reordered=(True,) * len(shares))
    ],
}
"""Forms by Eq. 8, for models without rotations."""


def plan_of(
    spec: ModelSpec,
    form: str,
    names: Sequence[str],
    shares: Sequence[float] = (),
    layers: int | None = None,
    few_rows: int = 2,
    micro_batches: int = 1,
) -> GroupPlan:
    """A plan for ``layers`` layers, all of the model's by default, with even shares unless given; three rows are many
    unless ``few_rows`` says otherwise."""
    forms = [
        replace(layer, few_rows=few_rows)
        if isinstance(layer, (ByRows, Hybrid)) or (isinstance(layer, Lent) and layer.few_rows)
        else layer
        for layer in {**FORMS, **ONE_SHOT_FORMS}[form](spec, shares or [1.0] * len(names))
    ]
    made = tuple(islice(cycle(forms), layers or layers_of(spec)))
    return GroupPlan(form, tuple(names), PORTAL, made, micro_batches=micro_batches)


def streamed(plan: GroupPlan, spec: ModelSpec, share: int = 1, ring: int = 1) -> GroupPlan:
    """The plan with every ``share``-th half layer of each member streamed, into a ring for ``ring`` of the largest."""
    places = range(len(plan.members))
    halves = [Unit(layer, half) for layer in range(len(plan.layers)) for half in HALVES]
    held = [
        [
            each
            for each in halves
            if any(
                piece.groups if each.half == "attention" else piece.columns
                for piece in pieces_of(plan.layers[each.layer], place, spec)
            )
        ]
        for place in places
    ]
    made = replace(plan, streamed=tuple(tuple(each[::share]) for each in held), ring_bytes=(1,) * len(places))
    largest = [Streaming.of(made, 0, place, spec, "float32").ring_bytes for place in places]
    return replace(made, ring_bytes=tuple(ring * (each + 8192) for each in largest))


def with_transfer(plan: GroupPlan, spec: ModelSpec, tokens: Sequence[int], fetches: bool = False) -> GroupPlan:
    """The plan with memory for so many tokens at each member before it streams anything; keys and values go from who
    has the least to who has the most, of all layers."""
    layers = [plan.layers.count(Whole(member)) for member in range(len(tokens))]
    rooms = [of * token_bytes(ModelShape.of(spec, "float32"), count) for of, count in zip(tokens, layers, strict=True)]
    found: list[Transfer | None] = [None] * len(tokens)
    if len(tokens) > 1:
        found[tokens.index(min(tokens))] = Transfer(tokens.index(max(tokens)), 1e9, 1e-5, (1e9,), fetches)
    made = replace(streamed(plan, spec), streamed=((),) * len(tokens))
    return replace(made, cache_bytes=tuple(rooms), transfers=tuple(found))


def streaming_planner(path: Path) -> Callable[[object, Sequence[str]], GroupPlan]:
    """Plans an interleaved pipeline of whoever is there, all of whose weights are streamed."""
    spec = Checkpoint.open(path, None).spec
    return lambda _, there: streamed(plan_of(spec, "interleaved", there), spec)


def submodel_for(checkpoint: Checkpoint, first: int = 0) -> GroupSubmodel:
    """What sessions of a group that computes from layer ``first`` on are opened on."""
    entry = None if first else RowEntry.load(checkpoint, torch.float32)
    return GroupSubmodel(checkpoint.spec.hidden_size, torch.float32, entry)


def joined_plan(plan: GroupPlan, first: int = 0) -> JoinedPlan:
    """As members are told it."""
    return JoinedPlan.read(JoinedPlan.of(plan, "", "float32", first, 0).written())


@contextmanager
def group_here(
    path: Path,
    plan: GroupPlan,
    first: int = 0,
    submodel: GroupSubmodel | None = None,
    devices: Sequence[torch.device | str] = (),
    kept: dict[str, KeptLayers] | None = None,
    following: GroupPlan | None = None,
    resumes: Resumes = NOTHING_HANDED,
) -> Iterator[GroupSubmodel]:
    """A group whose members are threads of this process; the portal is one of them where the plan names it.

    submodel: of a group that has lived before.
    devices: on which the ranks compute, by turns; the CPU, where none is named.
    kept: what members keep from one life to the next, by name; None: nothing.
    following: what comes behind this life, to which it hands its sessions over.
    resumes: what another has handed over to this.
    """
    checkpoint = Checkpoint.open(path, None)
    joined = joined_plan(plan, first)
    behind = None if following is None else joined_plan(following, first)
    size = max(joined.ranks) + 1

    def part_of(rank: int) -> Part:
        found = KeptLayers(devices[rank % len(devices)] if devices else "cpu")
        if kept is not None:
            found = kept.setdefault(joined.names[joined.ranks.index(rank)], found)
        return Part(joined, checkpoint, rank, kept=found)

    def close(part: Part) -> None:
        if kept is None:
            part.kept.close()

    def work(part: Part, fabric: Fabric) -> None:
        with fabric, suppress(PeerLost):
            part.worker(part.load(), fabric).serve()
        close(part)

    with fabrics(size) as links, ExitStack() as stack:
        for rank in range(1, size):
            member = threading.Thread(target=work, args=(part_of(rank), links[rank]))
            member.start()
            stack.callback(member.join)
        mine = part_of(0) if 0 in joined.ranks else None
        if mine is not None:
            stack.callback(close, mine)
        worker = mine.worker(mine.load(), links[0]) if mine is not None else None
        planned, readers = joined.plan(checkpoint.spec), readers_of(checkpoint.spec)
        shape = replace(ModelShape.of(checkpoint.spec, "float32"), layers=len(planned.layers))
        room = most_tokens(shape, planned), easy_tokens(shape, planned)
        pipeline = Pipeline.of(planned, readers)
        more = (pipeline, readers, *room, can_narrow(planned, checkpoint.spec))
        life = GroupLife(links[0], planned.layers, joined.ranks, worker, *more)
        group = submodel or submodel_for(checkpoint, first)
        life.resumes = resumes
        life.start(lambda why, rank: None)
        stack.callback(life.end, behind)
        group.begin(life)
        yield group


@contextmanager
def members(path: Path, names: Sequence[str], port: int, folder: Path, *more: str) -> Iterator[dict[str, Process]]:
    """A process for each name, that joins whoever listens at the port of the loopback address."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                ForkedProcess(
                    "device_agent.group.member",
                    *("--join", f"127.0.0.1:{port}", "--model", str(path), "--name", name, *more),
                    log=folder / f"{name}.log",
                    environment={"TRILBY_GROUP_KEY": KEY, "XDG_CACHE_HOME": str(folder)},
                )
            )
            for name in names
        }


class Started:
    """Processes of one model at a time, which join one group after the other.

    Attributes:
        port: where they look for a portal.
        folder: with their logs, and what they keep.
        processes: those that were started, by name.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.processes: dict[str, Process] = {}
        self.folder = folder
        self._model: Path | None = None
        self._stack = ExitStack()

    def have(self, model: Path, count: int) -> Sequence[str]:
        """The names of so many that run, with this model."""
        if model != self._model:
            self.end()
            self._model = model
        for name in NAMES[:count]:
            before = self.processes.get(name)
            if before is None or before.process is None or before.process.poll() is not None:
                self.processes |= self._stack.enter_context(members(model, [name], self.port, self.folder))
        return NAMES[:count]

    def end(self) -> None:
        """All of them."""
        self._stack.close()
        self.processes.clear()


@asynccontextmanager
async def hosted(
    path: Path, form: str, wanted: int | Sequence[str], shares: Sequence[float] = (), first: int = 0, **more: Any
) -> AsyncIterator[GroupHost]:
    """A portal that waits for its group; those who are there have the last of the shares."""
    checkpoint = Checkpoint.open(path, None)
    layers = layers_of(checkpoint.spec) - first

    def planner(_: object, there: Sequence[str]) -> GroupPlan:
        return plan_of(checkpoint.spec, form, there, shares[-len(there) :], layers, few_rows=16)

    group = submodel_for(checkpoint, first)
    settings = {"planner": planner, "join_within_s": FORMED_WITHIN_S, "key": KEY, **more}
    host = GroupHost(checkpoint, group, wanted=wanted, first_layer=first, dtype="float32", **settings)
    task = asyncio.create_task(host.run())
    try:
        both: list[asyncio.Future[Any]] = [task, host.listens]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield host
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, GroupEnded):
            await task


async def replanned(host: GroupHost, name: str, *, slow: bool) -> None:
    """A member is found slow, or fast again, and the group is planned anew."""
    epoch = host.state().epoch
    assert host._company is not None
    host._roll.is_slow(name, "a test") if slow else host._roll.is_fast(name)
    host._company.rendezvous.changed.set()
    await until(lambda: host.state().epoch > epoch and host.formed.is_set())


@asynccontextmanager
async def group_of(
    path: Path, form: str, names: Sequence[str], port: int, shares: Sequence[float] = (), first: int = 0, **more: Any
) -> AsyncIterator[GroupHost]:
    """A group of processes with these names, formed."""
    async with hosted(path, form, names, shares, first, port=port, **more) as host:
        await asyncio.wait_for(host.formed.wait(), FORMED_WITHIN_S)
        yield host


@asynccontextmanager
async def member_here(
    path: Path, name: str, port: int, where: Where | None = None, **more: Any
) -> AsyncIterator[asyncio.Task[None]]:
    """A member that is a task of this process, and goes with the block. ``where``: see ``serve``."""
    config = MemberConfig(join=f"127.0.0.1:{port}", model=str(path), group_key=KEY, name=name, **more)
    task = asyncio.create_task(serve(config, where))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
