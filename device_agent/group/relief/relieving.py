"""LIME's memory-aware planner at work: a member streams more as its sessions grow, and less when they close; where the
plan says so its oldest keys and values lie at another meanwhile, or another's here.

Before a step it is looked up what is streamed with so many tokens. More is let go of at once: the disk has its file,
made beforehand. Less is kept again as the step uses it: what has been read into the ring anyway is copied out of it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import sleep
from typing import Final

import structlog

from device_agent.group.holding.held import SessionCaches
from device_agent.group.holding.kept_layers import KeptLayers
from device_agent.group.holding.streaming import Streaming
from device_agent.group.relief.lodging import Lodging
from device_agent.group.relief.moving import Moving
from device_agent.planning.plan import GroupPlan, Whole
from device_agent.planning.shape import ModelShape
from device_agent.planning.thresholds import Thresholds, thresholds_of
from device_agent.planning.transfers import lodged
from split_model.errors import ModelError
from split_model.kv_cache import CacheFull
from split_model.offload.errors import LoaderClosed
from split_model.offload.folders import POLL_S
from split_model.offload.loader import Loader
from split_model.offload.units import Unit
from split_model.spec import ModelSpec

BACKGROUND: Final = 10
"""How much lower than computing the priority is by which files are made beforehand."""

log = structlog.get_logger()


class Relieving:
    """Of one member, in one epoch of its group; on the thread that computes, while nothing is computed.

    Args:
        plan: its layers are the model's from ``first`` on.
        kept: what the member holds, loaded for this plan.
        lodging: of another's keys and values here.
        check: raises what ends a step that repacks weights, where nobody waits for it any more.

    Attributes:
        moving: what has this member's own elsewhere.
        streaming: what is streamed now.
        level: how many of the plan's steps of relief are taken.
    """

    def __init__(
        self,
        plan: GroupPlan,
        first: int,
        place: int,
        spec: ModelSpec,
        dtype: str,
        kept: KeptLayers,
        moving: Moving | None = None,
        lodging: Lodging | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        self._check = check
        self._of = first, place, spec, dtype
        self._plan, self._kept = plan, kept
        shape = replace(ModelShape.of(spec, dtype), layers=len(plan.layers))
        self._thresholds = thresholds_of(shape, plan, place)
        self._layers = plan.layers.count(Whole(place))
        self.moving, self._lodging = moving, lodging
        self.streaming = Streaming.of(plan, *self._of)
        self.level = 0
        self._wanted = 0
        self._returning: frozenset[Unit] = frozenset()

    def begin(self) -> None:
        """Have the files made of what may be streamed later, on a thread of its own."""
        loader, units = self._kept.loader, later(self._plan, *self._of)
        if loader is not None and units:
            threading.Thread(target=_make_all, args=(loader, units), name="files-beforehand", daemon=True).start()

    def before(self, tokens: int, sessions: Mapping[int, SessionCaches], leaving: int | None = None) -> bool:
        """A step follows with which there are so many tokens; whether other things are streamed from now on.

        leaving: a session of which nothing may lie elsewhere.

        Raises ``CacheFull`` where there is no room for them, ``OffloadError`` where a file cannot be made, and
        ``PeerLost``.
        """
        most, needed = self._thresholds.most, tokens
        if tokens > most:
            raise CacheFull(f"{tokens} tokens do not fit in {most}, whatever is streamed")
        if self._lodging is not None:
            needed += lodged(self._lodging.freeze((most - tokens) * (self._layers + 1)), self._layers)
        if self.moving is not None:
            needed = self.moving.before(tokens, sessions, leaving)
        changed = self._follow(needed)
        if self._lodging is not None:
            self._lodging.admit((self._thresholds.ceiling(needed) - tokens) * (self._layers + 1))
        if self.moving is not None:
            self.moving.settle()
        return changed

    def _follow(self, tokens: int) -> bool:
        """Stream what is to be streamed with so many tokens' memory."""
        self._wanted, self._returning = self._thresholds.level(tokens), frozenset()
        if self._wanted > self.level:
            self._stream()
            return True
        if self._wanted < self.level:
            self._returning = frozenset(self._kept.streamed) - frozenset(self._at(self._wanted).units)
        return False

    def truncate(self, session: SessionCaches, position: int) -> None:
        """A session forgets its rows from there on. Raises ``PeerLost``, ``ValueError``."""
        if self.moving is not None:
            self.moving.truncate(session, position)
        session.truncate(position)
        session.shrink()

    def close(self, session: int) -> None:
        """A session has ended. Raises ``PeerLost``."""
        if self.moving is not None:
            self.moving.close(session)

    def pulse(self) -> None:
        """Say to whoever waits for it that this member lives."""
        if self.moving is not None:
            self.moving.link.pulse()

    def end(self) -> None:
        """The life ends in order: nothing is asked of others any more, and this member of those that do for a while."""
        if self.moving is not None:
            self.moving.link.end()
        if self._lodging is not None:
            self._lodging.end()

    def comes_back(self, unit: Unit) -> bool:
        """Whether it is to be kept when it is used next."""
        return unit in self._returning

    def keep(self, unit: Unit) -> None:
        """It is used now, and stays from now on."""
        self._kept.keep(unit)
        self._returning -= {unit}

    def after(self) -> bool:
        """The step is done; whether other things are streamed from now on."""
        if self._wanted == self.level or self._returning:
            return False
        self._stream()
        return True

    def _stream(self) -> None:
        streaming = self._at(self._wanted)
        self._kept.stream(streaming, self._check)
        log.info(
            "keys and values change what is streamed", units=len(streaming.units), before=len(self.streaming.units)
        )
        self.streaming, self.level = streaming, self._wanted

    def _at(self, level: int) -> Streaming:
        return _relieved(self._plan, self._thresholds, level, *self._of)


def later(plan: GroupPlan, first: int, place: int, spec: ModelSpec, dtype: str) -> tuple[Unit, ...]:
    """What a member may come to stream as sessions grow, in the order in which it does."""
    thresholds = thresholds_of(replace(ModelShape.of(spec, dtype), layers=len(plan.layers)), plan, place)
    levels = range(1, len(thresholds.steps) + 1)
    found = (_relieved(plan, thresholds, level, first, place, spec, dtype).units for level in levels)
    return tuple(dict.fromkeys(unit for units in found for unit in units))


def _relieved(
    plan: GroupPlan, thresholds: Thresholds, level: int, first: int, place: int, spec: ModelSpec, dtype: str
) -> Streaming:
    return Streaming.of(thresholds.relieved(plan, place, level), first, place, spec, dtype)


def _make_all(loader: Loader, units: Sequence[Unit]) -> None:
    """One after the other, as long as anybody wants them; what fails is tried again when it is needed."""
    if sys.platform == "linux":  # Elsewhere a thread has no priority of its own.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND)
    try:
        for unit in units:
            loader.make([unit])
            sleep(2 * POLL_S)  # Who computes may wait for the same folder.
    except LoaderClosed:
        return
    except ModelError as error:
        log.warning("weights are not repacked beforehand", why=str(error))
