"""``python -m device_agent``: load the device's parts of the model, connect to cloud and gateway, serve."""

from __future__ import annotations

import asyncio
from contextlib import closing, suppress
from dataclasses import fields
from functools import partial

import structlog
import torch

from device_agent.build import LoadDrafters, build
from device_agent.config import DeviceConfig
from device_agent.group.host import GroupEnded
from device_agent.group.member import MemberConfig
from device_agent.group.member import run as compute_for_a_group
from device_agent.group_address import AUTO, group_address
from device_agent.speculative.drafters import load_drafters
from drafting.errors import BadDrafter
from service.alive_file import alive_in
from service.logs import configure_logs
from service.modes import MODES
from service.settings import settings_command
from service.stopping import end_at_once
from split_model.device import DeviceLost
from split_model.errors import ModelError

EXAMPLES = """
trilby device --model models/demo --split 2 --cloud ws://cloud.local:8001 --gateway ws://gateway.local:8000
trilby device --model models/demo --cloud ws://one.local:8001 --cloud ws://two.local:8001
trilby device --model models/demo --mode local --gateway ws://127.0.0.1:8000
trilby device --model models/demo --mode ushape --download all
TRILBY_GROUP_KEY=… trilby device --model DIR --mode galaxy --devices 3 --group-listen 10.0.0.1:8003
TRILBY_GROUP_KEY=… trilby device --model DIR --join 10.0.0.1:8003
trilby device --model Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B --draft lookup --cloud ws://cloud.local:8001
"""


def run(config: DeviceConfig, load: LoadDrafters = load_drafters) -> None:
    """Load, the drafters with ``load``, and serve until a signal; or compute for another device's group."""
    if config.join:
        run_member(config)
    else:
        run_device(config, load)


def run_member(config: DeviceConfig) -> None:
    """Be a member of a group, which is found, where it was not said where it is, each time that it is dialled."""
    end_at_once()
    configure_logs("device", config.log_level, config.log_form)
    of_group = {each.name: getattr(config, each.name) for each in fields(MemberConfig) if hasattr(config, each.name)}
    of_group["dtype"] = ""  # Whatever the portal computes in: who joins a group was not asked for a number format.
    where = partial(group_address, config) if config.join == AUTO else None
    compute_for_a_group(MemberConfig(**of_group), where)


def run_device(config: DeviceConfig, load: LoadDrafters) -> None:
    """Load and serve until a signal."""
    end_at_once()
    configure_logs("device", config.log_level, config.log_form)
    if config.threads:
        torch.set_num_threads(config.threads)

    traces = config.traces("device")

    async def main() -> None:
        try:
            device = build(config, load)
            device.agent.traces = traces
        except (ModelError, BadDrafter, ValueError) as error:
            raise SystemExit(f"Cannot load {config.model}: {error}") from error
        except torch.OutOfMemoryError as error:
            raise SystemExit(f"Cannot load {config.model}: the GPU has no room for it; say --device cpu") from error
        structlog.get_logger().info(
            "device ready",
            mode=config.mode,
            loaded_mb=round(device.loaded_bytes / 1e6, 1),
            **device.about,
        )
        if config.mode == "cloud":
            structlog.get_logger().info("the whole model runs in the cloud, and the cloud sees the text")
        elif MODES[config.mode].has_cloud and config.split == 0:
            structlog.get_logger().warning("with --split 0 the cloud could read the tokens off the rows it gets")
        try:
            async with alive_in(config.alive_path):
                await device.run()
        except GroupEnded as ended:
            raise SystemExit(f"The group has ended: {ended}") from None
        except DeviceLost as lost:
            raise SystemExit(f"Nothing can be computed here any more: {lost}") from None

    with suppress(KeyboardInterrupt), closing(traces):
        asyncio.run(main())


main = settings_command(DeviceConfig, run, name="trilby device", examples=EXAMPLES)

if __name__ == "__main__":
    main(prog_name=main.name)
