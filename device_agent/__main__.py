"""``python -m device_agent``: load the device's parts of the model, connect to cloud and gateway, serve."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import structlog
import torch

from device_agent.agent import Agent
from device_agent.answering import ServedChain
from device_agent.chain import WHOLE_PROMPT, Chain
from device_agent.config import DeviceConfig
from device_agent.conversations import Conversations
from device_agent.drafters import KINDS, load_drafters
from device_agent.drafting_way import DraftingWays, DraftSettings, Prepare, StreamRows
from device_agent.local import Compute, LocalSubmodel
from device_agent.parts import DeviceParts
from device_agent.remote import RemoteSubmodel
from device_agent.tokenizer import Tokenizer
from drafting.errors import BadDrafter
from drafting.verification import Rule
from service.draft_settings import NO_DRAFT, wanted
from service.logs import configure_logs
from service.settings import settings_command
from split_model.checkpoint import Checkpoint
from split_model.errors import ModelError
from split_model.hub import identity, resolve
from split_model.load_apart import load_apart
from split_model.names import model_name
from split_model.slices import Slice, input_slice, middle_slice, output_slice
from split_model.slices import whole as whole_model
from split_model.spec import ModelSpec
from split_model.stack import Stack
from split_model.submodel import Submodel
from wire.messages import AgentHello, DeviceHello, ServedModel

EXAMPLES = """
trilby device --model models/demo --split 2 --cloud ws://cloud.local:8001 --gateway ws://gateway.local:8000
trilby device --model models/demo --cloud ws://one.local:8001 --cloud ws://two.local:8001
trilby device --model models/demo --mode local --gateway ws://127.0.0.1:8000
trilby device --model models/demo --mode ushape --download all
trilby device --model Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --draft lookup --cloud ws://cloud.local:8001
"""

READERS = 2
"""Prompts tokenised at once."""

SWEEP_EVERY_S = 5.0
"""How often conversations that are too old are looked for."""

DRAIN_S = 20.0
"""Seconds that running requests get after SIGTERM."""


class Device:
    """Everything one agent process holds."""

    def __init__(self, config: DeviceConfig) -> None:
        """Load the parts and connect the pieces; nothing is dialled yet.

        Raises:
            ModelError: the checkpoint is missing, broken or not supported.
            BadDrafter: a drafter that was named is missing or does not fit the model.
            ValueError: ``--split`` and ``--tail`` do not fit the model, ``--drafters`` is no folder, or the mode drafts
                with a small model and was given another drafter.
        """
        if config.mode == "u-small" and config.draft[0] in KINDS:
            raise ValueError(f"--mode u-small drafts with a small model, and {config.draft[0]} is none")
        local, drafts = config.mode == "local", wanted(config)
        whole = local and set(drafts) == {NO_DRAFT}

        def held(spec: ModelSpec) -> list[Slice]:
            if local:
                return [whole_model(spec)]
            return [input_slice(spec, config.split), output_slice(spec, config.tail)]

        path = resolve(config.model, only=held)
        checkpoint = Checkpoint.open(path)
        spec = checkpoint.spec
        split, tail = (spec.num_layers, 0) if whole else (config.split, config.tail)
        name = config.model_name or model_name(config.model)
        dtype = getattr(torch, config.dtype)
        self.parts = load_apart(lambda: DeviceParts.load(checkpoint, split, tail, dtype))
        self.loaded_bytes = self.parts.loaded_bytes
        folder = Path(config.drafters) if config.drafters else path / "drafters"
        if config.drafters and not folder.is_dir():
            raise ValueError(f"--drafters {config.drafters}: there is no such folder")
        self.drafters = load_apart(lambda: load_drafters(drafts, folder, checkpoint, split, dtype, self.parts))
        compute = Compute()
        self.remote: RemoteSubmodel | None = None
        rest: Submodel | None = None
        middle = middle_slice(spec, split, tail)
        if local and not whole:
            # A draft is verified here: behind the layers it was drafted with come the others, as they do in the cloud.
            stack = load_apart(lambda: Stack.load(checkpoint, middle, dtype))
            self.loaded_bytes += stack.loaded_bytes
            rest = LocalSubmodel(stack, compute)
        elif not local:
            hello = DeviceHello(
                name=config.name,
                credential=config.cloud_token,
                model=name,
                digest=identity(checkpoint),
                first_layer=middle.first_layer,
                last_layer=middle.last_layer,
                hidden_size=spec.hidden_size,
                dtype=config.dtype,
            )
            rest = self.remote = RemoteSubmodel(
                config.cloud,
                hello,
                config.reply_within_s,
                config.recover_within_s,
                self._cloud_changed,
                may_pack=config.pack_rows == "auto",
            )
        limit = min(config.context or spec.max_positions, spec.max_positions)
        self.conversations = Conversations(config.conversations, config.conversation_mb * 2**20, config.conversation_s)
        model = ServedChain(
            name=name,
            chain=Chain(
                self.parts,
                rest,
                compute,
                WHOLE_PROMPT if config.whole_prompts else config.chunk,
                download_all=config.download == "all",
            ),
            tokenizer=Tokenizer.load(path, spec.eos_token_ids),
            max_positions=limit,
            max_answer=config.max_answer,
            slots=asyncio.Semaphore(config.max_answers),
            conversations=self.conversations,
            ways=DraftingWays(self.drafters, _draft_settings(config)),
            readers=ThreadPoolExecutor(READERS, thread_name_prefix="prompt"),
        )
        created = int(Path(path, "config.json").stat().st_mtime)
        models = [ServedModel(name, limit, created, self.drafters.names)]
        served = AgentHello(config.name, config.device_token, models, config.capacity)
        self.agent = Agent(config.gateway, served, model, self._cloud_connected)
        self._compute = model.chain.compute
        self._readers = model.readers

    async def run(self) -> None:
        """Serve until SIGTERM (drains) or SIGINT (stops at once)."""
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        serving = [asyncio.create_task(self.agent.run()), asyncio.create_task(self._sweep())]
        middle = [asyncio.create_task(self.remote.run())] if self.remote is not None else []

        async def drain() -> None:
            try:
                await self.agent.drain(DRAIN_S)
            finally:
                stopping.set()

        draining: list[asyncio.Task[None]] = []
        loop.add_signal_handler(signal.SIGTERM, lambda: draining.append(loop.create_task(drain())))
        loop.add_signal_handler(signal.SIGINT, stopping.set)
        stopped = asyncio.create_task(stopping.wait())
        try:
            # An agent never ends by itself: if one of these does, it has crashed, and the process ends with it.
            ended, _ = await asyncio.wait([*serving, *middle, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
        finally:
            # First whatever uses sessions, then those that are parked, and the cloud's connections last, which deliver
            # what was said: so nothing of this device is left in a cloud server.
            await _cancelled([*serving, stopped, *draining])
            self.conversations.close()
            await _cancelled(middle)
            self._compute.stop()
            self._readers.shutdown(wait=False, cancel_futures=True)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            self.conversations.sweep(asyncio.get_running_loop().time())

    def _cloud_connected(self) -> bool | None:
        return None if self.remote is None else self.remote.connected

    def _cloud_changed(self) -> None:
        self.agent.report()


def _draft_settings(config: DeviceConfig) -> DraftSettings:
    return DraftSettings(
        rule=cast(Rule, config.verify),
        fixed=config.draft_length == "fixed",
        threshold=config.draft_threshold,
        cap=config.draft_cap,
        prepare=cast(Prepare, config.prepare),
        stream=cast(StreamRows, config.stream_rows),
    )


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def run(config: DeviceConfig) -> None:
    """Load and serve until a signal."""
    configure_logs("device", config.log_level, config.log_form)
    if config.threads:
        torch.set_num_threads(config.threads)

    async def main() -> None:
        try:
            device = Device(config)
        except (ModelError, BadDrafter, ValueError) as error:
            raise SystemExit(f"Cannot load {config.model}: {error}") from error
        structlog.get_logger().info(
            "device ready",
            mode=config.mode,
            front_layers=len(device.parts.front.blocks),
            back_layers=len(device.parts.back.blocks),
            loaded_mb=round(device.loaded_bytes / 1e6, 1),
            draft=device.drafters.default,
            drafter_parameters=device.drafters.parameters,
        )
        if config.mode == "cloud":
            structlog.get_logger().info("the whole model runs in the cloud, and the cloud sees the text")
        elif config.mode != "local" and config.split == 0:
            structlog.get_logger().warning("with --split 0 the cloud could read the tokens off the rows it gets")
        await device.run()

    with suppress(KeyboardInterrupt):
        asyncio.run(main())


main = settings_command(DeviceConfig, run, name="trilby device", examples=EXAMPLES)

if __name__ == "__main__":
    main(prog_name=main.name)
