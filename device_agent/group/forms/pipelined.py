"""Layers that are whole at one member each: a pipeline, which may come to a member several times (LIME, section IV-A).

In each of its stages a member runs all micro-batches of the step, and hands each on at once: the next member computes
one micro-batch while this one computes the following. What they need of a member's weights is there for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from device_agent.group.forms.by_layer import run_attention, run_mlp
from device_agent.group.holding.held import HeldLayer, caches_of
from device_agent.group.holding.streaming import NOTHING, Streaming
from device_agent.group.relief.apart import run_attention_apart
from device_agent.group.relief.relieving import Relieving
from device_agent.group.rows.layout import overlap
from device_agent.group.rows.microbatches import MicroBatch
from device_agent.group.rows.sending import Tag
from device_agent.planning.stages import Stage
from peers.exchange import Exchange
from split_model.device import put
from split_model.offload.loader import Loader
from split_model.offload.units import HALVES, Unit


@dataclass(frozen=True)
class StageRun:
    """What this member does in one of its stages.

    Attributes:
        legs: halves of layers, which are numbered as in the model; all micro-batches pass one leg before the first
            passes the next, and what is streamed of a leg is read once for all of them.
        source: rank of who gives it the rows, and under which tag.
        target: rank of who gets them; None: the portal gets those that it wants.
    """

    legs: tuple[tuple[Unit, ...], ...]
    source: tuple[int, Tag]
    target: int | None


class PipelinedMember:
    """A member's part of a pipeline.

    Args:
        layers: of the group.
        portal: its rank.
        like: a tensor ``[…, hidden]`` of the rows' dtype, where they are computed.
        loader: of what ``streaming`` says is streamed.
        relieving: what changes that as keys and values grow.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        place: int,
        ranks: Sequence[int],
        portal: int,
        layers: Sequence[HeldLayer],
        like: torch.Tensor,
        streaming: Streaming = NOTHING,
        loader: Loader | None = None,
        relieving: Relieving | None = None,
    ) -> None:
        self._layers, self._portal, self._like = layers, portal, like
        self._loader, self._relieving = loader, relieving
        self._stages, self._place, self._ranks = stages, place, ranks
        self.stream(streaming)

    def stream(self, streaming: Streaming) -> None:
        """From the next step on that is streamed."""
        self._streaming = streaming
        self._first = first = streaming.first
        self._runs: list[StageRun] = []
        stages, ranks = self._stages, self._ranks
        for number, stage in enumerate(stages):
            if stage.member != self._place:
                continue
            halves = [Unit(first + layer, half) for layer in stage.layers for half in HALVES]
            source = (ranks[stages[number - 1].member], Tag.PASS) if number else (self._portal, Tag.ENTRY)
            target = ranks[stages[number + 1].member] if number + 1 < len(stages) else None
            self._runs.append(StageRun(tuple(streaming.legs(halves)), source, target))

    def run(self, batches: Sequence[MicroBatch], wanted: range, given: torch.Tensor | None) -> torch.Tensor | None:
        """A step's micro-batches through this member's stages.

        Args:
            wanted: rows of the step that the portal gets from the last stage.
            given: the step's rows ``[rows, hidden]``, where this is the portal's own part.

        Returns the wanted rows, where they are to stay here, else None. Raises ``PeerLost``, ``EpochOver``,
        ``OffloadError``.
        """
        outputs: list[torch.Tensor] = []
        for stage in self._runs:
            coming = self._coming(stage, batches, given)
            hidden = [rows for rows, _ in coming]
            for leg in stage.legs:
                with self._holding(leg, len(batches)):
                    for number, batch in enumerate(batches):
                        exchange = coming[number][1]
                        if exchange is not None and leg is stage.legs[0]:
                            exchange.wait()
                        hidden[number] = self._pass(leg, batch, hidden[number])
                        if leg is stage.legs[-1]:
                            found = self._give(stage, batch, hidden[number], wanted, given is not None)
                            outputs += [] if found is None else [found]
        return torch.cat(outputs) if outputs else None

    def _coming(
        self, stage: StageRun, batches: Sequence[MicroBatch], given: torch.Tensor | None
    ) -> list[tuple[torch.Tensor, Exchange | None]]:
        """The rows of each micro-batch, and on what is to be waited before they are there."""
        source, tag = stage.source
        if tag is Tag.ENTRY and given is not None:
            return [(put(given[each.rows.start : each.rows.stop], self._like.device), None) for each in batches]
        found: list[tuple[torch.Tensor, Exchange | None]] = []
        for batch in batches:
            rows = batch.on.empty(self._like.shape[1], like=self._like)
            found.append((rows, batch.on.collectives.receive(rows, source, tag)))
        return found

    def _holding(self, leg: Sequence[Unit], batches: int) -> AbstractContextManager[None]:
        """While inside, what a leg streams stays for all micro-batches."""
        units = [unit for unit in leg if unit in self._streaming.rooms]
        if self._loader is None or batches == 1 or not units:
            return nullcontext()
        return self._loader.using(units[0]) if len(units) == 1 else self._loader.holding(units)

    def _pass(self, leg: Sequence[Unit], batch: MicroBatch, hidden: torch.Tensor) -> torch.Tensor:
        """One micro-batch through a leg. What it stores counts at once: more rows of the same session may follow in
        the next micro-batch."""
        for unit in leg:
            if self._loader is None or self._relieving is None or not self._relieving.comes_back(unit):
                hidden = self._pass_half(unit, batch, hidden)
                continue
            with self._loader.using(unit):
                hidden = self._pass_half(unit, batch, hidden)
                self._relieving.keep(unit)
        return hidden

    def _pass_half(self, unit: Unit, batch: MicroBatch, hidden: torch.Tensor) -> torch.Tensor:
        number = unit.layer - self._first
        held = (batch.sessions[0].layers if batch.sessions else self._layers)[number]
        if unit.half == "mlp":
            return run_mlp(held, hidden)
        moving = None if self._relieving is None else self._relieving.moving
        if moving is not None and any(session.away[number] for session in batch.sessions):
            hidden = run_attention_apart(held, number, batch, hidden, moving.link)
        else:
            hidden = run_attention(held, caches_of(batch.sessions, number, len(held.pieces)), batch.on, hidden)
        batch.on.advance()
        return hidden

    def _give(
        self, stage: StageRun, batch: MicroBatch, hidden: torch.Tensor, wanted: range, here: bool
    ) -> torch.Tensor | None:
        """A micro-batch to whoever is next; what the portal wants of it where this is the portal itself."""
        links = batch.on.collectives
        if stage.target is not None:
            links.send(hidden, stage.target, Tag.PASS)
            return None
        part = overlap(batch.rows, wanted)
        found = hidden[part.start - batch.rows.start : part.stop - batch.rows.start] if part else hidden[:0]
        if here:
            return found
        if part:
            links.send(found, self._portal, Tag.RESULT)
        return None
