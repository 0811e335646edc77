"""What is compared: each method is one of the product's planners, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from device_agent.planning.baselines import plan_galaxy, plan_pipeline
from device_agent.planning.edgeshard import plan_edgeshard
from device_agent.planning.lime import plan_lime
from device_agent.planning.offloaded import plan_edgeshard_offloaded, plan_pipeline_offloaded
from device_agent.planning.offloaded_shards import plan_galaxy_offloaded, plan_tpi_llm
from device_agent.planning.plan import GroupPlan
from device_agent.planning.task import Task

METHODS: dict[str, tuple[str, Callable[[Task], GroupPlan]]] = {
    "lime": ("Trilby, lime", plan_lime),
    "offloaded": ("pipeline + offloading", plan_pipeline_offloaded),
    "no-prefetch": ("the same without prefetch", lambda task: plan_pipeline_offloaded(task, prefetch=False)),
    "edgeshard-offloaded": ("EdgeShard + offloading", plan_edgeshard_offloaded),
    "tpi-llm": ("TPI-LLM", plan_tpi_llm),
    "galaxy-offloaded": ("Galaxy + offloading", plan_galaxy_offloaded),
    "edgeshard": ("EdgeShard", plan_edgeshard),
    "galaxy": ("Galaxy", plan_galaxy),
    "pipeline": ("pipeline", plan_pipeline),
}
