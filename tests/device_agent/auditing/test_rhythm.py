"""What an onlooker makes of lengths, by frames as they really leave."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from device_agent.auditing.rhythm import Inferred, Length, RowSize, inferred
from wire.frames import Tensor, encode
from wire.limits import PART_BYTES
from wire.message import Heartbeat
from wire.messages import AnyMessage
from wire.parts import first_part, further_part, goes_in_parts
from wire.session_messages import Advice, Close, Forward, LinkState, Open, Result, Truncate

HIDDEN = 256
ROW = RowSize(4 * HIDDEN, 0.85)


class Talk:
    """Messages of one session; a tick passes with each."""

    def __init__(self, session: int = 1) -> None:
        self.session = session
        self.messages: list[Length] = []
        self.position = self.sequence = 0

    def say(self, up: bool, message: AnyMessage, rows: int = 0, packed: float = 0.0) -> None:
        """One message, in parts where it is long."""
        tensors = []
        if rows:
            size = int(4 * HIDDEN * rows * packed) if packed else 4 * HIDDEN * rows
            tensors = [Tensor("float32", (rows, HIDDEN), bytes(size), packed=bool(packed))]
        data = memoryview(encode(message, tensors))
        pieces = [data]
        if goes_in_parts(len(data)):
            further = [memoryview(further_part(1, data, at)) for at in range(PART_BYTES, len(data), PART_BYTES)]
            pieces = [memoryview(first_part(1, data)), *further]
        self.messages += [Length(up, float(len(self.messages) + at), len(piece)) for at, piece in enumerate(pieces)]

    def prompt(self, chunks: Sequence[int], packed: float = 0.0) -> None:
        """Sent in chunks, all on their way before the first is answered."""
        self.say(True, Open(self.session, 200, sum(chunks), 300))
        for rows in chunks:
            self.say(True, Forward(self.session, self.sequence, self.position, 0), rows, packed)
            self.position += rows
            self.sequence += 1
        self.say(False, Advice([64]))
        for at in range(len(chunks) - 1):
            self.say(False, Result(self.session, at, 10, 2000, 64))
        self.say(False, Result(self.session, len(chunks) - 1, 10, 2000, 64), 1)

    def round(self, drafted: int, accepted: int) -> None:
        """A draft, its answer, and what was wrong of it taken back."""
        self.say(True, Forward(self.session, self.sequence, self.position, 1 + drafted), 1 + drafted)
        self.say(False, Result(self.session, self.sequence, 10, 2000, 3), 1 + drafted)
        self.sequence += 1
        self.position += 1 + accepted
        if accepted < drafted:
            self.say(True, Truncate(self.session, self.position))

    def read(self) -> Inferred:
        """By the onlooker."""
        return inferred(self.messages, ROW, self.session)


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=5),
    st.lists(st.integers(0, 8).flatmap(lambda drafted: st.tuples(st.just(drafted), st.sampled_from([0, drafted])))),
    st.sampled_from([1, 127, 128, 256, 70000]),
)
def test_lengths_say_prompt_and_rounds(chunks: list[int], rounds: list[tuple[int, int]], session: int) -> None:
    """The prompt to the token, in parts or not; every round; and what it chose, where all of a draft or none was right
    of one token: what was right of a longer one is a guess."""
    talk = Talk(session)
    talk.prompt(chunks)
    for drafted, accepted in rounds:
        talk.round(drafted, accepted)
    talk.say(True, Close(session))
    found = talk.read()
    assert found.prompt == sum(chunks)
    assert len(found.rounds) == len(found.round_s) == len(rounds)
    for (drafted, accepted), tokens in zip(rounds, found.rounds, strict=True):
        if accepted == drafted or drafted == 1:
            assert tokens == 1 + accepted
        else:
            assert 1 <= tokens <= drafted


def test_packed_rows_are_nearly_measured() -> None:
    """By what packing saves on average, however it does in this frame."""
    talk = Talk()
    talk.prompt([60], packed=0.87)
    assert abs(talk.read().prompt - 60) <= 2


def test_other_messages_count_for_nothing() -> None:
    """Heartbeats, and what is told of a link."""
    talk = Talk()
    talk.prompt([40])
    talk.say(True, LinkState(10**8, 10**8, 900))
    talk.round(3, 3)
    talk.say(False, Heartbeat(10**9, 10**9, 500))
    talk.say(True, Heartbeat(10**9, 10**9, 500))
    talk.round(0, 0)
    found = talk.read()
    assert (found.prompt, found.rounds, found.answer) == (40, (4, 1), 6)


def test_nothing_passed() -> None:
    """No message, no tokens but the one that every answer has."""
    assert inferred([], ROW) == Inferred(0, (), ())
