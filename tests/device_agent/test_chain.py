"""Chunks overlap: the device computes and uploads the next while earlier ones are on their way."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import chain_over, logits_of, until

from device_agent.chain.chain import ChainSession
from device_agent.chain.local import LocalSession, LocalSubmodel
from device_agent.chain.prefill import MAX_AHEAD, WHOLE_PROMPT
from device_agent.sharing.compute import Compute
from split_model.checkpoint import Checkpoint
from split_model.hints import Pace
from split_model.slices import middle_slice
from split_model.stack import Stack
from wire.errors import Code, SessionFailed


class SlowMiddle:
    """A middle submodel without layers that answers only when told to."""

    connected = True
    max_rows = 512
    max_positions = sys.maxsize
    nbytes = 0

    def __init__(self) -> None:
        self.hints = self
        self.branching = self.reading = None
        self.spent = None
        self.pace = Pace()
        self.chunk: int | None = None
        self.first_chunk: int | None = None
        self.advice: tuple[int, Sequence[int]] | None = None
        self.asked: list[tuple[torch.Tensor, int, asyncio.Future[torch.Tensor]]] = []
        self.position = 0
        self.closed = False

    def open(self, positions: int, prompt: int = 0, expected: int = 0) -> SlowMiddle:
        """One session is enough here."""
        return self

    def expect(self, prompt: int, expected: int) -> None:
        """Nothing to prepare."""

    def drafts_in(self, seconds: float) -> None:
        """Nobody to tell."""

    def park(self) -> None:
        """Nothing to give up."""

    def take_advice(self) -> tuple[int, Sequence[int]] | None:
        """Once."""
        advice, self.advice = self.advice, None
        return advice

    def forward(self, hidden: torch.Tensor, want: int) -> asyncio.Future[torch.Tensor]:
        """Remember what was asked."""
        answer = asyncio.get_running_loop().create_future()
        self.asked.append((hidden, want, answer))
        self.position += len(hidden)
        return answer

    def answer(self, number: int) -> None:
        """Give forward ``number`` its rows back, not before whoever has just asked waits for them."""
        hidden, want, answer = self.asked[number]
        asyncio.get_running_loop().call_soon(answer.set_result, hidden[len(hidden) - want :])

    def truncate(self, position: int) -> None:
        """Go back."""
        self.position = position

    def fork(self, position: int) -> SlowMiddle:
        """Nobody forks here."""
        raise AssertionError("no test of these forks the middle")

    def close(self) -> None:
        """Remember it."""
        self.closed = True


def session_over(tiny: Path, middle: SlowMiddle, compute: Compute, tail: int, chunk: int = 10) -> ChainSession:
    """A chain session in chunks of 10 tokens, where the cloud does not advise them."""
    return chain_over(tiny, 4 - tail, tail, middle, compute, chunk).open(200)


@pytest.mark.parametrize("tail", [0, 1])
async def test_chunks_are_handed_over_ahead_of_the_answers(tiny: Path, tail: int) -> None:
    """Several chunks are computed and sent before the first answer, no more than allowed, then one for each answer."""
    middle, compute = SlowMiddle(), Compute()
    session = session_over(tiny, middle, compute, tail, chunk=5)
    chunks = MAX_AHEAD + 4
    prefill = asyncio.create_task(logits_of(session, [5 + each % 90 for each in range(5 * chunks)]))
    await until(lambda: len(middle.asked) == MAX_AHEAD + 1)
    await asyncio.sleep(0.05)
    assert len(middle.asked) == MAX_AHEAD + 1
    for number in range(chunks):
        middle.answer(number)
        await until(lambda: len(middle.asked) >= min(chunks, MAX_AHEAD + 2 + number))  # noqa: B023
    assert (await prefill).shape == (1, 97)
    assert middle.position == session.position == 5 * chunks
    wants = [want for _, want, _ in middle.asked]
    assert wants == ([5] * chunks if tail else [0] * (chunks - 1) + [1]), "rows come back only where they are needed"
    session.close()
    assert middle.closed
    compute.stop()


async def test_a_failure_of_any_chunk_ends_the_prefill(tiny: Path) -> None:
    """It is raised to whoever waits, whatever the other chunks did."""
    middle, compute = SlowMiddle(), Compute()
    session = session_over(tiny, middle, compute, 0)
    prefill = asyncio.create_task(logits_of(session, list(range(5, 35))))
    await until(lambda: len(middle.asked) == 3)
    middle.answer(0)
    middle.asked[1][2].set_exception(SessionFailed(Code.UPSTREAM_LOST, "gone"))
    middle.answer(2)
    with pytest.raises(SessionFailed):
        await prefill
    session.close()
    compute.stop()


async def test_advice_cuts_the_chunks_that_come(tiny: Path) -> None:
    """The cloud's size for any prompt is the first; what it advises in between holds from the next chunk on, its
    positions being the session's; a size of our own is kept whatever is advised."""
    for chunk, sizes in ((0, [5] * (MAX_AHEAD + 1) + [17, 18, 20, 5, 5, 5]), (30, [30] * 6)):
        middle, compute = SlowMiddle(), Compute()
        session = session_over(tiny, middle, compute, 0, chunk)
        first = asyncio.create_task(logits_of(session, [5, 6]))
        await until(lambda: len(middle.asked) == 1)  # noqa: B023
        middle.answer(0)
        await first
        middle.chunk = 5
        prefill = asyncio.create_task(logits_of(session, [5] * sum(sizes)))
        await until(lambda: len(middle.asked) == 1 + min(len(sizes), MAX_AHEAD + 1))  # noqa: B023
        middle.advice = 2 + 5 * (MAX_AHEAD + 1), [17, 18, 20]
        for number in range(1, 1 + len(sizes)):
            await until(lambda: len(middle.asked) > number)  # noqa: B023
            middle.answer(number)
        await prefill
        assert [len(hidden) for hidden, _, _ in middle.asked[1:]] == sizes
        session.close()
        compute.stop()


@pytest.mark.parametrize(("first", "expected"), [(None, [64, 36]), (40, [40, 60]), (85, [100]), (512, [100])])
async def test_first_chunks_are_as_small_as_advised(tiny: Path, first: int | None, expected: list[int]) -> None:
    """Unless a few rows would be left; while nothing is advised they are small."""
    middle, compute = SlowMiddle(), Compute()
    middle.first_chunk, middle.chunk = first, 512
    session = session_over(tiny, middle, compute, 0, chunk=0)
    prefill = asyncio.create_task(logits_of(session, [5] * 100))
    for number in range(len(expected)):
        await until(lambda: len(middle.asked) > number)  # noqa: B023
        middle.answer(number)
    await prefill
    assert [len(hidden) for hidden, _, _ in middle.asked] == expected
    session.close()
    compute.stop()


async def test_layers_that_are_all_here_have_even_chunks(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no link to hide anything behind."""
    compute, checkpoint = Compute(), Checkpoint.open(tiny)
    middle = LocalSubmodel(Stack.load(checkpoint, middle_slice(checkpoint.spec, 1, 1), torch.float32), compute)
    forwarded: list[int] = []
    forward = LocalSession.forward

    def counted(session: LocalSession, hidden: torch.Tensor, *more: Any) -> Any:
        forwarded.append(len(hidden))
        return forward(session, hidden, *more)

    monkeypatch.setattr(LocalSession, "forward", counted)
    session = chain_over(tiny, 1, 1, middle, compute, 0).open(200)
    await logits_of(session, [5] * 150)
    assert 75 in forwarded and 64 not in forwarded, forwarded
    session.close()
    compute.stop()


@pytest.mark.parametrize("tail", [0, 1])
@pytest.mark.parametrize("download_all", [False, True])
async def test_a_whole_prompt(tiny: Path, tail: int, download_all: bool) -> None:
    """One forward where the middle submodel takes it, else as few as that takes, whatever is advised; all its rows come
    back where that is asked for, and the logits are those of the last one alone."""
    for most, sizes in ((512, [90]), (40, [30] * 3)):
        middle, compute = SlowMiddle(), Compute()
        middle.max_rows, middle.chunk, middle.advice = most, 20, (0, [20] * 5)
        chain = chain_over(tiny, 4 - tail, tail, middle, compute, WHOLE_PROMPT)
        chain.download_all = download_all
        session, plain = chain.open(200), chain_over(tiny, 4 - tail, tail, None, compute, 10)
        prefill = asyncio.create_task(logits_of(session, list(range(5, 95))))
        await until(lambda: len(middle.asked) == len(sizes))  # noqa: B023
        for number in range(len(sizes)):
            middle.answer(number)
        logits = await prefill
        wants = [want for _, want, _ in middle.asked]
        assert [len(hidden) for hidden, _, _ in middle.asked] == sizes
        assert wants == (sizes if download_all or tail else [0] * (len(sizes) - 1) + [1])
        expected = await logits_of(plain.open(200), list(range(5, 95)))
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        session.close()
        compute.stop()
