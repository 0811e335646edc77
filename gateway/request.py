"""What a client wants, in our own words, and whether it is of a size that can be answered at all. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

from msgspec.structs import replace

from gateway.errors import RequestError, no_forms, no_tools, scores_nothing
from gateway.prompt_sizes import TOKEN_BYTES, Prompt, bytes_of, bytes_of_prompt, bytes_of_tools, size_of_prompt
from wire.decision_messages import Decide, Decided
from wire.reading_messages import Read, Task, Vector
from wire.request_messages import Finished, Generate, ServedModel
from wire.text_messages import Tokenize, Tokens

Endpoint = Literal["chat.completions", "completions", "responses", "messages"]

UNSAID_TOKENS: Final = 4096
"""What an answer counts whose request does not say how long it may be; an agent's own default is of this size."""

MAX_WHOLE_TOKENS: Final = 2**19
"""Tokens, all choices together, of an answer sent in one piece: it is kept until it is complete."""

MAX_WHOLE_LOGPROBS: Final = 100_000
"""Log-probabilities in an answer sent in one piece: it is encoded at once, while everybody else waits (some 50 ms). Of
prompts also in a stream: they come faster than many a client reads; and of a response, whose stream ends with all of
them."""

MAX_ECHOED: Final = 2**20
"""Characters of prompts in an answer, all choices together: agents send them all at once, before any token."""

ECHOED_TOKEN: Final = 8
"""Characters a token of a prompt counts when it is echoed."""


class AnyAsk(Protocol):
    """What has to be known of a request, whatever it asks for, to bring it to agents.

    It has *parts*, each a message of its own that any agent may have, and of which so many *choices* are answered:
    texts that are generated, or inputs that are read.
    """

    @property
    def endpoint(self) -> str:
        """What it came by, for the log."""

    @property
    def model(self) -> str | None:
        """The model named; None: the first there is that does this."""

    @property
    def task(self) -> Task:
        """What the model is to do."""

    @property
    def tenant(self) -> str:
        """Whose it is."""

    @property
    def draft(self) -> str:
        """The drafter named; empty: each agent drafts as it likes."""

    @property
    def scored_by(self) -> str:
        """The member that asks how likely the prompts are; empty: none does."""

    @property
    def stream(self) -> bool:
        """Whether the answer is sent as it comes."""

    @property
    def parts(self) -> int:
        """Messages that it takes."""

    @property
    def choices(self) -> int:
        """Answers wanted, all parts together."""

    @property
    def priority(self) -> int:
        """Which of its tenant's requests goes first where they wait: the one with the lowest."""

    @property
    def ends(self) -> type[Finished] | type[Vector] | type[Tokens] | type[Decided]:
        """The message that each choice ends with."""

    @property
    def at_once(self) -> int:
        """Answers of a part that an agent may generate side by side, as far as it has room; what is read counts as one,
        however many inputs it has."""

    def choices_of(self, part: int) -> range:
        """Which of the choices are those of this part."""

    def most_bytes(self, part: int) -> int:
        """Return the most bytes of a part's message, without what is always short."""

    def message(
        self, part: int, number: int, request_id: str, model: str, at_once: int
    ) -> Generate | Read | Tokenize | Decide:
        """Return the message that asks an agent for a part, ``at_once`` of its answers at a time."""

    def refused_by(self, model: ServedModel, max_total_tokens: int) -> RequestError | None:
        """Return why it asks this model for too much, None when it does not.

        Args:
            max_total_tokens: tokens that one request may have, prompts counted once for each answer.
        """


@dataclass(frozen=True)
class Ask:
    """What a client wants: answers to each prompt, all with the same settings.

    Attributes:
        model: the model named; None: the first there is.
        terms: how to answer each prompt, as agents are told; their numbers, model and prompt are left open.
    """

    endpoint: Endpoint
    model: str | None
    prompts: tuple[Prompt, ...]
    terms: Generate
    stream: bool = False
    include_usage: bool = False
    prompt_logprobs: bool = False
    """Whether the scores of the prompts are a member of their own in the answer."""
    priority: int = 0

    ends = Finished

    @property
    def task(self) -> Task:
        """See ``AnyAsk``, here and below."""
        return "generate"

    @property
    def tenant(self) -> str:
        return self.terms.tenant

    @property
    def draft(self) -> str:
        return self.terms.draft

    @property
    def scored_by(self) -> str:
        if self.terms.prompt_logprobs is None:
            return ""
        return "prompt_logprobs" if self.prompt_logprobs else "logprobs"

    @property
    def parts(self) -> int:
        return len(self.prompts)

    @property
    def choices(self) -> int:
        """Answers wanted, all prompts together."""
        return self.terms.n * len(self.prompts)

    @property
    def at_once(self) -> int:
        return self.terms.n

    def choices_of(self, part: int) -> range:
        return range(part * self.terms.n, (part + 1) * self.terms.n)

    def most_bytes(self, part: int) -> int:
        """Return the most bytes of the message that asks for prompt ``part``, without what is always short."""
        form = 0 if self.terms.grammar is None else bytes_of(self.terms.grammar.text)
        banned = sum(map(bytes_of, self.terms.bad_words)) + TOKEN_BYTES * len(self.terms.allowed_token_ids)
        return form + banned + bytes_of_tools(self.terms.rendering.tools) + bytes_of_prompt(self.prompts[part])

    def message(self, part: int, number: int, request_id: str, model: str, at_once: int) -> Generate:
        """Return the message that asks an agent for the answers to prompt ``part``, ``at_once`` at a time (0: all)."""
        prompt = self.prompts[part]
        ids = list(prompt) if isinstance(prompt, tuple) else None
        text = "" if isinstance(prompt, tuple) else prompt
        return replace(
            self.terms, request=number, request_id=request_id, model=model, prompt=text, prompt_ids=ids, at_once=at_once
        )

    def refused_by(self, model: ServedModel, max_total_tokens: int) -> RequestError | None:
        """See ``too_large``; and where nobody who serves it scores prompts, or not all hold answers to forms or know of
        tools."""
        if self.scored_by and not model.scores:
            return scores_nothing(model.id, self.scored_by)
        if self.terms.grammar is not None and not model.grammars:
            return no_forms(self.terms.grammar.param)
        if self.terms.calling is not None and not model.tools:
            return no_tools(model.id)
        if self.terms.calling is not None and self.terms.calling.forced and not model.grammars:
            return no_forms("tool_choice")
        return too_large(self, model, max_total_tokens)


def too_large(ask: Ask, model: ServedModel, max_total_tokens: int) -> RequestError | None:
    """Return why a request asks for too much, None when it does not.

    Args:
        model: the model that is to answer it.
        max_total_tokens: tokens that one request may have, its prompts counted once for each answer.
    """
    for at, prompt in enumerate(ask.prompts):
        # At least one token of the answer has to fit too, where there is to be one.
        most = model.max_positions - (ask.terms.max_tokens != 0)
        if (message := size_of_prompt(prompt).too_long("the prompt", most, model)) is not None:
            param = "prompt" if len(ask.prompts) == 1 else f"prompt[{at}]"
            param = "messages" if isinstance(prompt, list) else param
            return RequestError(400, message, code="context_length_exceeded", param=param)
    each = _answer_tokens(ask, model.max_positions, model.max_positions)
    prompts = sum(min(size_of_prompt(prompt).least_tokens, model.max_positions) for prompt in ask.prompts)
    if ask.choices > 1 and ask.choices * each + ask.terms.n * prompts > max_total_tokens:
        return _refused(
            f"{ask.choices} answers of up to {each} tokens, to prompts of {prompts} or more, are more than the "
            f"{max_total_tokens} tokens one request may have, its prompts counted once for each answer: "
            "lower 'max_tokens' or 'n'",
            "n",
        )
    return _too_much_at_once(ask, model.max_positions)


def _too_much_at_once(ask: Ask, max_positions: int) -> RequestError | None:
    echoed = ask.terms.n * sum(len(each) * (ECHOED_TOKEN if isinstance(each, tuple) else 1) for each in ask.prompts)
    if ask.terms.echo and echoed > MAX_ECHOED:
        return _refused(
            "the prompts to echo, once for each answer, are too long: leave 'echo' out or lower 'n'", "echo"
        )
    scores = 0
    if ask.terms.prompt_logprobs is not None:
        tokens = sum(size_of_prompt(each).least_tokens for each in ask.prompts)
        scores = ask.terms.n * tokens * (1 + ask.terms.prompt_logprobs)
    if scores > MAX_WHOLE_LOGPROBS:
        return too_many_scores(scores)
    if ask.stream and not repeats(ask):
        return None
    tokens = ask.choices * _answer_tokens(ask, UNSAID_TOKENS, max_positions)
    if tokens > MAX_WHOLE_TOKENS and not ask.stream:
        return _refused(
            f"answers of up to {tokens} tokens are more than the {MAX_WHOLE_TOKENS} that are sent in one piece: "
            "ask for a stream, or lower 'max_tokens' or 'n'",
            "max_tokens",
        )
    logprobs = scores + (0 if ask.terms.logprobs is None else tokens * (1 + ask.terms.logprobs))
    if logprobs > MAX_WHOLE_LOGPROBS and repeats(ask):
        return _refused(
            f"{logprobs} log-probabilities (tokens x alternatives) are more than the {MAX_WHOLE_LOGPROBS} that a "
            "response may have, streamed or not: set a lower 'max_tokens' or 'top_logprobs'",
            "top_logprobs",
        )
    if logprobs > MAX_WHOLE_LOGPROBS:
        return _refused(
            f"{logprobs} log-probabilities (answers x tokens x alternatives) are more than the "
            f"{MAX_WHOLE_LOGPROBS} that are sent in one piece: ask for a stream, or set a lower 'max_tokens'",
            "logprobs" if ask.endpoint == "completions" else "top_logprobs",
        )
    return None


def repeats(ask: AnyAsk) -> bool:
    """Whether the end of a streamed answer has all of it once more: a response is kept until then."""
    return ask.endpoint == "responses"


def too_many_scores(scores: int) -> RequestError:
    """Return why prompts are not scored that need so many log-probabilities."""
    return _refused(
        f"scoring the prompts takes {scores} log-probabilities or more (tokens x alternatives x answers), over the "
        f"{MAX_WHOLE_LOGPROBS} that one answer may have: send fewer prompts at once, or ask for fewer alternatives",
        "prompt",
    )


def _answer_tokens(ask: Ask, unsaid: int, max_positions: int) -> int:
    """The most tokens of one answer; ``unsaid`` where the request does not say."""
    return min(unsaid if ask.terms.max_tokens is None else ask.terms.max_tokens, max_positions)


def _refused(message: str, param: str) -> RequestError:
    return RequestError(400, message, code="invalid_value", param=param)
