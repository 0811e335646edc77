"""A device's group from its settings: what computes the layers that the device does not keep for itself."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog
import torch

from device_agent.config import DeviceConfig
from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.group.formation.planned import ModePlanner
from device_agent.group.host import GroupEnded, GroupHost
from device_agent.mdns import announced, check_mdns
from device_agent.planning.copies import attention_copies
from device_agent.planning.even import plan_evenly
from device_agent.planning.head_allocation import HeadTimes
from device_agent.planning.head_times import planned_times
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work
from peers.secret import BY_CERTIFICATE
from service.addresses import host_and_port, host_port
from service.sizes import bytes_of
from split_model.checkpoint import Checkpoint
from split_model.device import AUTO, choose_device
from split_model.entry import RowEntry
from split_model.load_apart import load_apart
from split_model.slices import Slice, slice_bytes
from wire.group_messages import MAX_MEMBERS, GroupReport, ReportedMember
from wire.limits import MAX_TEXT
from wire.observed_messages import Wire

PROMPT, ANSWER = 256, 128
"""Rows of the prompt, and tokens behind it, that a group is planned to be good at."""

log = structlog.get_logger()


@dataclass
class PortalGroup:
    """The group that this device is the portal of; see ``Elsewhere``. ``announces``: on the local network, by mDNS.
    ``task``: what was measured of a plan's members; None where nothing was. ``says``: what else is to be told of it."""

    host: GroupHost
    announces: bool = False
    task: Callable[[GroupPlan], Task | None] = lambda plan: None
    says: Callable[[], str] = str
    _was_formed: bool = field(default=False, init=False)

    @property
    def submodel(self) -> GroupSubmodel:
        """What sessions are opened on."""
        return self.host.submodel

    @property
    def connected(self) -> bool:
        """Whether requests may come: once the group has formed they wait where it is being formed anew."""
        return self._was_formed and not self.host.submodel.ended

    async def run(self) -> None:
        """Keep the group going until it is cancelled. Raises ``GroupEnded`` where nobody is left who could."""
        announcing = asyncio.create_task(self._announce()) if self.announces else None
        try:
            await self.host.run()
        except OSError as error:
            if self.host.listens.done():
                raise
            where = host_port(self.host.address, self.host.port)
            raise GroupEnded(f"cannot listen at {where}: {error.strerror}; choose another --group-listen") from error
        finally:
            if announcing is not None:
                announcing.cancel()
                await asyncio.gather(announcing, return_exceptions=True)

    def head_times(self) -> list[HeadTimes] | None:
        """Of each layer of the model what its heads take, in the life that there is: see ``levels_in_group``; None
        where there is none."""
        plan, spec, first = self.host.plan, self.host.checkpoint.spec, self.host.first_layer
        if plan is None:
            return None
        task, groups = self.task(plan), spec.num_kv_heads
        here = None if task is None else replace(task, members=(task.portal,))
        front = [planned_times(here, Whole(0), groups, 1)] * first
        made = {layer: planned_times(task, layer, groups, len(plan.members)) for layer in set(plan.layers)}
        return [*front, *(made[layer] for layer in plan.layers)]

    def attention_copies(self) -> float:
        """Of their attention's weights, that all members have memory for beside the plan; infinite where nobody knows
        theirs."""
        plan = self.host.plan
        task = None if plan is None else self.task(plan)
        return math.inf if plan is None or task is None else attention_copies(task, plan)

    async def _announce(self) -> None:
        port = await asyncio.shield(self.host.listens)
        try:
            async with announced(self.host.group, self.host.address, port):
                await asyncio.Event().wait()
        except (OSError, ValueError) as error:  # A hint less: whoever knows the address can join.
            log.warning("the local network is not told of the group", why=str(error))

    def wires(self) -> list[Wire]:
        """The links of this device with all other members as one, while the group lives; of what goes over them the
        tensors count."""
        life = self.submodel.life
        return [] if life is None else [Wire("members", "ready", 0, life.bytes.sent, life.bytes.received)]

    @property
    def restored(self) -> int:
        """It has no cloud."""
        return 0

    async def news(self) -> None:
        """Wait until something is different."""
        await self.host.news()
        self._was_formed |= self.host.formed.is_set()

    def report(self) -> GroupReport:
        """What the gateway is told of it."""
        state, listens = self.host.state(), self.host.listens
        address = host_port(self.host.address, listens.result()) if listens.done() and not listens.cancelled() else ""
        members = [
            ReportedMember(
                each.name[:MAX_TEXT],
                each.state,
                each.layers[:MAX_TEXT],
                each.heads[:MAX_TEXT],
                each.rows_share,
                each.memory_mb,
                each.why[:MAX_TEXT],
                each.streamed[:MAX_TEXT],
                each.streamed_mb,
                each.hidden,
                each.step_ms,
            )
            for each in state.members[:MAX_MEMBERS]
        ]
        why = "; ".join(filter(None, [self.says(), state.why]))
        return GroupReport(state.name, state.mode, state.epoch, state.formed, address, members, why[:MAX_TEXT])


def usual_work(positions: int, *, reads: bool, prunes: bool = False) -> Work:
    """What a group is planned for: a prompt and an answer, or whole texts, where the model ``reads``, as far as there
    are positions; ``prunes``: heads may be left out."""
    if reads:
        rows = min(PROMPT, positions)
        return Work(rows, wanted=rows)
    new = min(ANSWER, positions // 2)
    return Work(max(1, min(PROMPT, positions - new)), new, room=positions, prunes=prunes)


def build_group(config: DeviceConfig, name: str, checkpoint: Checkpoint, held: Slice, beside: int = 0) -> PortalGroup:
    """The group that computes the layers of ``held``, this device, called ``name``, among them. On its event loop.

    beside: bytes of ``--memory`` that are for other things than its part: what drafts, and the layers in front. These
        and both ends stay on the CPU, whatever computes the part.

    Raises:
        NoMdns: the group is to be announced, and what that needs is not installed.
        ValueError: there is no such ``--device``, or a group of that mode does not compute there, or cannot be.
        BadCheckpoint: the files are broken.
    """
    spec, dtype = checkpoint.spec, getattr(torch, config.dtype)
    if config.mode == "lime" and config.device not in (AUTO, "cpu"):
        raise ValueError(f"--mode lime computes on CPUs: leave --device {config.device} out")
    if config.announce:
        check_mdns()
    if held.last_layer < spec.num_layers:
        raise ValueError("a group computes all layers behind those of --split: leave --tail out")
    positions = min(config.max_model_len or spec.max_positions, spec.max_positions)
    work = usual_work(positions, reads=spec.attention == "bidirectional", prunes=config.t_max > 0)
    planner = ModePlanner(
        config.mode, spec, config.dtype, name, work, first_layer=held.first_layer, fewer=config.fewest_devices
    )
    measured, budget = config.shares == "measured", bytes_of("--memory", config.memory)
    on = "cpu" if config.device == AUTO and (budget or config.mode == "lime") else config.device
    device = choose_device(on, slice_bytes(spec, Slice(0, 1), dtype))
    shape = ModelShape.of(spec, config.dtype)
    shape = replace(shape, layers=shape.layers - held.first_layer)

    def even(_: object, members: Sequence[str]) -> GroupPlan:
        return plan_evenly(config.mode, shape, members, name)

    entry = None if held.first_layer else load_apart(lambda: RowEntry.load(checkpoint, dtype))
    address, port = host_and_port("--group-listen", config.group_listen)
    return PortalGroup(
        GroupHost(
            checkpoint=checkpoint,
            submodel=GroupSubmodel(spec.hidden_size, dtype, entry, spec.max_positions),
            planner=planner if measured else even,
            wanted=config.devices,
            first_layer=held.first_layer,
            dtype=config.dtype,
            key=config.group_key or BY_CERTIFICATE,
            tls=config.equals_tls,
            address=address,
            port=port,
            positions=positions,
            budget=max(1, budget - (beside if device.type == "cpu" else 0)) if budget else 0,
            device=device,
            name=name,
            group=config.group,
            measured=measured,
            ahead=planner.ahead if measured else None,
            expects=planner.expects if measured else None,
            reads=planner.reads if measured else tuple,
            remark=lambda: planner.remark,
            trial=planner.trial if measured else lambda: None,
        ),
        config.announce,
        planner.task if measured else lambda plan: None,
    )
