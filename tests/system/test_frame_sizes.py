"""What the lengths of messages say to whoever sees them pass, on the way to the cloud and to the gateway: how long each
prompt is, to the token; with ``--pad-frames`` nothing, prompts of one bucket are alike.

Row S19 of ``docs/results/faults.md``. When something passes is not hidden; ``make bench-privacy`` says what it tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from faults.notes import note
from faults.proxied import on_a_thread
from faults.shapes import body_of, tokenizer, wanted
from faults.split import THREAD
from installation import Installation
from processes import free_port
from streamed import stream_answer

from device_agent.auditing.rhythm import RowSize
from device_agent.auditing.tap import Tap
from device_agent.auditing.transcript import Passed
from wire.limits import FRAME_MARGIN_BYTES, LEAST_BUCKET_BYTES
from wire.request_messages import ChatTurn

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(300)]

BEGINNINGS: Final = ("Where is the fox", "Who has seen the hen", "Tell me of the river")
"""None of the prompts goes on with what is kept of another."""
BUCKET: Final = range(17, 33)
"""Tokens of prompts whose rows fill the same bucket."""
LONGER: Final = 5
"""Tokens by which each is longer than the one before, at least."""
TOKENS: Final = 12
ROW: Final = RowSize(4 * 256, 1.0)
"""Of the demo model, in float32."""
WIRES: Final = ("cloud", "gateway")

Lengths = dict[str, Sequence[tuple[bool, int]]]
"""By wire, of all messages that passed: whether it came from the device, and its bytes."""


def prompts() -> dict[int, str]:
    """Questions by their tokens, all within the bucket."""
    found: dict[int, str] = {}
    for at, text in enumerate(BEGINNINGS):
        count = 0
        while count < BUCKET.start + LONGER * at:
            text += " and the house"
            count = len(tokenizer().chat([ChatTurn("user", text)]))
        found[count] = text
    assert len(found) == len(BEGINNINGS) and set(found) <= set(BUCKET), sorted(found)
    return found


def watched(folder: Path, *settings: str) -> dict[int, Lengths]:
    """What passes on both wires while each prompt is answered, by its tokens; the answers are transformers'."""
    ports = {wire: free_port() for wire in WIRES}
    seen: dict[int, Lengths] = {}
    with ExitStack() as stack:
        taps = {
            wire: stack.enter_context(on_a_thread(partial(Tap, f"ws://127.0.0.1:{port}")))
            for wire, port in ports.items()
        }
        device = (*THREAD, "--pack-rows", "off", "--chunk", "64", *settings)
        site = stack.enter_context(
            Installation(
                folder, forked=True, cloud_settings=THREAD, device_settings=device,
                cloud_port=ports["cloud"], cloud_url=taps["cloud"].url,
                gateway_port=ports["gateway"], gateway_url=taps["gateway"].url,
            )
        )  # fmt: skip
        for count, text in prompts().items():
            turns = (("user", text),)
            before = {wire: len(tap.passed) for wire, tap in taps.items()}
            answer = stream_answer(site.base, body_of(turns, TOKENS))
            assert answer.text == wanted(turns, TOKENS)
            seen[count] = {wire: lengths(tap.passed[before[wire] :]) for wire, tap in taps.items()}
        assert [tap.connections for tap in taps.values()] == [1, 1]
    return seen


def lengths(passed: Sequence[Passed]) -> Sequence[tuple[bool, int]]:
    """All that an onlooker knows of them, but for when they passed."""
    return [(each.up, len(each.data)) for each in passed]


def told(seen: Lengths) -> int:
    """The prompt's tokens, as its longest message to the cloud has it."""
    return ROW.rows(max(size for up, size in seen["cloud"] if up))


def is_bucket(size: int) -> bool:
    """Whether a message may be so long where all are padded."""
    rows = size - FRAME_MARGIN_BYTES
    return rows >= LEAST_BUCKET_BYTES and rows.bit_count() == 1


def test_what_lengths_tell(tmp_path: Path) -> None:
    """Without padding each prompt's tokens, and different requests at the gateway; with it the same for all of them."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "padded").mkdir()
    plain, padded = watched(tmp_path / "plain"), watched(tmp_path / "padded", "--pad-frames")
    right = sum(told(seen) == count for count, seen in plain.items())
    alike = len({told(seen) for seen in padded.values()}) == 1
    saw = f"{right} of {len(plain)} told to the token without padding, " + ("none" if alike else "some") + " with it"
    note("", "S19: prompts of one bucket, seen on their way to the cloud", saw, compared=2 * TOKENS * len(plain))
    assert right == len(plain), {count: told(seen) for count, seen in plain.items()}
    assert len({max(size for up, size in seen["gateway"] if not up) for seen in plain.values()}) == len(plain)
    for wire in WIRES:
        sizes = [{size for _, size in seen[wire]} for seen in padded.values()]
        assert all(is_bucket(size) for each in sizes for size in each), (wire, sizes)
        assert all(each == sizes[0] for each in sizes), (wire, sizes)
        assert not all(is_bucket(size) for seen in plain.values() for _, size in seen[wire]), wire
    assert alike
