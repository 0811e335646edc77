"""What one choice of a request goes through, as its trace has it, and whoever observes the agent."""

from __future__ import annotations

from typing import Final

from device_agent.chain.chain import ChainSession
from device_agent.sharing.served_request import served_request
from device_agent.speculative.way import Tally
from service.traces import UNTRACED, Facts, Phases
from split_model.hints import TimeSpent, TurnSpent

MAX_TRACED: Final = 8
"""Choices of a request that have spans of their own; of further ones the whole request's tells."""


class ChoicePhases(Phases):
    """Of choice ``index``: it waits for a permit, the first one reads the prompt, and all generate."""

    def __init__(self, index: int) -> None:
        served = served_request.get()
        super().__init__(served.span if index < MAX_TRACED else UNTRACED)
        self._progress = served.progress
        self._index = index
        self._generates = False

    def waits(self) -> None:
        """For a permit."""
        if not self._index:
            self._progress.stage = "waits"
        self.begin("queue", choice=self._index)

    def prefills(self, prompt_tokens: int, cached_tokens: int) -> None:
        """The prompt's rows, of which so many are left from an earlier turn."""
        self._progress.prefills(prompt_tokens, cached_tokens)
        self.begin("prefill", prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)

    def generates(self, session: ChainSession) -> None:
        """Its first token is there, or a later one."""
        if self._generates:
            return
        self._generates = True
        self._progress.stage = "generates"
        if not self._index and (spent := session.spent) is not None:
            self.note(**_facts(spent.prompt))
        self.begin("generate", choice=self._index)

    def is_over(self, tokens: int, tally: Tally, spent: TurnSpent | None) -> None:
        """It is complete; ``spent``: where the time went, where a cloud had part in it."""
        self.note(completion_tokens=tokens, rounds=tally.rounds, drafted=tally.proposed, accepted=tally.accepted)
        if spent is not None:
            self.note(**_facts(spent.decode))


def _facts(spent: TimeSpent) -> Facts:
    return Facts(device_s=spent.device_s, link_s=spent.link_s, queue_s=spent.queue_s, step_s=spent.step_s)
