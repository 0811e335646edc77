"""What a client wants, checked and in our own words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

from wire.messages import ChatTurn, Generate, Sampling

Endpoint = Literal["chat.completions", "completions"]
Prompt = Union[list[ChatTurn], str, tuple[int, ...]]


@dataclass(frozen=True)
class Ask:
    """What a client wants: ``n`` answers to each prompt, all with the same settings."""

    endpoint: Endpoint
    model: str | None
    prompts: tuple[Prompt, ...]
    n: int
    max_tokens: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    echo: bool
    logprobs: int | None
    sampling: Sampling
    stream: bool
    include_usage: bool
    draft: str = ""
    tenant: str = ""

    @property
    def choices(self) -> int:
        """Answers wanted, all prompts together."""
        return self.n * len(self.prompts)

    def generate(self, part: int, number: int, request_id: str, model: str) -> Generate:
        """The message that asks an agent for the answers to prompt ``part``."""
        prompt = self.prompts[part]
        ids = list(prompt) if isinstance(prompt, tuple) else None
        return Generate(
            request=number,
            request_id=request_id,
            model=model,
            prompt="" if isinstance(prompt, tuple) else prompt,
            prompt_ids=ids,
            n=self.n,
            max_tokens=self.max_tokens,
            stop=list(self.stop),
            stop_token_ids=list(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            echo=self.echo,
            logprobs=self.logprobs,
            sampling=self.sampling,
            tenant=self.tenant,
            draft=self.draft,
        )
