"""Between device and cloud: a submodel's verbs, and what goes with them, as messages."""

from __future__ import annotations

from typing import Annotated, Final, Union

import msgspec

from wire.errand import Errand
from wire.limits import MAX_CHUNKS
from wire.message import Count, Message, Name, Nodes, Number, Size, Times
from wire.observed_messages import CloudState


class DeviceHello(Message, frozen=True, tag=10):
    """A device introduces itself: it will send hidden states ``[rows, hidden_size]`` that enter layer ``first_layer``
    and wants them back as they leave layer ``last_layer - 1``. ``pads``: it wants frames padded, both ways
    (``padding.py``). ``takes_state``: it knows ``CloudState``."""

    name: Name
    credential: Name
    model: Name
    digest: Name
    first_layer: Count
    last_layer: Count
    hidden_size: Count
    dtype: Name
    pads: bool = False
    takes_state: bool = False


UNNAMED: Final = "cloud"
"""What older cloud servers are called, all of them; the names of others begin with it."""


class CloudWelcome(Message, frozen=True, tag=11):
    """The cloud accepts a device and says what it may do.

    ``window_rows``: rows a session may have sent and not yet had answered (its credit); every forward is answered by
    exactly one result or failure, which gives its rows back. ``max_rows``: rows in one forward. ``max_positions``:
    positions of one session. ``max_sessions``: sessions this device may have open. ``resume_token``: what a ``Resume``
    on a later connection must show; the sessions of this one are kept for ``resume_s`` seconds after it ends.
    ``pads``: frames are padded from here on, as the device asked. ``version``: the release of the cloud server; empty:
    one that does not say. ``name``: another for each process; of older releases it is ``UNNAMED``.
    """

    name: Name
    window_rows: Count
    max_rows: Count
    max_positions: Count
    max_sessions: Count
    resume_token: Name = ""
    resume_s: float = 0.0
    pads: bool = False
    version: Name = ""


class Open(Message, frozen=True, tag=12):
    """Begin session ``session`` that may reach ``positions`` positions. Not answered: a refusal comes as Failed.

    ``prompt``: rows that will come at once, as far as is known. ``expected``: positions it will probably reach (0 = not
    known). ``replayed``: these rows were in a cloud server before, which lost or gave up the session, so somebody waits
    for an answer that has begun. ``errand``: what it works for, until it is parked.
    """

    session: Number
    positions: Count
    prompt: Count = 0
    expected: Count = 0
    replayed: bool = False
    errand: Errand | None = None


class Forward(Message, frozen=True, tag=13):
    """New positions of a session: one tensor ``[rows, hidden_size]`` of the agreed dtype, its first row at absolute
    position ``position``. ``sequence`` counts a session's forwards from 0. The last ``want`` rows come back.

    With ``parents`` the rows are nodes behind ``position``, numbered from 0 in this forward. Each follows its parent: 0
    is the last position before, 1 the first node, and so on. They count for nothing: only a Keep, which makes a path of
    them the next positions, or a Truncate, which forgets them, may follow.

    ``errand``: with the first forward of a next turn, what the session works for from now on."""

    session: Number
    sequence: Count
    position: Count
    want: Count
    parents: Nodes | None = None
    errand: Errand | None = None


class Result(Message, frozen=True, tag=14):
    """The answer to forward ``sequence``: a tensor ``[want, hidden_size]``, none when nothing was wanted.

    ``queue_us`` is how long it waited, ``step_us`` the time of the step that ran its last row, ``step_rows`` the rows
    of that step.
    """

    session: Number
    sequence: Count
    queue_us: Count
    step_us: Count
    step_rows: Count


class Truncate(Message, frozen=True, tag=15):
    """Forget every position of a session from ``position`` on. Takes effect in order with its forwards."""

    session: Number
    position: Count


class Keep(Message, frozen=True, tag=22):
    """Of the rows that branch behind a session's position, those of ``nodes``, a path, are its next positions from now
    on; the others are forgotten. Takes effect in order with its forwards."""

    session: Number
    nodes: Nodes


class Close(Message, frozen=True, tag=16):
    """End a session and free all it holds. Not answered."""

    session: Number


class Resume(Message, frozen=True, tag=17):
    """Go on as ``session`` with what was ``old_session`` on the connection that had ``token``, cut back to
    ``position``; its forwards count from 0 again. Not answered: a refusal comes as Failed. ``errand`` as in Open."""

    session: Number
    token: Name
    old_session: Number
    position: Count
    errand: Errand | None = None


class Fork(Message, frozen=True, tag=23):
    """Begin ``session`` with the first ``position`` positions of session ``source``, of which all are answered; it may
    reach as far. What ``source`` does before and afterwards is its own. Not answered: a refusal comes as Failed.
    ``errand`` as in Open."""

    session: Number
    source: Number
    position: Count
    errand: Errand | None = None


class Park(Message, frozen=True, tag=18):
    """This session's answer is complete, a next turn of the same conversation may follow: keep it while there is room.

    The next forward or truncate takes it up again; when it is given up first, that is told as Failed."""

    session: Number


class LinkState(Message, frozen=True, tag=19):
    """What a device measures: bandwidth up and down in bytes a second (the paper's beta; 0 = not known yet) and the
    time of one drafting step in microseconds (gamma; 0 = it does not draft). Sent when it has changed."""

    up_bytes_s: Size
    down_bytes_s: Size
    draft_us: Count = 0


class Timing(Message, frozen=True, tag=21):
    """Times a device has seen since the last such message, in microseconds: from handing over the first row of a prompt
    to its answer (TTFT), and between the answers that followed (TBT)."""

    ttft_us: Times
    tbt_us: Times


class Advice(Message, frozen=True, tag=20):
    """How to cut prompts into chunks: sizes in rows. With ``session``, those of its rows from position ``begin`` on;
    without, the one size for any prompt that has no advice of its own, and behind it the most rows of a first chunk,
    which no advice for its prompt can reach in time. Obeyed from the next chunk on."""

    sizes: Annotated[list[Count], msgspec.Meta(min_length=1, max_length=MAX_CHUNKS)]
    session: Number | None = None
    begin: Count = 0


FromDevice = Union[Open, Forward, Truncate, Keep, Close, Resume, Fork, Park, LinkState, Timing]
FromCloud = Union[Result, Advice, CloudState]
"""What each side may say once both have introduced themselves, beside what is said on every link."""

SessionMessage = Union[DeviceHello, CloudWelcome, FromDevice, FromCloud]
