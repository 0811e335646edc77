"""From settings to what measures this device."""

from __future__ import annotations

import torch

from device_agent.planning.profile import DeviceProfile
from device_agent.profiling.compute import Told
from device_agent.profiling.config import MeasureSettings
from device_agent.profiling.kept_profiles import kept_or_measured
from device_agent.profiling.layer_runs import LAYER
from device_agent.profiling.together import Measure
from service.sizes import bytes_of
from split_model.checkpoint import Checkpoint
from split_model.hub import resolve
from split_model.slices import Slice


def opened(config: MeasureSettings) -> Checkpoint:
    """The model, of whatever kind it is; of one on the hub only what is measured is fetched. Raises ModelError."""
    measured = Slice(LAYER, LAYER + 1, embedding=True, head=True)
    return Checkpoint.open(resolve(config.model, only=lambda _: [measured], attention=None), None)


def measure_of(config: MeasureSettings, checkpoint: Checkpoint, name: str, told: Told | None = None) -> Measure:
    """What measures this device, or takes what is kept, on the thread that calls it."""

    def measure() -> DeviceProfile:
        if config.threads:
            torch.set_num_threads(config.threads)
        return kept_or_measured(
            checkpoint,
            config.dtype,
            name,
            bytes_of("--memory", config.memory),
            quick=config.quick,
            again=config.again,
            progress=told,
        )

    return measure
