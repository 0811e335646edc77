"""One member's part of everything: it holds its pieces of the layers, has its keys and values, and runs steps.

All members run the same heads in the same order, and meet in every exchange of every layer. Everything here blocks and
belongs on one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch

from device_agent.group.forms.pipelined import PipelinedMember
from device_agent.group.holding.halves import readers_of
from device_agent.group.holding.held import HeldLayer, SessionCaches
from device_agent.group.holding.narrowing import Narrowing, narrow
from device_agent.group.holding.streaming import NOTHING, Streaming
from device_agent.group.messages.heads import (
    HEAD_BYTES,
    BadGroupHead,
    BatchHead,
    CloseHead,
    EndHead,
    ForkHead,
    GroupHead,
    HandHead,
    IdleHead,
    KeepHead,
    MannerHead,
    MeansHead,
    OpenHead,
    ReadHead,
    ResumeHead,
    RowsHead,
    SourceHead,
    StepHead,
    TruncateHead,
    read,
)
from device_agent.group.relief.relieving import Relieving
from device_agent.group.rows.layout import Everywhere
from device_agent.group.rows.microbatches import cut
from device_agent.group.rows.sending import PORTAL, Tag, move, take_entry
from device_agent.group.rows.step_rows import GroupStretch, StepRows
from device_agent.group.steps.handing import Handing
from device_agent.group.steps.narrowed import take_means
from device_agent.group.steps.passing import entry_for, run_layers
from device_agent.group.steps.pipeline import UNCUT, Pipeline
from device_agent.planning.shares import spans
from device_agent.planning.thresholds import counted
from device_agent.planning.trials import some
from peers.collectives import Collectives
from split_model.offload.loader import Loader
from split_model.rope import Rope
from split_model.spec import ModelSpec

MAX_SESSIONS: Final = 1024
"""Open at once; a portal has far fewer."""


class Worker:
    """Of one member, in one epoch of its group.

    Args:
        layers: the group's, as far as this member has them.
        collectives: of the members that compute.
        ranks: of these, by place.
        place: this member's.
        pipeline: how its steps pass through the members.
        streaming, loader: what this member does not keep in memory, and what reads it.
        relieving: what changes that as sessions grow; None where nothing does.
        narrowing: has the layers without some heads; None where no session may leave any out.
        handing: gives sessions to the next life, and has those of the one before; None where they cannot go on.
        device: where the layers are, and sessions' keys and values.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layers: list[HeldLayer],
        dtype: torch.dtype,
        collectives: Collectives,
        ranks: tuple[int, ...],
        place: int,
        pipeline: Pipeline = UNCUT,
        streaming: Streaming = NOTHING,
        loader: Loader | None = None,
        relieving: Relieving | None = None,
        narrowing: Narrowing | None = None,
        handing: Handing | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        readers = readers_of(spec)
        self._spec, self._layers, self._reading = spec, layers[readers:], layers[:readers] or layers
        self._planned = layers
        self._collectives, self._ranks, self._place = collectives, ranks, place
        self._rope = Rope(spec.rope, dtype, device) if spec.positions == "rotary" else None
        self._none = torch.empty((0, spec.hidden_size), dtype=dtype, device=device)
        self._pipeline, self.loader = pipeline, loader
        self._member: PipelinedMember | None = None
        if pipeline.stages:
            stages = pipeline.stages, place, ranks, PORTAL
            self._member = PipelinedMember(*stages, layers, self._none, streaming, loader, relieving)
        self._relieving = relieving if self._member is not None else None
        self._narrowing, self._handing = narrowing, handing
        self._sessions: dict[int, SessionCaches] = {}

    def serve(self) -> None:
        """Do what the portal says until it ends.

        Raises ``PeerLost``, ``EpochOver``, ``BadGroupHead``, ``MemoryError``.
        """
        while True:
            came = torch.empty(HEAD_BYTES, dtype=torch.uint8)
            self._collectives.receive(came, PORTAL, Tag.HEAD).wait()
            head = read(came)
            if isinstance(head, EndHead):
                self.end()
                return
            self.do(head)

    def end(self) -> None:
        """The life ends in order: no step follows."""
        if self._relieving is not None:
            self._relieving.end()

    @torch.inference_mode()
    def do(self, head: GroupHead, given: torch.Tensor | None = None) -> torch.Tensor | None:
        """One head.

        Args:
            given: the rows ``[rows, hidden]`` that follow it, where this is the portal's own part.

        Returns:
            of the outputs that are wanted those that this member has, in the portal; None elsewhere, where they are
            sent.
        """
        if self._relieving is not None:
            self._relieving.pulse()
        if isinstance(head, (RowsHead, BatchHead)):
            return self._step(head, given)
        if isinstance(head, ReadHead):
            return self._run(GroupStretch.whole_texts(head.lengths), head, (), given)
        if isinstance(head, OpenHead):
            self._begin(head.session, head.positions)
        elif isinstance(head, SourceHead):
            self._attend_to(head, given)
        elif isinstance(head, KeepHead):
            narrow(self._narrowing, self._session(head.session), head, self._layers)
        elif isinstance(head, MeansHead):
            take_means(self._narrowing, self._collectives, self._layers, PORTAL, given)
        elif isinstance(head, HandHead):
            self._handed(head).follow(head, self._sessions, given)
        elif isinstance(head, ResumeHead):
            self._check_begins(head.session)
            self._sessions[head.session] = self._handed(head).resumed(head, self._layers)
        elif isinstance(head, CloseHead):
            self._close(head.session)
        elif isinstance(head, MannerHead):
            self._take_manner(head)
        elif not isinstance(head, (IdleHead, EndHead)):
            source = self._session(head.source if isinstance(head, ForkHead) else head.session)
            if not head.position <= source.position:
                raise BadGroupHead(f"session {head.session} cannot go to {head.position}")
            if isinstance(head, TruncateHead) and self._relieving is not None:
                self._relieving.truncate(source, head.position)
            elif isinstance(head, TruncateHead):
                source.truncate(head.position)
            else:
                self._make_room(counted(head.position, head.positions), leaving=source.number)
                self._begin(head.session, head.positions).begin_as(source, head.position)
        return None

    def _take_manner(self, head: MannerHead) -> None:
        if self._sessions or self._member is not None or self._spec.attention == "cross":
            raise BadGroupHead("these layers are run as they are planned")
        held = some(self._planned, head.layers)
        try:
            self._layers = self._reading = [replace(each, layer=head.manner.of(each.layer)) for each in held]
        except ValueError as error:
            raise BadGroupHead(str(error)) from None

    def _check_begins(self, session: int) -> None:
        if session in self._sessions or len(self._sessions) >= MAX_SESSIONS:
            raise BadGroupHead(f"session {session} cannot begin")

    def _handed(self, head: GroupHead) -> Handing:
        if self._handing is None:
            raise BadGroupHead(f"{head}: sessions of this plan are not handed over")
        return self._handing

    def _close(self, session: int) -> None:
        if self._sessions.pop(session, None) is not None and self._relieving is not None:
            self._relieving.close(session)
        if self._handing is not None:
            self._handing.forget(session)

    def _begin(self, session: int, positions: int) -> SessionCaches:
        self._check_begins(session)
        if self._handing is not None:
            self._handing.forget(session)
        sizes = self._spec.head_dim, self._none.dtype
        self._sessions[session] = SessionCaches(self._layers, positions, *sizes, session, self._none.device)
        return self._sessions[session]

    def _session(self, number: int) -> SessionCaches:
        if number not in self._sessions:
            raise BadGroupHead(f"there is no session {number}")
        return self._sessions[number]

    def _attend_to(self, head: SourceHead, given: torch.Tensor | None) -> None:
        """All members get all rows: each has heads, or rows, that attend to all of them."""
        session = self._session(head.session)
        if self._spec.attention != "cross" or session.position or session.sources:
            raise BadGroupHead(f"session {head.session} cannot be about a text")
        on = StepRows(self._collectives, self._ranks, self._place, GroupStretch.whole_texts([head.rows]), None)
        layout = entry_for(Everywhere(), on, self._none)
        rows = move(take_entry(layout, on, PORTAL, self._none, given), layout, Everywhere(), on)
        session.attend_to(self._layers, rows)

    def _step(self, head: RowsHead | BatchHead, given: torch.Tensor | None) -> torch.Tensor | None:
        if self._spec.attention == "bidirectional":
            raise BadGroupHead("rows that see what comes behind them are read whole")
        sessions, stretches, parts = [], [], head.parts if isinstance(head, BatchHead) else (head,)
        for part, rows in zip(parts, spans([part.rows for part in parts]), strict=True):
            session = self._session(part.session)
            if part.position != session.position or part.position + part.rows > session.positions:
                raise BadGroupHead(f"{part} are not the next rows of a session at {session.position}")
            if self._spec.attention == "cross" and not session.sources:
                raise BadGroupHead(f"nobody has said what session {part.session} is about")
            if session.narrow and len(parts) > 1:
                raise BadGroupHead(f"session {part.session}, which leaves heads out, shares a step")
            sessions.append(session)
            stretches.append(GroupStretch(part.position, rows))
        self._make_room(
            *(each.counted_with(part.rows) - each.counted for each, part in zip(sessions, parts, strict=True))
        )
        for session, part in zip(sessions, parts, strict=True) if self._relieving is not None else ():
            session.reserve(part.rows)
        outputs = self._run(tuple(stretches), head, sessions, given)
        for session, part in zip(sessions, parts, strict=True):
            session.position += part.rows
        self._told(self._relieving is not None and self._relieving.after())
        return outputs

    @property
    def relief(self) -> int:
        """How many steps of relief are taken now."""
        return 0 if self._relieving is None else self._relieving.level

    def _make_room(self, *tokens: int, leaving: int | None = None) -> None:
        """So many tokens more come: what they need is let go of beforehand. As ``Relieving.before``."""
        if self._relieving is not None:
            held = sum(session.counted for session in self._sessions.values())
            self._told(self._relieving.before(held + sum(tokens), self._sessions, leaving))

    def _told(self, changed: bool) -> None:
        if changed:
            assert self._relieving is not None and self._member is not None
            self._member.stream(self._relieving.streaming)

    def _run(
        self,
        stretches: tuple[GroupStretch, ...],
        head: StepHead,
        sessions: Sequence[SessionCaches],
        given: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """Rows through all layers; of sessions, or of whole texts of which nothing is kept."""
        reads, attention = isinstance(head, ReadHead), self._spec.attention
        layers = self._reading if reads else sessions[0].layers
        all_see_all = attention == "bidirectional" or (reads and attention == "cross")
        if self._member is not None:
            links, rope, ranges = self._collectives, self._rope, self._pipeline.cut(head)
            batches = cut(ranges, stretches, sessions, links, self._ranks, self._place, rope, all_see_all)
            return self._member.run(batches, range(head.rows - head.want, head.rows), given)
        on = StepRows(self._collectives, self._ranks, self._place, stretches, self._rope, all_see_all)
        return run_layers(layers, sessions, on, head, self._none, given)
