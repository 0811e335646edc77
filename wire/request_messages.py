"""Between gateway and agent: requests, and their answers piece by piece."""

from __future__ import annotations

from typing import Annotated, Literal, Union

import msgspec

from wire.decision_messages import Decide, Decided
from wire.group_messages import GroupReport
from wire.message import Count, Message, Name, Number, Size
from wire.observed_messages import Observe, Observed
from wire.origins import Origin as Origin
from wire.origins import Spent as Spent
from wire.reading_messages import Read, Task, Vector
from wire.text_messages import ChatTurn as ChatTurn
from wire.text_messages import Rendering as Rendering
from wire.text_messages import Tokenize, Tokens
from wire.text_messages import Tool as Tool
from wire.text_messages import ToolCall as ToolCall


class ServedModel(msgspec.Struct, frozen=True, array_like=True):
    """A model an agent serves: its id for clients and the positions (prompt and answer) one request may have.

    ``drafts``: the drafters a request may name, the agent's own choice first; empty where the agent never drafts.
    ``max_characters``: a prompt of more text has too many tokens, whatever they are; 0: the agent does not say.
    ``tasks``: what it can be asked to do. ``numbers``: of each vector it gives, or its labels; 0 where it only writes.
    ``t_max_s``: heads are left out of prompts that would take longer to read, which is lossy; 0: never. ``scores``: it
    tells how likely a prompt's own tokens are; agents that do not say so would not notice that they are asked.
    ``grammars``: its answers can be held to a form, likewise.
    ``decides``: it answers questions with how likely their options are, likewise.
    ``fingerprint``: of the weights and of what computes with them; empty: the agent does not say.
    ``tools``: it can be told of tools, and says calls of them apart from text, likewise.
    """

    id: Name
    max_positions: Count
    created: Count
    drafts: Annotated[list[Name], msgspec.Meta(max_length=16)] = []
    max_characters: Size = 0
    tasks: Annotated[list[Task], msgspec.Meta(max_length=8)] = msgspec.field(default_factory=lambda: ["generate"])
    numbers: Count = 0
    t_max_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    scores: bool = False
    grammars: bool = False
    fingerprint: Name = ""
    decides: bool = False
    tools: bool = False


class AgentHello(Message, frozen=True, tag=30):
    """An agent introduces itself: the models it serves, the answers it generates at once, and ``cloud_connected`` as in
    ``AgentState``: nobody asks it before its cloud or group is there. ``pads``: it wants frames padded, both ways
    (``padding.py``). ``observable``: it knows ``Observe``."""

    name: Name
    credential: Name
    models: Annotated[list[ServedModel], msgspec.Meta(min_length=1, max_length=64)]
    capacity: Count
    cloud_connected: bool | None = None
    pads: bool = False
    observable: bool = False


class GatewayWelcome(Message, frozen=True, tag=31):
    """The gateway accepts an agent. ``pads``: frames are padded from here on, as the agent asked."""

    name: Name
    pads: bool = False


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How the next token is chosen; ranges are checked at the gateway and again by the agent."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """The form of an answer: a JSON schema, a regular expression, a JSON list of texts of which it is one, or a grammar
    (GBNF, or llguidance's Lark). ``param``: the member of the client's request that said so."""

    kind: Literal["json", "regex", "choice", "grammar"]
    text: str
    param: Name


class Calling(msgspec.Struct, frozen=True, array_like=True):
    """How an answer may call the tools that its rendering has: as the model likes, or ``forced`` to; ``name``: this one
    alone, once; empty: any. ``parallel``: several calls in one answer."""

    forced: bool = False
    name: Name = ""
    parallel: bool = True


class Generate(Message, frozen=True, tag=32):
    """Answer one prompt ``n`` times: ``prompt`` is a conversation, plain text, or token ids.

    ``max_tokens`` None means as many as fit and the agent allows. ``logprobs`` None means none, else how many
    alternatives to each token.
    ``echo`` puts the prompt's text before the answer. ``tenant`` tells clients apart whose prompts must not share
    anything: a digest of the key they showed, empty where none is needed. ``draft`` names the drafter to draft with,
    ``none`` for plain decoding; empty: the agent's own choice. Of the ``n`` choices no more than ``at_once`` are
    generated side by side; 0: all of them. ``prompt_logprobs``: the prompt's own tokens are scored too, with so many
    alternatives to each; None: they are not. Only then may ``max_tokens`` be 0. ``exact``: no
    heads are left out, however long the prompt takes. ``grammar``: the form that each answer is to have.
    ``min_tokens``: nothing ends the answer before. Of ``allowed_token_ids`` all tokens are, where there are none;
    ``bad_words`` are texts that never come. A conversation is kept for requests of the same ``cache_salt`` alone.
    ``return_token_ids``: those of prompt and answer are told. ``calling``: calls of tools are told apart from text.
    ``thoughts``: so is what the model thinks between tags, where it does; no stop string ends an answer in either.
    ``traceparent``: the trace context (W3C's) in which it is done; empty: none.
    ``return_token_origins``: where each token of the answer came from is told. ``left_out``: members of ``sampling``
    of which the client has said nothing, so that the model's own usual values hold, where it has any.
    """

    request: Number
    request_id: Name
    model: Name
    prompt: list[ChatTurn] | str
    prompt_ids: list[int] | None = None
    n: Count = 1
    max_tokens: Count | None = None
    stop: list[str] = []  # noqa: RUF012 (msgspec copies it)
    stop_token_ids: list[int] = []  # noqa: RUF012
    ignore_eos: bool = False
    echo: bool = False
    logprobs: Count | None = None
    sampling: Sampling = Sampling()
    tenant: Name = ""
    draft: Name = ""
    at_once: Count = 0
    prompt_logprobs: Count | None = None
    exact: bool = False
    grammar: Grammar | None = None
    min_tokens: Count = 0
    include_stop_str_in_output: bool = False
    bad_words: list[str] = []  # noqa: RUF012
    allowed_token_ids: list[int] = []  # noqa: RUF012
    cache_salt: Name = ""
    rendering: Rendering = Rendering()
    return_token_ids: bool = False
    calling: Calling | None = None
    thoughts: bool = False
    traceparent: Name = ""
    return_token_origins: bool = False
    left_out: Annotated[list[Name], msgspec.Meta(max_length=16)] = []  # noqa: RUF012


class Cancel(Message, frozen=True, tag=33):
    """Nobody waits for this request any more: stop and free what it holds. Not answered."""

    request: Number


class Accepted(Message, frozen=True, tag=34):
    """The agent has taken a request and its prompt has this many tokens: these, where they are asked for."""

    request: Number
    prompt_tokens: Count
    prompt_ids: list[Count] | None = None


class Alternative(msgspec.Struct, frozen=True, array_like=True):
    """One token that might have come: its text (undecodable bytes replaced), log-probability, raw bytes, and id."""

    text: str
    logprob: float
    raw: bytes
    id: Count = 0


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The log-probability of one generated token and its likeliest alternatives, best first."""

    chosen: Alternative
    top: list[Alternative]


class PromptToken(msgspec.Struct, frozen=True, array_like=True):
    """One token of the prompt and its likeliest alternatives, best first. ``rank``: how many tokens are as likely or
    likelier, 1 for the likeliest; 0 for the prompt's first, which nothing comes before: its log-probability means
    nothing. ``offset``: where its text begins in the prompt's, where that is echoed."""

    token: Alternative
    rank: Count
    offset: Size
    top: list[Alternative]


class Scored(Message, frozen=True, tag=39):
    """The next tokens of the prompt with their scores, as told for choice ``index``; ``text``: what of an echoed prompt
    is theirs. All come before the choice's first delta."""

    request: Number
    index: Count
    text: str
    tokens: list[PromptToken]


class CallPiece(msgspec.Struct, frozen=True, array_like=True):
    """More of call ``at`` of a choice, counted from 0: its id and name once, at first, and its arguments as they come,
    which are JSON once all are there."""

    at: Count
    arguments: str = ""
    id: Name = ""
    name: Name = ""


class Delta(Message, frozen=True, tag=35):
    """More text of choice ``index``: complete characters only, never part of a stop string; ``tokens`` tokens new since
    the last delta of this choice (their text may come later, when it is complete): these, where they are asked for.
    ``reasoning``: more of what was thought, before the text; ``call``: more of a call of a tool, behind it.
    ``origins``: of each of the new tokens, where they are asked for. ``held``: so many characters at the beginning of
    ``text`` are of tokens that were told before."""

    request: Number
    index: Count
    text: str
    tokens: Count
    logprobs: list[TokenLogprob] | None = None
    ids: list[Count] | None = None
    reasoning: str = ""
    call: CallPiece | None = None
    origins: list[Origin] | None = None
    held: Count = 0


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """Where the time of one choice went, from one wanted answer of the cloud to the next: until the one that ended the
    prompt, and over the ``rounds`` after it."""

    prompt: Spent
    decode: Spent
    rounds: Count


class Finished(Message, frozen=True, tag=36):
    """Choice ``index`` is complete: ``stop`` (an end token or stop string), ``tool_calls`` (the same, with calls), or
    ``length``.

    ``timings``: where its time went; None where no cloud had part in it, or the agent does not say.
    ``heads_pruned``: how many attention heads were left out, all layers together; None where none ever are.
    ``stop``: the stop string that ended it, if one did."""

    request: Number
    index: Count
    reason: Literal["stop", "length", "tool_calls"]
    timings: Timings | None = None
    heads_pruned: Count | None = None
    stop: Name = ""


class Done(Message, frozen=True, tag=37):
    """All choices of a request are complete. ``cached_tokens`` of the prompt were left from an earlier turn.
    ``proposed`` tokens were drafted, all choices together, in ``drafts`` drafts, and ``accepted`` of them are in the
    answers."""

    request: Number
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count = 0
    proposed: Count = 0
    accepted: Count = 0
    drafts: Count = 0


class AgentState(Message, frozen=True, tag=38):
    """An agent's load, sent with changes: the answers it has to generate at once (of each request those unfinished, up
    to its ``at_once``), and whether its cloud can be reached, or its group computes (None: it needs none). ``group``:
    the group that it is the portal of. ``restored``: how often sessions had to be brought to a cloud again so far."""

    running: Count
    cloud_connected: bool | None = None
    group: GroupReport | None = None
    restored: Size = 0


FromGateway = Union[Generate, Read, Tokenize, Decide, Cancel, Observe]
FromAgent = Union[Accepted, Scored, Delta, Vector, Tokens, Decided, Finished, Done, AgentState, Observed]
"""What each side may say once both have introduced themselves, beside what is said on every link."""

RequestMessage = Union[AgentHello, GatewayWelcome, FromGateway, FromAgent]
