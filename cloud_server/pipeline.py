"""The layers as a pipeline of processes: this one is the first stage, the others are started and watched from here.

A step goes from stage to stage and comes back from the last one, so while a stage computes one step, the stage before
it can compute the next (HAT 4.5). A stage that dies takes the keys and values of its layers along: every step under way
ends in ``StageLost``, and so does every later one until ``start`` has made a new pipeline.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import structlog
import torch

from cloud_server.live_pipeline import LivePipeline
from cloud_server.pool import Moves, PagedSpan
from cloud_server.runner import LayerStep, Ran, StageLost
from cloud_server.stage import StageConfig
from cloud_server.stage_link import Link, Place, new_store

log = structlog.get_logger()


class PipelineRunner:
    """A ``Runner`` of two or more stages, all on this machine.

    Args:
        step: the first stage, computed here on a thread; its stack holds ``layers[0]`` and no others. The other
            stages get pages of the same number and size, so that one page table holds for all.
        model: the checkpoint's folder.
        layers: of each stage, as ``stage_layers`` cuts them.
        device: ``cpu``, or ``cuda`` for a GPU to each stage; the first stage's is ``stage_device(device, 0, stages)``.
        attention: as ``choose_backend`` takes it.
        transport: how hidden states go, ``gloo`` or, with a GPU to each stage, ``nccl``.
        threads: of each of the other stages; 0 shares the processors out among all stages.
    """

    def __init__(
        self,
        step: LayerStep,
        model: Path,
        layers: Sequence[range],
        *,
        device: str = "cpu",
        attention: str = "auto",
        transport: str = "gloo",
        threads: int = 0,
        log_level: str = "info",
        log_form: str = "text",
    ) -> None:
        """Raises ``ValueError`` where ``nccl`` is wanted but not every stage has a GPU of its own."""
        assert len(layers) > 1 and len(step.stack.blocks) == len(layers[0])
        if transport == "nccl" and (device != "cuda" or torch.cuda.device_count() < len(layers)):
            raise ValueError(f"NCCL needs --device cuda and a GPU for each of the {len(layers)} stages")
        self._step = step
        self._layers = tuple(layers)
        self._model = model
        self._device = device
        self._attention = attention
        self._transport = transport
        self._threads = threads or max(1, (os.cpu_count() or 1) // len(layers))
        self._log_level, self._log_form = log_level, log_form
        self._generation = 0
        self._pipeline: LivePipeline | None = None

    @property
    def depth(self) -> int:
        """See ``Runner.depth``."""
        return len(self._layers)

    @property
    def whole(self) -> bool:
        """See ``Runner.whole``."""
        return self._pipeline is not None and self._pipeline.whole

    @property
    def pids(self) -> list[int]:
        """The processes of stages 1 and up."""
        return [] if self._pipeline is None else self._pipeline.processes.pids

    async def start(self) -> None:
        """Start the stages; returns once all have loaded. What was left of an earlier start is ended first.

        Raises:
            StageLost: a stage could not load or join; its log says why.
        """
        await self.stop()
        self._generation += 1
        store = new_store(self.depth)
        pipeline = self._pipeline = LivePipeline(self._step, store)
        try:
            pipeline.processes.start(self._configs(store.port))
            await pipeline.loaded(self.depth)
            stack = self._step.stack
            place = Place(0, self.depth, self._generation, stack.device, self._transport)
            try:
                link = await asyncio.to_thread(Link, store, place, stack.spec.hidden_size, stack.dtype)
            except RuntimeError as error:
                raise StageLost(f"the stages could not join: {error}") from error
            pipeline.begin(link)
        except BaseException:
            await self.stop()
            raise
        layers = " ".join(f"{each.start}-{each.stop}" for each in self._layers)
        log.info("stages started", stages=self.depth, layers=layers)

    async def run(self, hidden: Sequence[torch.Tensor], spans: Sequence[PagedSpan], moves: Moves = ()) -> Ran:
        """See ``Runner.run``. The order is that of the calls, whatever happens to those who wait."""
        if self._pipeline is None:
            raise StageLost("the stages have not been started")
        return await asyncio.wrap_future(self._pipeline.submit(hidden, spans, moves))

    async def stop(self) -> None:
        """See ``Runner.stop``."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            await asyncio.to_thread(pipeline.end)

    def _configs(self, port: int) -> list[StageConfig]:
        pool = self._step.pool
        return [
            StageConfig(
                model=str(self._model),
                first_layer=layers.start,
                last_layer=layers.stop,
                dtype=str(self._step.stack.dtype).removeprefix("torch."),
                device=self._device,
                attention=self._attention,
                transport=self._transport,
                pages=pool.pages,
                page_positions=pool.page_positions,
                threads=self._threads,
                rank=rank,
                stages=self.depth,
                generation=self._generation,
                store_port=port,
                parent_pid=os.getpid(),
                log_level=self._log_level,
                log_form=self._log_form,
            )
            for rank, layers in enumerate(self._layers)
            if rank
        ]
