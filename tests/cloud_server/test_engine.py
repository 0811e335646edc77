"""The engine on real layers: batches, pages that run out, sessions that come back, steps that fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import until
from engine_callers import Caller, close, engine_here, expected, hidden

from cloud_server.build import build
from cloud_server.config import CloudConfig
from cloud_server.engine.entries import SessionState
from split_model.stack import Stack
from wire.errors import Code, SessionFailed

STEP_S = 0.05
"""A step of decoders takes so long at least, of which they are awaited for a quarter."""


async def test_sessions_side_by_side_get_what_each_gets_alone(tiny: Path) -> None:
    """Chunks, decode rows and rows over several pages of eight sessions in the same steps."""
    async with engine_here(tiny, page_positions=4, step_rows=64) as engine:

        async def one(number: int) -> None:
            caller = Caller(engine, (number, 1)).open()
            rows = hidden(40, number)
            got = [await caller.rows(rows[:24], 24)]
            got += [await caller.rows(rows[each : each + 1]) for each in range(24, 40)]
            close(torch.cat(got), expected(tiny, rows))
            engine.sessions.close(caller.key)

        await asyncio.gather(*(one(number) for number in range(8)))
        assert engine.ledger.pages.used == 0


async def test_a_draft_sent_row_by_row_runs_in_one_step(tiny: Path) -> None:
    """Rows that wait together are in the same step, each forward has its own answer, and none is a copy."""
    async with engine_here(tiny, page_positions=4) as engine:
        rows, drafter = hidden(16, 1), Caller(engine, (1, 1)).open()
        got = [await drafter.rows(rows[:9], 9)]
        sent = [drafter.send(rows[begin:end], end - begin) for begin, end in ((9, 10), (10, 12), (12, 13), (13, 16))]
        answers = await asyncio.gather(*sent)
        got += [answer.rows for answer in answers if answer.rows is not None]
        close(torch.cat(got), expected(tiny, rows))
        assert [answer.step_rows for answer in answers] == [7] * 4
        assert len({answer.rows.untyped_storage().data_ptr() for answer in answers if answer.rows is not None}) == 1
        assert {answer.step_s for answer in answers} == {answers[0].step_s}


async def test_what_a_drafter_sends_together_fails_together(tiny: Path) -> None:
    """Where a row of one of the forwards that share a step is not a number, their session ends and no other."""
    async with engine_here(tiny) as engine:
        other, drafter = Caller(engine, (2, 1)).open(), Caller(engine, (1, 1)).open()
        same_step = other.send(hidden(5, 2), 5)
        sent = [drafter.send(hidden(1, each) / (each != 1), 1) for each in range(3)]
        results = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(each, SessionFailed) and each.code is Code.NOT_FINITE for each in results)
        rows = (await same_step).rows
        assert rows is not None
        close(rows, expected(tiny, hidden(5, 2)))


def branches(tiny: Path, trunk: torch.Tensor, nodes: torch.Tensor, parents: Sequence[int]) -> torch.Tensor:
    """What the layers make of each node behind a trunk: that of the last row of its own line, computed alone."""
    lines: list[list[int]] = []
    for node, parent in enumerate(parents):
        lines.append([*(lines[parent] if parent >= 0 else []), node])
    return torch.cat([expected(tiny, torch.cat([trunk, nodes[line]]))[-1:] for line in lines])


PARENTS = [-1, -1, 0, 0, 1, 4, -1, 3, 7]
"""A tree whose path 0, 3, 7, 8 leaves gaps everywhere."""


async def test_rows_that_branch(tiny: Path) -> None:
    """Each node sees its own line; the kept ones go on as positions wherever their pages lie, while other sessions take
    the pages given back at once; and again."""
    async with engine_here(tiny, page_positions=4) as engine:

        async def one(number: int) -> None:
            caller = Caller(engine, (number, 1)).open()
            line, nodes = hidden(6 + number, number), hidden(9, 100 + number)
            await caller.rows(line, 1)
            for keep in ((0, 3, 7, 8), (1, 4, 5), (6,), (), (0,)):
                close(await caller.rows(nodes, 9, PARENTS), branches(tiny, line, nodes, PARENTS))
                caller.keep(keep)
                line = torch.cat([line, nodes[list(keep)]])
                more = hidden(2, 200 + len(line))
                line = torch.cat([line, more])
                close(await caller.rows(more, 2), expected(tiny, line)[-2:])
            engine.sessions.close(caller.key)

        await asyncio.gather(*(one(number) for number in range(8)))
        assert engine.ledger.pages.used == 0


async def test_nodes_are_kept_in_order_with_everything_else(tiny: Path) -> None:
    """Handed over without waiting: a tree, what is kept of it, a step back into that, and rows behind."""
    async with engine_here(tiny, page_positions=4) as engine:
        caller = Caller(engine, (1, 1)).open()
        line, nodes, more = hidden(7, 1), hidden(9, 2), hidden(3, 3)
        answers = [caller.send(line, 7), caller.send(nodes, 9, PARENTS)]
        caller.keep((0, 3, 7, 8))
        engine.sessions.truncate(caller.key, 9)
        caller.position = 9
        answers.append(caller.send(more, 3))
        rows = [answer.rows for answer in await asyncio.gather(*answers)]
        assert rows[1] is not None and rows[2] is not None
        close(rows[1], branches(tiny, line, nodes, PARENTS))
        close(rows[2], expected(tiny, torch.cat([line, nodes[[0, 3]], more]))[-3:])


async def test_forgotten_nodes_leave_no_trace(tiny: Path) -> None:
    """A truncation to where the session is gives their pages back, and what follows is as if they had never been."""
    async with engine_here(tiny, page_positions=4) as engine:
        caller = Caller(engine, (1, 1)).open()
        line, more = hidden(7, 1), hidden(3, 3)
        await caller.rows(line)
        await caller.rows(hidden(9, 2), 9, PARENTS)
        assert engine.ledger.pages.held(caller.key) == 4
        engine.sessions.truncate(caller.key, 7)
        close(await caller.rows(more, 3), expected(tiny, torch.cat([line, more]))[-3:])
        assert engine.ledger.pages.held(caller.key) == 3


async def test_a_step_that_fails_ends_those_whose_nodes_it_should_have_moved(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether they were: going on would be on other keys and values."""
    async with engine_here(tiny, page_positions=4) as engine:
        caller, other = Caller(engine, (1, 1)).open(), Caller(engine, (2, 1)).open()
        await caller.rows(hidden(7, 1))
        await caller.rows(hidden(9, 2), 9, PARENTS)
        caller.keep((0, 3))
        await asyncio.sleep(0.05)  # A step without rows: what is to be moved waits for one with some.
        monkeypatch.setattr(Stack, "run", lambda *_: 1 / 0)
        lost = other.send(hidden(1, 3))
        with pytest.raises(SessionFailed):
            await lost
        assert caller.ended is not None and caller.ended.code is Code.INTERNAL


async def test_decoders_gather_into_full_steps(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight decoders that come back at once are answered eight at a time, not one and then seven; "at once" is soon
    beside a step, also on a machine that is busy with other things."""
    run = Stack.run

    def slowly(*given: Any) -> Any:
        time.sleep(STEP_S)
        return run(*given)

    monkeypatch.setattr(Stack, "run", slowly)
    async with engine_here(tiny) as engine:
        steps: list[int] = []

        async def one(number: int) -> None:
            caller = Caller(engine, (number, 1)).open(200)
            for each in range(40):
                steps.append((await caller.send(hidden(1, each))).step_rows)

        await asyncio.gather(*(one(number) for number in range(8)))
        late = steps[len(steps) // 2 :]
        assert sum(late) / len(late) > 6, late


async def test_a_long_prompt_does_not_hold_decoders_up(tiny: Path) -> None:
    """While a prompt of a thousand rows is computed, a decoder has a row in every step."""
    async with engine_here(tiny, window_rows=2048, max_rows=512) as engine:
        decoder = Caller(engine, (1, 1)).open(400)
        await decoder.rows(hidden(4, 0))
        prompt = Caller(engine, (2, 1)).open(1024)
        answers = [prompt.send(hidden(512, 1), 0), prompt.send(hidden(512, 2), 1)]
        rows = []
        while not answers[1].done():
            rows.append((await decoder.send(hidden(1, 3))).step_rows)
        assert len(rows) >= 3 and max(rows) <= 512, rows


@pytest.mark.parametrize(("step_rows", "most"), [(2048, 1024 + 1), (128, 128)])
async def test_without_a_slack_prompts_are_cut_by_the_rows_of_a_step_alone(
    tiny: Path, step_rows: int, most: int
) -> None:
    """A prompt that comes in one forward runs in one step beside a decoder, or in steps that are full."""
    async with engine_here(tiny, step_slack=0, step_rows=step_rows, window_rows=2048, max_rows=1024) as engine:
        decoder = Caller(engine, (1, 1)).open(1024)
        await decoder.rows(hidden(4, 0))
        for each in range(50):  # So that much is known of steps and of when the decoder comes back.
            await decoder.rows(hidden(1, each))
        answer = Caller(engine, (2, 1)).open(1024).send(hidden(1024, 1))
        rows = []
        while not answer.done():
            rows.append((await decoder.send(hidden(1, 3))).step_rows)
        if step_rows < 1024:
            assert max(rows) <= most and rows.count(most) >= 6, rows
        assert (await answer).step_rows in ((most - 1, most) if step_rows > 1024 else range(1, most + 1))


async def test_the_youngest_gives_way_when_pages_run_out(tiny: Path) -> None:
    """Whoever was kept for later goes first, then the youngest is preempted; the oldest never notices."""
    page = {"page_positions": 8, "kv_mb": 1, "max_model_len": 4000}
    async with engine_here(tiny, **page, idle_s=900.0) as engine:
        room = engine.ledger.pages.count * 8
        parked = Caller(engine, (1, 9)).open(room)
        await parked.rows(hidden(64, 9))
        engine.sessions.park(parked.key)
        old = Caller(engine, (1, 1)).open(room)
        young = Caller(engine, (2, 1)).open(room)
        sent = hidden(room - 8, 1)
        got = []
        for begin in range(0, len(sent), 256):
            if young.ended is None and begin < 512:
                await young.rows(hidden(100, begin), 1)
            got.append(await old.rows(sent[begin : begin + 256], len(sent[begin : begin + 256])))
        close(torch.cat(got), expected(tiny, sent))
        assert parked.ended is not None and parked.ended.code is Code.EVICTED
        assert young.ended is not None and young.ended.code is Code.PREEMPTED and young.ended.retry_after_s
        with pytest.raises(SessionFailed) as refused:
            Caller(engine, (2, 2)).open(room, prompt=512)
        assert refused.value.code is Code.SESSION_LIMIT and refused.value.retry_after_s
        engine.sessions.close(old.key)
        Caller(engine, (2, 3)).open(room, prompt=512)


async def test_a_session_outlives_its_connection(tiny: Path) -> None:
    """After the connection is lost in the middle of work it goes on elsewhere at the position its device knows."""
    async with engine_here(tiny, page_positions=4, resume_s=5.0) as engine:
        rows = hidden(30, 1)
        first = Caller(engine, (1, 1)).open()
        got = [await first.rows(rows[:20], 20)]
        first.send(rows[20:25])
        engine.sessions.leave(1)
        assert engine.ledger.entries[1, 1].state is SessionState.ORPHAN
        again = Caller(engine, (2, 1), position=20)
        engine.sessions.resume((1, 1), (2, 1), 20, again.deliver)
        got.append(await again.rows(rows[20:], 10))
        close(torch.cat(got), expected(tiny, rows))
        assert first.ended is None and not first.answers[1].done()  # The old connection hears nothing more.
        for old, position, code in (((1, 1), 0, Code.UNKNOWN_SESSION), ((2, 1), 31, Code.BAD_POSITION)):
            with pytest.raises(SessionFailed) as refused:
                engine.sessions.resume(old, (3, 1), position, again.deliver)
            assert refused.value.code is code


async def test_nobody_comes_back(tiny: Path) -> None:
    """Sessions of a lost connection and idle ones are given up after their time, and all pages are free."""
    async with engine_here(tiny, resume_s=0.2, idle_s=1.0) as engine:
        lost, idle = Caller(engine, (1, 1)).open(), Caller(engine, (2, 1)).open()
        await asyncio.gather(lost.rows(hidden(9, 1)), idle.rows(hidden(9, 2)))
        engine.sessions.leave(1)
        await until(lambda: not engine.ledger.entries, 60)
        assert engine.ledger.pages.used == 0
        assert lost.ended is None and idle.ended is not None and idle.ended.code is Code.EVICTED


async def test_nan_ends_its_session_only(tiny: Path) -> None:
    """One of eight in the same steps sends NaN: seven get what they get without it."""
    async with engine_here(tiny) as engine:

        async def one(number: int) -> None:
            caller = Caller(engine, (number, 1)).open()
            rows = hidden(30, number)
            if number == 3:
                rows[25] = float("nan")
            got = [await caller.rows(rows[:20], 20)]
            got += [await caller.rows(rows[each : each + 1]) for each in range(20, 30)]
            close(torch.cat(got), expected(tiny, rows))

        results = await asyncio.gather(*(one(number) for number in range(8)), return_exceptions=True)
        failure = results.pop(3)
        assert isinstance(failure, SessionFailed) and failure.code is Code.NOT_FINITE
        assert results == [None] * 7


async def test_out_of_memory_makes_smaller_steps(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that does not fit in memory is run in parts, down to single rows, with the same results."""
    run, refused = Stack.run, 0
    sent = [hidden(23, number) for number in range(3)]
    wanted = [expected(tiny, rows) for rows in sent]
    nodes = branches(tiny, sent[0], sent[1][:9], PARENTS)

    def small_memory(stack: Stack, rows: torch.Tensor, batch: Any) -> torch.Tensor:
        nonlocal refused
        if len(rows) > 3:
            refused += 1
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 1 bytes")
        return run(stack, rows, batch)

    monkeypatch.setattr(Stack, "run", small_memory)
    async with engine_here(tiny, page_positions=4) as engine:

        async def one(number: int) -> None:
            caller = Caller(engine, (number, 1)).open()
            close(await caller.rows(sent[number], 23), wanted[number])
            if number == 0:
                close(await caller.rows(sent[1][:9], 9, PARENTS), nodes)

        await asyncio.gather(*(one(number) for number in range(3)))
        assert refused


async def test_what_was_truncated_and_never_computed_again_is_not_resumed(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After going back, rows that a failing step should have computed do not count as there: other pages lie in their
    place, which may be somebody else's."""
    async with engine_here(tiny, page_positions=4, resume_s=5.0) as engine:
        rows = hidden(20, 1)
        first = Caller(engine, (1, 1)).open()
        await first.rows(rows, 20)
        engine.sessions.truncate(first.key, 10)
        first.position = 10
        monkeypatch.setattr(Stack, "run", lambda *_: 1 / 0)
        lost = first.send(hidden(8, 2))
        for _ in range(1000):
            await asyncio.sleep(0)
            if engine.sessions[first.key].under_way:
                break
        engine.sessions.leave(1)
        await until(lambda: not engine._under_way)
        assert not lost.done()
        monkeypatch.undo()
        again = Caller(engine, (2, 1), position=10)
        with pytest.raises(SessionFailed) as refused:
            engine.sessions.resume((1, 1), (2, 1), 18, again.deliver)
        assert refused.value.code is Code.BAD_POSITION
        engine.sessions.resume((1, 1), (2, 1), 10, again.deliver)
        rest = hidden(5, 3)
        close(await again.rows(rest, 5), expected(tiny, torch.cat([rows[:10], rest]))[10:])


async def test_a_mistake_of_ours_ends_everything_and_is_seen(tiny: Path) -> None:
    """Where the engine itself fails, in a step or in the sweep, sessions are told, none is opened, it is not alive."""
    for owner, mistake in (("steps", "settle"), ("sessions", "end_idle")):
        engine = build(CloudConfig(model=str(tiny), split=1, kv_mb=16)).engine
        task = asyncio.create_task(engine.run())
        await until(lambda each=engine: each.alive)
        caller = Caller(engine, (1, 1)).open()
        setattr(getattr(engine, owner), mistake, lambda *_: 1 / 0)
        caller.send(hidden(2, 1))
        await until(task.done, 60)
        assert isinstance(task.exception(), ZeroDivisionError) and not engine.alive
        assert caller.ended is not None and not engine.ledger.entries
        with pytest.raises(SessionFailed):
            Caller(engine, (1, 2)).open()


async def test_a_next_turn_is_counted(tiny: Path) -> None:
    """Positions that a next turn finds in its kept session are counted, also where it goes back first."""
    server = build(CloudConfig(model=str(tiny), split=1, kv_mb=16))
    task = asyncio.create_task(server.engine.run())
    await until(lambda: server.engine.alive)
    caller = Caller(server.engine, (1, 1)).open()
    await caller.rows(hidden(20, 1))
    server.engine.sessions.park(caller.key)
    server.engine.sessions.truncate(caller.key, 15)
    caller.position = 15
    await caller.rows(hidden(3, 2))
    server.engine.sessions.park(caller.key)
    await caller.rows(hidden(3, 3))
    assert server.engine.metrics.prefix_rows._value.get() == 15 + 18
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_truncation_planned_behind_a_step_counts_before_that_step_runs(tiny: Path) -> None:
    """Where several steps are under way, one may be planned while the one before has not begun: rows that it cuts off
    do not count as there when that one is done."""
    engine = build(CloudConfig(model=str(tiny), split=1, kv_mb=16)).engine
    engine.sessions.lost = False
    caller = Caller(engine, (1, 1)).open()
    caller.send(hidden(20, 1), 0)
    assert engine._begin()
    engine.sessions.truncate(caller.key, 10)
    assert engine._begin()
    await until(lambda: not engine._under_way)
    session = engine.sessions[caller.key]
    assert (session.length, session.done) == (10, 10)
    await engine._runner.stop()
