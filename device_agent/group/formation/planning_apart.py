"""Plans made in a process of their own, at the lowest priority:
``python -m device_agent.group.formation.planning_apart``.

To plan takes seconds of Python, and a thread would take them from the steps of the group and from the event loop. The
process is asked on its standard input, in JSON, and answers on its standard output.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import suppress
from typing import Final

import msgspec

from device_agent.group.messages.joined_plan import JoinedPlan
from device_agent.planning.memory import DoesNotFit
from device_agent.planning.modes import fewer_devices, plan_for
from device_agent.planning.plan import GroupPlan
from device_agent.planning.profile import Profile
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work
from service.python_module import python_module

WITHIN_S: Final = 300.0
"""Beside members that compute a process of low priority gets little; one that takes longer is ended."""

LOWEST: Final = 19
"""What is added to its niceness."""


class Made(msgspec.Struct, frozen=True):
    """Plans for the same members: for all of them, None where that does not fit; and for fewer that would do, None
    where nobody has looked, or there is none."""

    plan: JoinedPlan | None
    better: JoinedPlan | None


class Wish(msgspec.Struct, frozen=True):
    """What a process is asked: see ``Task``; ``looks``: whether for fewer members too."""

    mode: str
    shape: ModelShape
    profile: Profile
    names: tuple[str, ...]
    portal: str
    work: Work
    looks: bool


async def made_apart(wish: Wish) -> tuple[GroupPlan | None, GroupPlan | None] | None:
    """See ``Made``; None where there is no plan at all, or the process has not made one. It ends with
    whoever awaits this."""
    process = await asyncio.create_subprocess_exec(
        *python_module("device_agent.group.formation.planning_apart"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        found = await asyncio.wait_for(_asked(process, wish), WITHIN_S)
    except (asyncio.TimeoutError, OSError, msgspec.MsgspecError):
        return None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    plan, better = [None if each is None else each.as_planned(wish.portal) for each in (found.plan, found.better)]
    return None if plan is None and better is None else (plan, better)


async def _asked(process: asyncio.subprocess.Process, wish: Wish) -> Made:
    """Its input stays open until it has answered."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(msgspec.json.encode(wish) + b"\n")
    await process.stdin.drain()
    return msgspec.json.decode(await process.stdout.read(), type=Made)


def answer(wish: Wish) -> Made:
    """What a process says."""
    task = Task(wish.shape, wish.profile, wish.names, wish.portal, wish.work)
    try:
        plan: GroupPlan | None = plan_for(wish.mode, task)
    except DoesNotFit:
        plan = None
    better = fewer_devices(wish.mode, task, plan) if wish.looks else None
    return Made(_said(plan), _said(better))


def _said(plan: GroupPlan | None) -> JoinedPlan | None:
    """None for a plan that members would not be told whole."""
    if plan is None:
        return None
    said = JoinedPlan.of(plan, "", "float32", 0, 0)
    return said if said.as_planned(plan.portal) == plan else None


def main() -> None:
    """Answer one question, unless whoever asks ends before."""
    os.nice(LOWEST)
    wish = msgspec.json.decode(sys.stdin.buffer.readline(), type=Wish)
    threading.Thread(target=_end_with_asker, daemon=True).start()
    sys.stdout.buffer.write(msgspec.json.encode(answer(wish)))


def _end_with_asker() -> None:
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
