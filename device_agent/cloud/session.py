"""One session in the cloud, whichever server holds it now; ``place`` sees to where that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import torch

from device_agent.cloud.asked import Asked, Turn
from device_agent.cloud.clouds import Clouds
from device_agent.cloud.link import CloudLink
from device_agent.cloud.log import SessionLog
from device_agent.cloud.place import CloudPlace
from device_agent.cloud.recovery import Recovery
from device_agent.sharing.compute import quiet
from device_agent.sharing.served_request import served_request
from split_model.hints import Pace, TurnSpent
from split_model.tree import check_path, reach, tree_behind
from wire.errors import Code, SessionFailed
from wire.limits import MAX_BRANCHING_ROWS
from wire.messages import AnyMessage
from wire.session_messages import CloudWelcome, Fork, Open


class RemoteSession:
    """A session that outlives the cloud server it is in.

    Args:
        clouds: where it may be.
        recovery: how it comes back.
        positions: most it may reach; ``prompt``, ``expected``: see ``expect``.
        log: what it begins with.
    """

    def __init__(
        self,
        clouds: Clouds,
        recovery: Recovery,
        positions: int,
        prompt: int,
        expected: int,
        log: SessionLog | None = None,
    ) -> None:
        self._clouds = clouds
        self._recovery = recovery
        self._positions = positions
        self._log = SessionLog() if log is None else log
        self._place = CloudPlace(clouds, self._log, recovery, self._opening, self.fail)
        self._failure: SessionFailed | None = None
        self._loop = asyncio.get_running_loop()
        self.expect(prompt, expected)

    @property
    def position(self) -> int:
        """Where the next row goes."""
        return self._log.position

    @property
    def nbytes(self) -> int:
        """Bytes held here, for the case that the session has to be replayed."""
        return self._log.history.nbytes

    @property
    def branching(self) -> RemoteSession:
        """Rows may branch in the cloud."""
        return self

    @property
    def hints(self) -> RemoteSession:
        """The layers run elsewhere."""
        return self

    @property
    def spent(self) -> TurnSpent | None:
        """See ``SessionHints.spent``."""
        return self._turn.spent

    @property
    def pace(self) -> Pace:
        """See ``SessionHints.pace``."""
        return self._place.link.pace.pace

    def drafts_in(self, seconds: float) -> None:
        """See ``SessionHints.drafts_in``; the cloud server is told when it has changed."""
        self._place.link.draft_us = round(seconds * 1e6)

    def take_advice(self) -> tuple[int, Sequence[int]] | None:
        """See ``SessionHints.take_advice``: what the cloud server said last."""
        return self._place.take_advice()

    def expect(self, prompt: int, expected: int) -> None:
        """See ``SubmodelSession.expect``."""
        self._turn = Turn(self._log.position + prompt, self._loop.time())
        self._place.serve(served_request.get())
        self._expected = max(expected, self._turn.prompt_end)
        self.take_advice()  # It was for another prompt.

    def forward(self, hidden: torch.Tensor, want: int) -> asyncio.Future[torch.Tensor]:
        """See ``SubmodelSession.forward``. Rows beyond the window wait here, and what is more than a cloud server takes
        at once is cut: which one that is may change."""
        return self._ask(hidden, want, None)

    def forward_nodes(self, hidden: torch.Tensor, want: int, parents: Sequence[int]) -> asyncio.Future[torch.Tensor]:
        """See ``Branching.forward_nodes``. Nodes are not cut: those are answered, the first ones, that the cloud server
        takes at once."""
        return self._ask(hidden, want, parents)

    def _ask(self, hidden: torch.Tensor, want: int, parents: Sequence[int] | None) -> asyncio.Future[torch.Tensor]:
        rows, position = hidden.shape[0], self._log.position
        self._check_open()
        self._check_line()
        if not 0 <= want <= rows or not rows:
            raise ValueError(f"{want} of {rows} rows wanted; a forward has at least 1")
        tree, end = None, position + rows
        if parents is not None:
            tree, _ = tree_behind(position, parents, rows, MAX_BRANCHING_ROWS)
            end = reach(tree)
        if end > self._positions:
            raise ValueError(f"position {end} is beyond the session's {self._positions}")
        asked = Asked(hidden, want, quiet(self._loop.create_future()), self._turn, tree)
        if self._turn.asked_at is None:
            self._turn.asked_at = self._loop.time()
        self._log.forward(asked)
        self._place.go_on()
        return asked.answer

    def truncate(self, position: int) -> None:
        """See ``SubmodelSession.truncate``."""
        self._check_open()
        if not 0 <= position <= self._log.position:
            raise ValueError(f"cannot truncate to {position}, the session is at {self._log.position}")
        self._log.truncate(position)
        self._place.go_on()

    def keep(self, nodes: Sequence[int]) -> None:
        """See ``Branching.keep``."""
        self._check_open()
        asked = self._log.branching
        check_path(asked.tree if asked is not None else None, nodes)
        self._log.keep(nodes)
        self._place.go_on()

    def fork(self, position: int) -> RemoteSession:
        """See ``SubmodelSession.fork``. The rows of history are shared. Where the cloud server does not have the rows
        now, or does not take the fork, they are replayed once somebody waits for what follows."""
        self._check_open()
        if not 0 <= position <= self._log.history.length:
            raise ValueError(f"cannot fork at {position}, {self._log.history.length} rows are answered")
        log = self._log.fork(position)
        forked = RemoteSession(self._clouds, self._recovery.fresh(), self._positions, 0, self._expected, log)
        forked._turn = self._turn.fork(position, self._loop.time())
        source = self._place.attachment
        if source is not None and 0 < position <= self._log.resumable:
            errand = forked._place.served.errand
            forked._place.begin(source.link, position, lambda number: Fork(number, source.number, position, errand))
        return forked

    def park(self) -> None:
        """See ``SubmodelSession.park``. A session that has no place in the cloud gets one when it is used next."""
        self._check_open()
        self._check_line()
        if self._log.waiting:
            raise ValueError("rows are not answered yet: the session cannot be parked")
        self._place.park()

    def close(self) -> None:
        """End the session here and in the cloud."""
        self.fail(SessionFailed(Code.CANCELLED, "the session was closed"))

    def fail(self, failure: SessionFailed) -> None:
        """End it with ``failure``, here and in the cloud; the first one stays."""
        if self._failure is None:
            self._failure = failure
        self._log.fail(self._failure)
        self._log = SessionLog()
        self._place.close()

    def attach(self, link: CloudLink) -> None:
        """Begin at ``link``, which is ready."""
        self._place.attach(link)

    def _opening(self, link: CloudLink) -> Callable[[int], AnyMessage]:
        """The message that opens it anew at ``link``, which is ready, given its number there."""
        assert isinstance(link.welcome, CloudWelcome)
        positions = min(self._positions, link.welcome.max_positions)
        prompt = min(max(self._turn.prompt_end, self._log.position), positions)
        expected, replayed = min(max(self._expected, prompt), positions), self._log.history.length > 0
        errand = self._place.served.errand
        return lambda number: Open(number, positions, prompt, expected, replayed, errand)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _check_line(self) -> None:
        if self._log.branching is not None:
            raise ValueError("rows branch here: keep some of them, or truncate, before anything else")
