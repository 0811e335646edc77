"""Every message that crosses the wire.

The four verbs of a submodel are the four session messages: open, forward, truncate, close. A message is a small
array (msgpack), its first item an integer tag, so a decode row costs a few bytes beyond its tensor. New fields go to
the end and have a default: an older peer ignores them, a newer one fills them in.

Sessions and requests are numbered by the side that opens them and mean something on one connection only, so nobody can
name another's.
"""

from __future__ import annotations

from typing import Annotated, Literal, Union

import msgspec

from wire.limits import MAX_BRANCHING_ROWS, MAX_CHUNKS, MAX_TEXT, MAX_TIMES

Name = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Size = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]

Times = Annotated[list[Count], msgspec.Meta(max_length=MAX_TIMES)]
Nodes = Annotated[list[Count], msgspec.Meta(max_length=MAX_BRANCHING_ROWS)]


class _Message(msgspec.Struct, frozen=True, array_like=True, tag_field="type"):
    """Base of all messages: immutable, encoded as an array."""


# ---- both links ------------------------------------------------------------------------------------------------------


class Heartbeat(_Message, frozen=True, tag=1):
    """I am alive. ``sent_us`` is the sender's clock; ``echo_us`` is the newest one received from the peer (0 = none),
    and ``held_us`` how long it was kept, so that the peer can subtract it from the round trip it measures.

    ``coming_bytes``: the next message has tensors of so many bytes, and is no silence while it is on its way; such a
    heartbeat is no part of a round trip."""

    sent_us: int
    echo_us: int = 0
    held_us: int = 0
    coming_bytes: Size = 0


class Failed(_Message, frozen=True, tag=2):
    """An error. ``subject`` is the session or request it ends; None means the connection."""

    code: Name
    message: Name
    subject: Number | None = None
    param: Name | None = None
    retry_after_s: float | None = None


class Drain(_Message, frozen=True, tag=3):
    """I take nothing new and stop in ``within_s`` seconds; finish what is open or take it elsewhere."""

    within_s: float


# ---- device <-> cloud ------------------------------------------------------------------------------------------------


class DeviceHello(_Message, frozen=True, tag=10):
    """A device introduces itself: it will send hidden states ``[rows, hidden_size]`` that enter layer ``first_layer``
    and wants them back as they leave layer ``last_layer - 1``."""

    name: Name
    credential: Name
    model: Name
    digest: Name
    first_layer: Count
    last_layer: Count
    hidden_size: Count
    dtype: Name


class CloudWelcome(_Message, frozen=True, tag=11):
    """The cloud accepts a device and says what it may do.

    ``window_rows``: rows a session may have sent and not yet had answered (its credit); every forward is answered by
    exactly one result or failure, which gives its rows back. ``max_rows``: rows in one forward. ``max_positions``:
    positions of one session. ``max_sessions``: sessions this device may have open. ``resume_token``: what a ``Resume``
    on a later connection must show; the sessions of this one are kept for ``resume_s`` seconds after it ends.
    """

    name: Name
    window_rows: Count
    max_rows: Count
    max_positions: Count
    max_sessions: Count
    resume_token: Name = ""
    resume_s: float = 0.0


class Open(_Message, frozen=True, tag=12):
    """Begin session ``session`` that may reach ``positions`` positions. Not answered: a refusal comes as Failed.

    ``prompt``: rows that will come at once, as far as is known. ``expected``: positions it will probably reach (0 = not
    known). ``replayed``: these rows were in a cloud server before, which lost or gave up the session, so somebody waits
    for an answer that has begun.
    """

    session: Number
    positions: Count
    prompt: Count = 0
    expected: Count = 0
    replayed: bool = False


class Forward(_Message, frozen=True, tag=13):
    """New positions of a session: one tensor ``[rows, hidden_size]`` of the agreed dtype, its first row at absolute
    position ``position``. ``sequence`` counts a session's forwards from 0. The last ``want`` rows come back.

    With ``parents`` the rows are nodes behind ``position``, numbered from 0 in this forward. Each follows its parent: 0
    is the last position before, 1 the first node, and so on. They count for nothing: only a Keep, which makes a path of
    them the next positions, or a Truncate, which forgets them, may follow."""

    session: Number
    sequence: Count
    position: Count
    want: Count
    parents: Nodes | None = None


class Result(_Message, frozen=True, tag=14):
    """The answer to forward ``sequence``: a tensor ``[want, hidden_size]``, none when nothing was wanted.

    ``queue_us`` is how long it waited, ``step_us`` the time of the step that ran its last row, ``step_rows`` the rows
    of that step.
    """

    session: Number
    sequence: Count
    queue_us: Count
    step_us: Count
    step_rows: Count


class Truncate(_Message, frozen=True, tag=15):
    """Forget every position of a session from ``position`` on. Takes effect in order with its forwards."""

    session: Number
    position: Count


class Keep(_Message, frozen=True, tag=22):
    """Of the rows that branch behind a session's position, those of ``nodes``, a path, are its next positions from now
    on; the others are forgotten. Takes effect in order with its forwards."""

    session: Number
    nodes: Nodes


class Close(_Message, frozen=True, tag=16):
    """End a session and free all it holds. Not answered."""

    session: Number


class Resume(_Message, frozen=True, tag=17):
    """Go on as ``session`` with what was ``old_session`` on the connection that had ``token``, cut back to
    ``position``; its forwards count from 0 again. Not answered: a refusal comes as Failed."""

    session: Number
    token: Name
    old_session: Number
    position: Count


class Park(_Message, frozen=True, tag=18):
    """This session's answer is complete, a next turn of the same conversation may follow: keep it while there is room.

    The next forward or truncate takes it up again; when it is given up first, that is told as Failed."""

    session: Number


class LinkState(_Message, frozen=True, tag=19):
    """What a device measures: bandwidth up and down in bytes a second (the paper's beta; 0 = not known yet) and the
    time of one drafting step in microseconds (gamma; 0 = it does not draft). Sent when it has changed."""

    up_bytes_s: Size
    down_bytes_s: Size
    draft_us: Count = 0


class Timing(_Message, frozen=True, tag=21):
    """Times a device has seen since the last such message, in microseconds: from handing over the first row of a prompt
    to its answer (TTFT), and between the answers that followed (TBT)."""

    ttft_us: Times
    tbt_us: Times


class Advice(_Message, frozen=True, tag=20):
    """How to cut prompts into chunks: sizes in rows. With ``session``, those of its rows from position ``begin`` on;
    without, the one size for any prompt that has no advice of its own. Obeyed from the next chunk on."""

    sizes: Annotated[list[Count], msgspec.Meta(min_length=1, max_length=MAX_CHUNKS)]
    session: Number | None = None
    begin: Count = 0


# ---- gateway <-> agent -----------------------------------------------------------------------------------------------


class ServedModel(msgspec.Struct, frozen=True, array_like=True):
    """A model an agent serves: its id for clients and the positions (prompt and answer) one request may have.

    ``drafts``: the drafters a request may name, the agent's own choice first; empty where the agent never drafts.
    """

    id: Name
    max_positions: Count
    created: Count
    drafts: Annotated[list[Name], msgspec.Meta(max_length=16)] = []


class AgentHello(_Message, frozen=True, tag=30):
    """An agent introduces itself: the models it serves and the requests it runs at once."""

    name: Name
    credential: Name
    models: Annotated[list[ServedModel], msgspec.Meta(min_length=1, max_length=64)]
    capacity: Count


class GatewayWelcome(_Message, frozen=True, tag=31):
    """The gateway accepts an agent."""

    name: Name


class ChatTurn(msgspec.Struct, frozen=True, array_like=True):
    """One message of a conversation; ``content`` is plain text."""

    role: Name
    content: str
    name: Name | None = None


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


class Generate(_Message, frozen=True, tag=32):
    """Answer one prompt ``n`` times: ``prompt`` is a conversation, plain text, or token ids.

    ``max_tokens`` None means as many as fit and the agent allows. ``logprobs`` None means none, else how many
    alternatives to each token.
    ``echo`` puts the prompt's text before the answer. ``tenant`` tells clients apart whose prompts must not share
    anything: a digest of the key they showed, empty where none is needed. ``draft`` names the drafter to draft with,
    ``none`` for plain decoding; empty: the agent's own choice.
    """

    request: Number
    request_id: Name
    model: Name
    prompt: list[ChatTurn] | str
    prompt_ids: list[int] | None = None
    n: Count = 1
    max_tokens: Count | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    echo: bool = False
    logprobs: Count | None = None
    sampling: Sampling = Sampling()
    tenant: Name = ""
    draft: Name = ""


class Cancel(_Message, frozen=True, tag=33):
    """Nobody waits for this request any more: stop and free what it holds. Not answered."""

    request: Number


class Accepted(_Message, frozen=True, tag=34):
    """The agent has taken a request and its prompt has this many tokens."""

    request: Number
    prompt_tokens: Count


class Alternative(msgspec.Struct, frozen=True, array_like=True):
    """One token that might have come: its text (undecodable bytes replaced), log-probability and raw bytes."""

    text: str
    logprob: float
    raw: bytes


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The log-probability of one generated token and its likeliest alternatives, best first."""

    chosen: Alternative
    top: list[Alternative]


class Delta(_Message, frozen=True, tag=35):
    """More text of choice ``index``: complete characters only, never part of a stop string; ``tokens`` tokens new since
    the last delta of this choice (their text may come later, when it is complete)."""

    request: Number
    index: Count
    text: str
    tokens: Count
    logprobs: list[TokenLogprob] | None = None


class Spent(msgspec.Struct, frozen=True, array_like=True):
    """Where time went, in microseconds: on the device until it had sent all it asked, waiting in the cloud, in the
    cloud's step, and on the link: all that is left until the answer was there."""

    device_us: Size
    link_us: Size
    queue_us: Size
    step_us: Size


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """Where the time of one choice went, from one wanted answer of the cloud to the next: until the one that ended the
    prompt, and over the ``rounds`` after it."""

    prompt: Spent
    decode: Spent
    rounds: Count


class Finished(_Message, frozen=True, tag=36):
    """Choice ``index`` is complete: ``stop`` (an end token or stop string) or ``length``.

    ``timings``: where its time went; None where no cloud had part in it, or the agent does not say."""

    request: Number
    index: Count
    reason: Literal["stop", "length"]
    timings: Timings | None = None


class Done(_Message, frozen=True, tag=37):
    """All choices of a request are complete. ``cached_tokens`` of the prompt were left from an earlier turn.
    ``proposed`` tokens were drafted, all choices together, and ``accepted`` of them are in the answers."""

    request: Number
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count = 0
    proposed: Count = 0
    accepted: Count = 0


class AgentState(_Message, frozen=True, tag=38):
    """An agent's load, sent with changes: requests running, whether its cloud can be reached (None: it needs none)."""

    running: Count
    cloud_connected: bool | None = None


Message = Union[
    Heartbeat, Failed, Drain,
    DeviceHello, CloudWelcome, Open, Forward, Result, Truncate, Keep, Close, Resume, Park, LinkState, Timing,
    Advice,
    AgentHello, GatewayWelcome, Generate, Cancel, Accepted, Delta, Finished, Done, AgentState,
]  # fmt: skip

HELLOS = (DeviceHello, CloudWelcome, AgentHello, GatewayWelcome)
