"""Device and cloud while parts of them die, hang, drain or are cut off: a plain answer, a second turn and a
drafted answer at once, each compared with transformers'.

One installation for all of them; the rows are those of ``docs/results/faults.md``.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import httpx
import pytest
from bare_devices import news, rows
from checkpoints import DEMO
from clouds import device_hello
from faults.judging import judge
from faults.notes import note
from faults.shapes import AT, SHAPES, Asked, body_of
from faults.split import Split, split_site
from installation import wait_until
from streamed import stream_answer

from wire.connection import Role
from wire.errors import Code
from wire.limits import CLOUD_LINK, DEAD_AFTER_S
from wire.message import Failed
from wire.session_messages import Forward, Open
from wire.stream import dial

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

CLOSED_WITHIN_S: Final = 3.0
"""An end of a connection is noticed by then on any machine; the goal is a second."""
SILENT_WITHIN_S: Final = DEAD_AFTER_S + 0.5
"""Who says nothing is given up by then: 15 s."""
ASLEEP_S: Final = 20.0
FREED_WITHIN_S: Final = 3.0
"""On any machine, long before answers of 1500 tokens are over by themselves; hundredths of a second are usual."""
HIDDEN: Final = 256
"""Of the demo model."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    """Gateway, device, two clouds; whoever breaks one of them mends it."""
    with split_site(tmp_path_factory.mktemp("split")) as site:
        yield site


def cut(site: Split) -> None:
    """The connection to the cloud that serves ends, and can be dialled again at once."""
    site.breaks()
    site.way.cut()


def kill_serving(site: Split) -> None:
    """kill -9."""
    site.kill(site.serving())


def kill_all(site: Split) -> None:
    """No cloud is left: who asks is sent away for a while, by an error that says so. Then there is one again."""
    site.kill("cloud", "standby")
    wait_until(lambda: refused(site), 20)
    site.installation.start_cloud()


def refused(site: Split) -> bool:
    """Whether a new request is answered 503 with a time to come back."""
    body = {**body_of((("user", "Hello"),), 1)}
    reply = httpx.post(f"{site.base}/chat/completions", json=body, timeout=60, trust_env=False)
    return reply.status_code == 503 and "Retry-After" in reply.headers


def drain(site: Split) -> None:
    """As a rolling update ends a process, and starts the next one in its place."""
    name = site.serving()
    site.breaks()
    site.send(name, signal.SIGTERM)


def stop_serving(site: Split) -> None:
    """SIGSTOP, and SIGCONT when it has long been given up."""
    name = site.serving()
    site.stop(name)
    threading.Timer(ASLEEP_S, partial(site.send, name, signal.SIGCONT)).start()


def send_nan(site: Split) -> None:
    """Another device of the same cloud sends rows that are not finite."""
    port = site.installation.cloud_port if site.serving() == "cloud" else site.installation.standby_port
    site.breaks()

    async def attack() -> None:
        async with dial(f"ws://127.0.0.1:{port}/device", Role.DEVICE, CLOUD_LINK) as stream:
            stream.post(device_hello(DEMO, 2, 0))
            await stream.receive()
            stream.post(Open(1, 50))
            stream.post(Forward(1, 0, 0, 1), [rows(2, HIDDEN, fill=float("nan"))])
            failed = await news(stream)
            assert isinstance(failed, Failed) and failed.code == Code.NOT_FINITE.value, failed

    asyncio.run(attack())


@dataclass(frozen=True)
class Fault:
    """What is done, how people would say it, who notices by which lines of its log and within what time; whether the
    answers end with an error; whether there is no other cloud, so that they go on where keys and values still are.
    """

    do: Callable[[Split], None]
    injected: str
    noticed: tuple[str, ...] | None = ("device", "no cloud", "session attached again")
    within_s: float = CLOSED_WITHIN_S
    ends: bool = False
    alone: bool = False


FAULTS: Final = {
    "F1": Fault(
        lambda site: site.kill("device"), "kill -9 of the device", ("gateway", "agent disconnected"), ends=True
    ),
    "F2": Fault(cut, "its connection to the cloud ended, the cloud's address reachable at once", alone=True),
    "F3": Fault(kill_serving, "kill -9 of the cloud that serves, another there"),
    "F4": Fault(kill_all, "kill -9 of both clouds; one started again once clients were refused"),
    "F5": Fault(lambda site: site.kill("gateway"), "kill -9 of the gateway", ("device", "no gateway"), ends=True),
    "F6": Fault(Split.silence, "nothing gets through to the cloud, no end of the connection", within_s=SILENT_WITHIN_S),
    "F6 alone": Fault(
        Split.hush,
        "nothing gets through on the connection to the only cloud, whose address is reachable",
        within_s=SILENT_WITHIN_S,
        alone=True,
    ),
    "F11": Fault(send_nan, "another device sends rows with NaN into the same steps", None),
    "F15": Fault(drain, "SIGTERM to the cloud that serves, then its successor", ("device", "cloud drains")),
    "F18": Fault(stop_serving, "SIGSTOP of the cloud that serves, SIGCONT after 20 s", within_s=SILENT_WITHIN_S),
}


@pytest.mark.parametrize("row", FAULTS)
def test_a_fault(row: str, site: Split) -> None:
    """The answers go on with transformers' tokens, or end with an error where whoever had the text is gone; it is
    noticed in time; afterwards the same is answered as ever, and the clouds have nothing left of before."""
    fault = FAULTS[row]
    site.mend()
    asked = Asked(site.base, do=lambda: fault.do(site))
    asked.begin()
    if fault.alone:
        site.kill("standby")
    site.broken_at = (0.0, 0.0)
    resumes = site.installation.cloud_metric("num_resumes_total")
    answers = asked.answers()
    broken_s, noticed_s = site.broken_at[1], None
    if fault.noticed is not None:
        said = partial(site.noticed, *fault.noticed, about=f":{site.way.port}/" if fault.alone else "")
        wait_until(lambda: said() is not None, 2 * fault.within_s + 10.0)
        noticed_s = said()
    if row == "F18":
        time.sleep(max(0.0, broken_s + ASLEEP_S + 1.0 - time.monotonic()))
    judge(asked, answers, broken_s, fault.injected, noticed_s=noticed_s, ends=fault.ends)
    if fault.alone:
        assert site.installation.cloud_metric("num_resumes_total") - resumes >= len(SHAPES), "rows were sent anew"
    assert noticed_s is None or noticed_s <= fault.within_s
    site.mend()
    again = Asked(site.base)
    for name, answer in again.answers().items():
        assert (answer.text, answer.done) == (again.expected(name), True), (name, answer.error)
    wait_until(lambda: site.open_sessions() == 0, 60)


class Left(Exception):
    """The client hangs up."""


def test_clients_that_leave(site: Split) -> None:
    """In the middle of a prompt, of an answer, and while it waits: the work ends, and all is free again soon."""
    site.mend()
    asked = Asked(site.base)
    asked.begin()
    there = threading.Barrier(len(SHAPES))

    def leave(name: str) -> None:
        def seen(count: int) -> None:
            if count == AT:
                there.wait(60)
                raise Left

        body = body_of(asked.turns[name], 1500, SHAPES[name].draft)
        with pytest.raises(Left):
            stream_answer(site.base, body, seen)

    with ThreadPoolExecutor(len(SHAPES)) as pool:
        for each in [pool.submit(leave, name) for name in SHAPES]:
            each.result()
    began = time.monotonic()
    wait_until(lambda: site.open_sessions() == 0 and site.running() == 0, FREED_WITHIN_S)
    for name in SHAPES:
        note(name, "the client hangs up in the middle of its answer", "nothing: it is gone; all of it is free again",
             recovered_s=time.monotonic() - began)  # fmt: skip
    with httpx.Client(trust_env=False) as client:  # A prompt of many chunks, of which some are on their way.
        body = body_of((("user", "The fox and the hen went home. " * 180),), 24)
        with pytest.raises(httpx.ReadTimeout):
            client.post(f"{site.base}/chat/completions", json=body, timeout=0.3)
    wait_until(lambda: site.open_sessions() == 0 and site.running() == 0, FREED_WITHIN_S)
    for name, answer in asked.answers().items():
        assert answer.text == asked.expected(name), name
