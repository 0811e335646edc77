"""What a portal takes its guests' notes for: who may take part, who has to measure itself, and who is sent away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from clouds import until
from group_plans import TINY_CAUSAL, device
from msgspec import msgpack
from msgspec.structs import replace

from device_agent.group.formation.company import Company
from device_agent.group.formation.measures import Measures
from device_agent.group.formation.roll import Roll
from device_agent.group.messages.notes import Card, Device, Measure, Note, StepsDone, Trial, written
from device_agent.planning.profile import DeviceProfile
from device_agent.planning.table import Table
from peers.membership import Attendance, attend
from peers.rendezvous import listening
from wire.errors import Code, ConnectionFailed

KEY = "a secret of this test"
CARD = written(Card("digest"))


@asynccontextmanager
async def met(measures: Measures | None) -> AsyncIterator[tuple[Company, Attendance]]:
    """A portal that takes anybody, and a guest called "guest" who has said nothing yet."""
    async with (
        listening("127.0.0.1", 0, KEY, distinct=True) as rendezvous,
        attend(f"127.0.0.1:{rendezvous.port}", KEY, "guest") as guest,
    ):
        await until(lambda: bool(rendezvous.guests))
        yield Company(rendezvous, Roll(3, "portal", False), "digest", "float32", measures), guest


async def test_a_guest_says_what_it_has_and_measures_itself() -> None:
    """Before that it takes no part; and it is asked once."""
    measures = Measures("digest", "float32")
    async with met(measures) as (company, guest):
        heard: list[bytes] = []
        guest.noted = heard.append
        assert company.taking_part() == () and company.here == ["guest"]
        guest.note(CARD)
        await until(lambda: company.taking_part() == () and len(heard) == 2)
        assert set(heard) == {written(Measure("float32")), written(Trial())} and company.measuring == ["guest"]
        guest.note(written(Device(device("guest", TINY_CAUSAL, 1e9))))
        await until(lambda: company.taking_part() == ("guest",))
        assert measures.knows("guest") and company.measuring == [] and len(heard) == 2
        guest.note(written(StepsDone(1, 5, 0.5)))
        guest.note(written(Trial(7.0)))
        await until(lambda: company.taking_part() == ("guest",) and company.trials == {"guest": 7.0})
        assert company.done == {"guest": StepsDone(1, 5, 0.5)}


TIMES = device("guest", TINY_CAUSAL, 1e9).seconds


def of_seconds(part: str, seconds: float) -> DeviceProfile:
    """A device of which one part takes so long, whatever its size."""
    table = Table(TIMES[part].axes, (seconds,) * len(TIMES[part].seconds))
    return replace(device("guest", TINY_CAUSAL, 1e9), seconds=TIMES | {part: table})


LIES: dict[str, bytes] = {
    "rubbish": b"\xc1",
    "another's device": written(Device(device("portal", TINY_CAUSAL, 1e9))),
    "a request to its portal": written(Measure("float32")),
    "a time that cannot be": CARD[:-1] + b"\xcb" + bytes(8),
    "a product that takes no time": msgpack.encode([5, of_seconds("up", 0.0)]),
    "a product that takes for ever": msgpack.encode([5, of_seconds("down", 1e308)]),
}


@pytest.mark.parametrize("lie", LIES)
async def test_who_says_what_cannot_be_is_sent_away(lie: str) -> None:
    """And told so."""
    async with met(Measures("digest", "float32")) as (company, guest):
        guest.note(CARD)
        guest.note(LIES[lie])
        await until(lambda: company.taking_part() == () and not company.here)
        with pytest.raises(ConnectionFailed) as refused:
            await guest.place()
        assert refused.value.code is Code.BAD_FRAME


@pytest.mark.parametrize(
    ("card", "code", "why"),
    [
        (Card("another"), Code.DIGEST_MISMATCH, "weights are not the portal's"),
        (Card("digest", "bfloat16"), Code.DTYPE_MISMATCH, "computes in bfloat16, the group in float32"),
    ],
)
async def test_who_has_another_model_is_refused(card: Note, code: Code, why: str) -> None:
    """By a code that says that another try would not help."""
    async with met(None) as (company, guest):
        guest.note(written(card))
        await until(lambda: company.taking_part() == () and not company.here)
        with pytest.raises(ConnectionFailed, match=why) as refused:
            await guest.place()
        assert refused.value.code is code
