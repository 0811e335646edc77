"""What is told for people who watch: of an agent's requests while a gateway's page is open, and of a cloud's load.

Numbers and names, never a text or a token id. All of it is a hint: nothing is decided by it. A peer is sent these
messages only where its hello says that it knows them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from wire.message import Count, Message, Name, Number, Size

MAX_OBSERVED: Final = 256
"""Requests of which one message tells."""

MAX_MARKS: Final = 1024
"""Chunks and rounds of which one message tells."""

MAX_WIRES: Final = 32
"""Connections of a device of which one message tells."""

Stage = Literal["reads", "waits", "prefills", "generates"]
"""What is being done for a request: its prompt is tokenised, it waits for its turn, the prompt's rows are computed, or
tokens are generated."""


class CloudFigures(msgspec.Struct, frozen=True, array_like=True):
    """A cloud server's load. ``steps``, their ``rows`` and ``step_us``, the microseconds that they took, count from its
    start; the others are as of now: sessions that are open and that are parked, rows that wait for a step, the most
    rows of a step, pages of keys and values in use and in all, and the devices connected. ``id``: a name that this
    process has made up, since many may stand behind one address; empty: an older one, which has none."""

    version: Name
    steps: Size
    rows: Size
    step_us: Size
    sessions: Count
    parked: Count
    waiting_rows: Count
    most_rows: Count
    pages_used: Count
    pages: Count
    devices: Count
    id: Name = ""


class CloudState(Message, frozen=True, tag=24):
    """From a cloud to a device, about once a second where it has changed."""

    figures: CloudFigures


class Observe(Message, frozen=True, tag=48):
    """From a gateway to an agent: say every ``every_ms`` milliseconds what you do; 0: no more."""

    every_ms: Count


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of a prompt or a round of an answer that is over since the last message: ended ``ago_us`` before this
    one, ``took_us`` after it was sent. ``rows``: those sent, of a round the last chosen token's and its draft's;
    ``accepted``: tokens of the draft."""

    request: Number
    kind: Literal["chunk", "round"]
    ago_us: Size
    took_us: Size
    rows: Count
    accepted: Count = 0


class ObservedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that an agent works on, all its choices together. Rows of its prompt: all of them, those left from an
    earlier turn, those sent on and those answered; tokens generated, rounds, tokens drafted and those accepted.
    ``restored``: how often its rows had to be brought to a cloud server again."""

    request: Number
    stage: Stage
    prompt_rows: Count = 0
    cached_rows: Count = 0
    sent_rows: Count = 0
    answered_rows: Count = 0
    tokens: Size = 0
    rounds: Size = 0
    drafted: Size = 0
    accepted: Size = 0
    restored: Count = 0


class Wire(msgspec.Struct, frozen=True, array_like=True):
    """A connection of a device: where to, for people; ``ready``, ``draining``, ``refused`` or ``away``; its last round
    trip (0: not measured) and the bytes that went over it since it began. ``cloud``: what the cloud server behind it
    said last."""

    to: Name
    state: Name
    rtt_us: Size = 0
    sent_bytes: Size = 0
    received_bytes: Size = 0
    cloud: CloudFigures | None = None


class Observed(Message, frozen=True, tag=49):
    """What an agent does now. ``lost_marks``: marks that this message had no room for."""

    version: Name
    mode: Name
    requests: Annotated[list[ObservedRequest], msgspec.Meta(max_length=MAX_OBSERVED)]
    marks: Annotated[list[Mark], msgspec.Meta(max_length=MAX_MARKS)]
    wires: Annotated[list[Wire], msgspec.Meta(max_length=MAX_WIRES)]
    lost_marks: Size = 0
