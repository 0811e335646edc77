"""A device's group from its settings: what computes the layers that the device does not keep for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from device_agent.config import DeviceConfig
from device_agent.group.host import GroupHost
from device_agent.group.submodel import GroupSubmodel
from device_agent.planning.even import plan_evenly
from device_agent.planning.plan import GroupPlan
from device_agent.planning.shape import ModelShape
from service.addresses import host_and_port
from split_model.checkpoint import Checkpoint
from split_model.entry import RowEntry
from split_model.load_apart import load_apart
from split_model.slices import Slice


@dataclass(frozen=True)
class PortalGroup:
    """The group that this device is the portal of; see ``Elsewhere``."""

    host: GroupHost

    @property
    def submodel(self) -> GroupSubmodel:
        """What sessions are opened on."""
        return self.host.submodel

    @property
    def connected(self) -> bool:
        """Whether the group computes now."""
        return self.host.submodel.connected

    async def run(self) -> None:
        """Keep the group going until it is cancelled. Raises ``GroupEnded`` where nobody is left who could."""
        await self.host.run()

    async def news(self) -> None:
        """Wait until something is different."""
        await self.host.news()


def build_group(config: DeviceConfig, name: str, checkpoint: Checkpoint, held: Slice) -> PortalGroup:
    """The group that computes the layers of ``held``, this device, called ``name``, among them. On its event loop.

    Raises:
        ValueError: the model is of a kind that no group runs, or the key is too short.
        BadCheckpoint: the files are broken.
    """
    spec, dtype = checkpoint.spec, getattr(torch, config.dtype)
    if config.device not in ("auto", "cpu"):
        raise ValueError(f"groups compute on CPUs: leave --device {config.device} out")
    shape = replace(ModelShape.of(spec, config.dtype), layers=held.num_layers, cross_layers=0)

    def planner(_: object, members: Sequence[str]) -> GroupPlan:
        return plan_evenly(config.mode, shape, members, name)

    entry = None if held.first_layer else load_apart(lambda: RowEntry.load(checkpoint, dtype))
    positions = min(config.max_model_len or spec.max_positions, spec.max_positions)
    address, port = host_and_port("--group-listen", config.group_listen)
    return PortalGroup(
        GroupHost(
            checkpoint=checkpoint,
            submodel=GroupSubmodel(spec.hidden_size, dtype, entry, spec.max_positions),
            planner=planner,
            wanted=config.devices,
            first_layer=held.first_layer,
            dtype=config.dtype,
            key=config.group_key,
            address=address,
            port=port,
            positions=positions,
            budget=config.memory_mb * 10**6,
            name=name,
        )
    )
