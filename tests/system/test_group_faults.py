"""Groups of devices of every kind while members, the portal or the gateway die, hang or leave: a plain answer, a
conversation's second turn and a drafted answer at once, each compared with transformers'.

One group a mode; the rows are those of ``docs/results/faults.md``.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest
from faults.household import MEMBERS, Household, household
from faults.judging import judge
from faults.notes import note
from faults.shapes import AT, SHAPES, Asked, body_of
from faults.slow_reader import check_slow_reader
from installation import wait_until
from streamed import stream_answer

from peers.reader import SILENT_S
from service.modes import MODES

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

GROUPS: Final = [name for name, mode in MODES.items() if mode.group]
CLOSED_WITHIN_S: Final = 3.0
"""An end of a connection is noticed by then on any machine; the goal is a second."""
ASLEEP_S: Final = 20.0
FREED_WITHIN_S: Final = 3.0
"""On any machine, long before answers of 1500 tokens are over by themselves; hundredths of a second are usual."""
LOST: Final = ("portal", "the group is lost")
every_mode: Final = pytest.mark.parametrize("house", GROUPS, indirect=True, scope="module")


@dataclass(frozen=True)
class Fault:
    """What is done, how people would say it, who notices by which line of its log and within what time; whether the
    answers end with an error."""

    do: Callable[[Household], None]
    injected: str
    noticed: tuple[str, ...] = LOST
    within_s: float = CLOSED_WITHIN_S
    ends: bool = False


def leave(house: Household) -> None:
    """As whoever is asked to end leaves."""
    house.breaks()
    house.send(MEMBERS[0], signal.SIGTERM)


def stop(house: Household) -> None:
    """SIGSTOP, and SIGCONT when it has long been given up."""
    house.stop(MEMBERS[0])
    threading.Timer(ASLEEP_S, partial(house.send, MEMBERS[0], signal.SIGCONT)).start()


FAULTS: Final = {
    "F1": Fault(
        lambda house: house.kill("portal"), "kill -9 of the portal", ("gateway", "agent disconnected"), ends=True
    ),
    "F3": Fault(lambda house: house.kill(MEMBERS[1]), "kill -9 of a member"),
    "F4": Fault(lambda house: house.kill(*MEMBERS), "kill -9 of all members; the portal goes on alone"),
    "F5": Fault(lambda house: house.kill("gateway"), "kill -9 of the gateway", ("portal", "no gateway"), ends=True),
    "F15": Fault(leave, "SIGTERM to a member, then its successor"),
    "F18": Fault(stop, "SIGSTOP of a member, SIGCONT after 20 s", within_s=SILENT_S + 3.0),
}


@pytest.fixture(scope="module")
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Household]]:
    """A gateway, a portal and two members of one mode; whoever breaks one of them mends it."""
    mode: str = request.param
    with household(mode, tmp_path_factory.mktemp(mode)) as house:
        yield mode, house


@pytest.mark.parametrize("row", FAULTS)
@every_mode
def test_a_fault(row: str, house: tuple[str, Household]) -> None:
    """The answers go on with transformers' tokens, or end with an error where whoever had the text is gone; it is
    noticed in time; afterwards all compute again, and the same is answered as ever."""
    (mode, here), fault = house, FAULTS[row]
    here.mend()
    here.broken_at = (0.0, 0.0)
    asked = Asked(here.base, do=lambda: fault.do(here))
    asked.begin()
    answers = asked.answers()
    broken_s = here.broken_at[1]
    wait_until(lambda: here.noticed(*fault.noticed) is not None, 2 * fault.within_s)
    noticed_s = here.noticed(*fault.noticed)
    if row == "F18":
        time.sleep(max(0.0, broken_s + ASLEEP_S + 1.0 - time.monotonic()))
    judge(asked, answers, broken_s, fault.injected, noticed_s=noticed_s, ends=fault.ends, setting=mode)
    assert noticed_s is not None and noticed_s <= fault.within_s
    here.mend()
    again = Asked(here.base)
    for name, answer in again.answers().items():
        assert (answer.text, answer.done) == (again.expected(name), True), (name, answer.error)


class Left(Exception):
    """The client hangs up."""


@every_mode
def test_clients_that_leave(house: tuple[str, Household]) -> None:
    """In the middle of their answers: the work ends, and who comes next is answered as ever."""
    mode, here = house
    here.mend()
    asked = Asked(here.base)
    there = threading.Barrier(len(SHAPES))

    def seen(count: int) -> None:
        if count == AT:
            there.wait(60)
            raise Left

    def leave(name: str) -> None:
        body: dict[str, Any] = body_of(asked.turns[name], 1500, SHAPES[name].draft)
        with pytest.raises(Left):
            stream_answer(here.base, body, seen)

    with ThreadPoolExecutor(len(SHAPES)) as pool:
        for each in [pool.submit(leave, name) for name in SHAPES]:
            each.result()
    began = time.monotonic()
    wait_until(lambda: here.running() == 0, FREED_WITHIN_S)
    note(mode, "the client hangs up in the middle of its answer", "nothing: it is gone; all of it is free again",
         recovered_s=time.monotonic() - began)  # fmt: skip
    for name, answer in asked.answers().items():
        assert answer.text == asked.expected(name), name


@every_mode
def test_a_client_that_reads_nothing(house: tuple[str, Household]) -> None:
    """It is given up; who is answered beside it has the same tokens."""
    mode, here = house
    here.mend()
    check_slow_reader(here.base, here.running, mode)
