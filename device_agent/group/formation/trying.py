"""When a group forms it tries on real rows how its plan is best run, where predictions are too near to say.

Every member has its weights by then, and no manner needs others. What was found is kept on the disk, once for a plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Final

import structlog
import torch
from msgspec.structs import replace

from device_agent.group.asking.asks import GroupAsk
from device_agent.group.asking.life import GroupLife
from device_agent.group.messages.heads import MannerHead, ReadHead
from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.trials import RUNS, Manner, Trial
from device_agent.profiling.tried import Tried, keep_tried, name_of, tried_before
from device_agent.sharing.compute import tell

ENOUGH_S: Final = 8.0
"""Behind so long no further turn begins, where each manner has been run: members may be slower than was predicted."""

log = structlog.get_logger()


def trial_name(plan: JoinedPlan, trial: Trial) -> str:
    """By which it is kept; positions are no part of how fast a plan is."""
    return name_of(replace(plan, positions=0).written(), trial)


async def settle(life: GroupLife, plan: JoinedPlan, trial: Trial, hidden_size: int) -> Tried:
    """Have a life that nothing was asked of run its plan in the manner that was found to be best, now or before.

    Ends never where a member is lost meanwhile: whoever awaits this looks for that as well.
    """
    name = trial_name(plan, trial)
    found = await asyncio.to_thread(tried_before, name)
    if found is None:
        hidden = torch.randn((trial.rows, hidden_size)).to(getattr(torch, plan.dtype))
        seconds = await measured(life, trial, hidden)
        manner = trial.chosen(seconds)
        medians = tuple(median(seconds[each]) for each in trial.manners)
        found = Tried(name, trial.rows, trial.words, medians, trial.manners.index(manner), manner)
        try:
            await asyncio.to_thread(keep_tried, found)
        except OSError as error:
            log.warning("what was tried cannot be kept", why=str(error))
    life.put(GroupAsk(MannerHead(found.manner)))
    log.info("the group's manner is chosen", mode=plan.mode, why=str(found))
    return found


async def measured(life: GroupLife, trial: Trial, hidden: torch.Tensor) -> dict[Manner, Sequence[float]]:
    """Seconds of each manner's runs, by turns; hidden ``[rows, hidden]`` is read each time, and nothing is kept."""
    seconds: dict[Manner, list[float]] = {manner: [] for manner in trial.manners}
    began = perf_counter()
    for turn in range(1 + RUNS):
        if turn > 1 and perf_counter() - began > ENOUGH_S:
            break
        for manner, runs in seconds.items():
            life.put(GroupAsk(MannerHead(manner, trial.layers)))
            took = await _read_s(life, hidden)
            if turn:
                runs.append(took)
    return {**seconds}


async def _read_s(life: GroupLife, hidden: torch.Tensor) -> float:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def read() -> None:
        if not done.done():
            done.set_result(None)

    began = perf_counter()
    life.put(GroupAsk(ReadHead((len(hidden),)), hidden, lambda _: tell(loop, read)))
    await done
    return perf_counter() - began
