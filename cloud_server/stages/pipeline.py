"""The layers as a pipeline of processes: this one is the first stage; the others are started and watched from here, or
are on other machines and join by themselves.

A step goes from stage to stage and comes back from the last one, so while a stage computes one step, the stage before
it can compute the next (HAT 4.5). A stage that dies takes the keys and values of its layers along: every step under way
ends in ``StageLost``, and so does every later one until ``start`` has made a new pipeline.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import structlog
import torch

from cloud_server.cache.pool import Moves
from cloud_server.cache.span import PagedSpan
from cloud_server.stages.layer_step import LayerStep, Ran
from cloud_server.stages.link import Link, Place
from cloud_server.stages.live import LivePipeline
from cloud_server.stages.plan import StagePlan
from cloud_server.stages.runner import StageLost, warm_up
from cloud_server.stages.stage import StageConfig
from peers.rendezvous import Rendezvous, listening
from peers.secret import new_secret
from service.addresses import host_port
from tls.contexts import Tls

LOOPBACK = "127.0.0.1"

log = structlog.get_logger()


@dataclass(frozen=True)
class RemoteStages:
    """The stages on other machines: the last of the pipeline.

    Attributes:
        count: how many there are.
        host, port: where they join: an address of this machine that they, and each other's machines, can reach.
        secret: what all stages prove that they know.
        digest: what their checkpoint must be, see ``StagePlan``.
        tls: of all links between stages, with a certificate that each other one must have too; None: they are plain.
    """

    count: int = 0
    host: str = LOOPBACK
    port: int = 0
    secret: str = field(default_factory=new_secret, repr=False)
    digest: str = ""
    tls: Tls | None = None


class PipelineRunner:
    """A ``Runner`` of two or more stages.

    Args:
        step: the first stage, computed here on a thread; its stack holds ``layers[0]`` and no others. The other
            stages get pages of the same number and size, so that one page table holds for all.
        layers: of each stage, as ``stage_layers`` cuts them.
        like: what every stage that is started here is like; its ``threads`` 0 shares this machine's processors out. The
            first stage's device is ``stage_device(like.device, 0, stages)``.
        elsewhere: which of the stages are on other machines; none: all are started here.
        transport: how hidden states go, ``links`` or, with a GPU to each stage, ``nccl``.
        warm_rows: see ``warm_up``, at the first start; later ones have sessions that wait for them.
    """

    def __init__(
        self,
        step: LayerStep,
        layers: Sequence[range],
        like: StageConfig,
        *,
        elsewhere: RemoteStages | None = None,
        transport: str = "links",
        warm_rows: int = 0,
    ) -> None:
        """Raises ``ValueError`` where ``nccl`` is wanted but not every stage has a GPU of its own here."""
        assert len(layers) > 1 and len(step.stack.blocks) == len(layers[0])
        self._elsewhere = elsewhere or RemoteStages()
        here = len(layers) - self._elsewhere.count
        own_gpus = like.device == "cuda" and torch.cuda.device_count() >= here
        if transport == "nccl" and (self._elsewhere.count or not own_gpus):
            raise ValueError(f"NCCL needs --device cuda and a GPU here for each of the {len(layers)} stages")
        self._step = step
        self._layers = tuple(layers)
        threads = like.threads or max(1, (os.cpu_count() or 1) // here)
        self._here = [
            replace(like, stage_token=self._elsewhere.secret, threads=threads, seat=seat, redial=False)
            for seat in range(1, here)
        ]
        self._transport = transport
        self._warm_rows = warm_rows
        self._generation = 0
        self._pipeline: LivePipeline | None = None
        self._rendezvous: Rendezvous | None = None
        self._listening = AsyncExitStack()

    @property
    def depth(self) -> int:
        return len(self._layers)

    @property
    def whole(self) -> bool:
        return self._pipeline is not None and self._pipeline.whole

    @property
    def pids(self) -> list[int]:
        """The processes of the stages that were started here."""
        return [] if self._pipeline is None else self._pipeline.processes.pids

    async def start(self) -> None:
        """Start the stages; returns once all have loaded. What was left of an earlier start is ended first.

        Raises:
            StageLost: a stage could not load or join; its log says why.
        """
        await self._end()
        self._generation += 1
        if self._rendezvous is None:
            self._rendezvous = await self._listen()
        plans = {rank: self._plan(layers).encoded() for rank, layers in enumerate(self._layers) if rank}
        group = self._rendezvous.open(self._generation, plans)
        pipeline = self._pipeline = LivePipeline(self._step, group)
        try:
            join = host_port(self._rendezvous.address, self._rendezvous.port)
            pipeline.processes.start([replace(each, join=join) for each in self._here])
            await pipeline.loaded()
            stack = self._step.stack
            place = Place(0, self.depth, self._rendezvous.address, stack.device, self._transport)
            try:
                link = await asyncio.to_thread(Link, group.board, place, stack.spec.hidden_size, stack.dtype)
            except RuntimeError as error:
                raise StageLost(f"the stages could not join: {error}") from error
            pipeline.begin(link)
            if self._generation == 1:
                await warm_up(self.run, self._step, self._warm_rows)
        except BaseException:
            await self._end()
            raise
        layers = " ".join(f"{each.start}-{each.stop}" for each in self._layers)
        log.info("stages started", stages=self.depth, layers=layers)

    async def run(self, hidden: Sequence[torch.Tensor], spans: Sequence[PagedSpan], moves: Moves = ()) -> Ran:
        """Run one step. The order is that of the calls, whatever happens to those who wait."""
        if self._pipeline is None:
            raise StageLost("the stages have not been started")
        return await asyncio.wrap_future(self._pipeline.submit(hidden, spans, moves))

    async def stop(self) -> None:
        await self._end()
        self._rendezvous = None
        await self._listening.aclose()

    async def _end(self) -> None:
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            await asyncio.to_thread(pipeline.end)

    async def _listen(self) -> Rendezvous:
        where = self._elsewhere
        rendezvous = await self._listening.enter_async_context(
            listening(where.host, where.port, where.secret, tls=where.tls)
        )
        if where.count:
            at = host_port(rendezvous.address, rendezvous.port)
            log.info("waiting for stages on other machines", stages=where.count, at=at)
        return rendezvous

    def _plan(self, layers: range) -> StagePlan:
        pool, dtype = self._step.pool, str(self._step.stack.dtype).removeprefix("torch.")
        return StagePlan(
            layers.start, layers.stop, dtype, pool.pages, pool.page_positions, self._transport, self._elsewhere.digest
        )
