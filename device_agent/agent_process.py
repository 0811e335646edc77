"""Everything one agent process holds, and how long it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from device_agent.agent import Agent
from device_agent.answering.answer import ServedChain
from device_agent.answering.reading import ServedReader
from device_agent.chain.group_pruning import GroupPruner
from device_agent.chain.model_ends import DeviceParts
from device_agent.config import DeviceConfig
from device_agent.warm_up import warm_up, warm_up_reader
from service.stopping import Urgency, stop_signals
from split_model.device import wait_for
from split_model.offload.loader import Loader
from wire.group_messages import GroupReport
from wire.observed_messages import Wire
from wire.request_messages import AgentHello, ServedModel

SWEEP_EVERY_S = 5.0
"""How often conversations that are too old are looked for."""


class Elsewhere(Protocol):
    """Who computes the middle layers on other machines: a cloud, or a group."""

    @property
    def connected(self) -> bool:
        """Whether requests can be answered now."""

    async def run(self) -> None:
        """Work until it is cancelled; an error where it cannot go on."""

    async def news(self) -> None:
        """Wait until something is different that the gateway should know."""

    def wires(self) -> list[Wire]:
        """The connections to them, for people."""

    def report(self) -> GroupReport | None:
        """What the gateway is told of the group; None of a cloud."""

    @property
    def restored(self) -> int:
        """How often sessions had to be brought to a cloud again so far."""


@dataclass(frozen=True)
class Device:
    """One agent with what it serves; ``build`` makes it, and nothing is dialled before it runs.

    Attributes:
        remote: who has the middle layers; None where all are here.
        loaded_bytes: of weights, the drafters' left out, and of the buffers of those that do not stay.
        loader: of the weights that do not stay in memory; None where all do.
    """

    config: DeviceConfig
    agent: Agent
    model: ServedChain | ServedReader
    remote: Elsewhere | None
    loaded_bytes: int
    loader: Loader | None = None

    @property
    def writer(self) -> ServedChain:
        """The model, where it writes."""
        assert isinstance(self.model, ServedChain), "a model that only reads has no chain"
        return self.model

    @property
    def parts(self) -> DeviceParts:
        """The ends of the model that are here, where it writes."""
        return self.writer.chain.parts

    @property
    def about(self) -> dict[str, Any]:
        """What is here, for the log."""
        if isinstance(self.model, ServedReader):
            return {"reads": self.model.tasks}
        parts, drafters = self.parts, self.model.ways.drafters
        return {
            "device": str(parts.head.device),
            "front_layers": len(parts.front.blocks),
            "back_layers": len(parts.back.blocks),
            "draft": drafters.default,
            "drafter_parameters": drafters.parameters,
        }

    async def run(self) -> None:
        """Serve until a signal, see ``service/stopping.py``."""
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        serving = [asyncio.create_task(self._serve()), asyncio.create_task(self._sweep())]
        middle = []
        if self.remote is not None:
            middle.append(asyncio.create_task(self.remote.run()))
            serving.append(asyncio.create_task(self._report(self.remote)))
        if isinstance(self.model, ServedChain) and isinstance(self.model.pruner, GroupPruner):
            serving.append(asyncio.create_task(self.model.pruner.run()))

        async def drain() -> None:
            try:
                await self.agent.drain(self.config.drain_within_s)
            finally:
                stopping.set()

        draining: list[asyncio.Task[None]] = []

        def stop(urgency: Urgency) -> None:
            if urgency is Urgency.DRAIN:
                draining.append(loop.create_task(drain()))
            else:
                stopping.set()

        stopped = asyncio.create_task(stopping.wait())
        with stop_signals(lambda urgency: loop.call_soon_threadsafe(stop, urgency)):
            try:
                # An agent never ends by itself: if one of these does, it has crashed, and the process ends with it.
                ended, _ = await asyncio.wait([*serving, *middle, stopped], return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
            finally:
                # First whatever uses sessions, then those that are parked, and the connections to cloud or group last,
                # which deliver what was said: so nothing of this device is left there.
                await _cancelled([*serving, stopped, *draining])
                if isinstance(self.model, ServedChain):
                    self.model.conversations.close()
                await _cancelled(middle)
                self.stop()

    def stop(self) -> None:
        """End the threads."""
        holder = self.model.reader if isinstance(self.model, ServedReader) else self.model.chain
        holder.compute.stop()
        self.model.readers.stop()
        if isinstance(self.model, ServedChain) and self.model.grammars is not None:
            self.model.grammars.stop()
        if self.loader is not None:
            self.loader.close()

    async def _serve(self) -> None:
        if isinstance(self.model, ServedReader):
            await warm_up_reader(self.model.reader)
        else:
            await warm_up(self.model, self.config)
        await self.agent.run()

    async def _report(self, remote: Elsewhere) -> None:
        """The gateway hears at once what is new of cloud or group."""
        while True:
            await remote.news()
            self.agent.report()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            if isinstance(self.model, ServedChain):
                self.model.conversations.sweep(asyncio.get_running_loop().time())
                lane = self.model.chain.compute.lane()
                if lane.idle:
                    await lane.submit(partial(wait_for, self.parts.head.device))  # Ends this where a GPU is lost.
                if self.model.pruner is not None and lane.idle:
                    await lane.submit(self.model.pruner.tidy)


def device_of(
    config: DeviceConfig,
    name: str,
    served: list[ServedModel],
    model: ServedChain | ServedReader,
    remote: Elsewhere | None,
    loaded_bytes: int,
    loader: Loader | None,
) -> Device:
    """Connect the pieces of a device, whatever kind of model it has; nothing is dialled yet. See ``Device``.

    served: the model under each name that clients may use.
    """
    hello = AgentHello(name, config.device_token, served, config.max_num_seqs, pads=config.pad_frames)
    agent = Agent(
        config.gateways,
        hello,
        model,
        lambda: None if remote is None else remote.connected,
        lambda: None if remote is None else remote.report(),
        config.tls(),
        mode=config.mode,
        wires=list if remote is None else remote.wires,
        restored=lambda: 0 if remote is None else remote.restored,
    )
    return Device(config, agent, model, remote, loaded_bytes, loader)


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
