"""Sessions that begin where another has come to: what they compute is what they would have computed by themselves."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clouds import until
from engine_callers import Caller, close, engine_here, expected, hidden

from cloud_server.cache.pages import Pages
from cloud_server.cache.pool import KVPool
from cloud_server.engine.engine import Engine
from cloud_server.engine.entries import SessionState
from wire.errors import Code, SessionFailed


def pool_of(engine: Engine) -> KVPool:
    """The keys and values of a cloud server of one process."""
    return engine._runner._step.pool  # type: ignore[attr-defined,no-any-return]


def nothing_stale(engine: Engine) -> None:
    """Fill all that was never written with NaN: a read of it would show."""
    for store in (pool_of(engine).keys, pool_of(engine).values):
        store.fill_(torch.nan)


def few_pages(engine: Engine, count: int) -> None:
    """Use no more than so many."""
    ledger = engine.ledger
    ledger.limits = replace(ledger.limits, pages=count)
    ledger.pages = Pages(count, ledger.limits.page_positions)


def refused(engine: Engine, source: tuple[int, int], position: int, key: tuple[int, int] = (1, 99)) -> Code:
    """The code that a fork is refused with, nothing being held for it."""
    before = engine.ledger.pages.used
    with pytest.raises(SessionFailed) as failure:
        engine.sessions.fork(source, key, position, lambda *_: None)
    assert engine.ledger.pages.used == before
    return failure.value.code


async def test_a_fork_goes_on_where_it_was_made(tiny: Path) -> None:
    """At the end of its source and in its middle, in the same steps as the source goes on in, whose end it outlives; a
    fork of a fork too."""
    async with engine_here(tiny, page_positions=4) as engine:
        nothing_stale(engine)
        line, more = hidden(22, 1), [hidden(5, 10 + each) for each in range(4)]
        source = Caller(engine, (1, 1)).open()
        await source.rows(line)
        forks = [source.fork((1, 2), 22), source.fork((1, 3), 22), source.fork((1, 4), 9)]
        sent = [each.send(rows, 5) for each, rows in zip([source, *forks], more, strict=True)]
        engine.sessions.close(source.key)
        again = [(await each).rows for each in sent[1:]]
        for got, rows, at in zip(again, more[1:], (22, 22, 9), strict=True):
            assert got is not None
            close(got, expected(tiny, torch.cat([line[:at], rows]))[-5:])
        last = forks[2].fork((1, 5), 11)
        engine.sessions.truncate(forks[2].key, 3)
        close(await last.rows(more[0], 5), expected(tiny, torch.cat([line[:9], more[3][:2], more[0]]))[-5:])
        for each in (*forks, last):
            engine.sessions.close(each.key)
        assert engine.ledger.pages.used == 0


async def test_what_is_not_computed_cannot_be_forked(tiny: Path) -> None:
    """Rows that wait, rows that are to be forgotten and come anew, and what a fork is still to be given; nodes behind a
    position are nobody's business."""
    async with engine_here(tiny, page_positions=4) as engine:
        line = hidden(20, 1)
        source = Caller(engine, (1, 1)).open()
        first = source.send(line[:10])
        assert refused(engine, source.key, 10) is Code.BAD_POSITION
        await first
        engine.sessions.truncate(source.key, 6)
        source.position = 6
        again = source.send(line[6:12])
        assert refused(engine, source.key, 8) is Code.BAD_POSITION
        fork = source.fork((1, 2), 6)
        assert refused(engine, fork.key, 3) is Code.BAD_POSITION
        await asyncio.gather(again, source.send(line[12:]), fork.send(line[6:7]))
        nodes = source.send(hidden(3, 2), 3, [-1, 0, 0])
        other = source.fork((1, 3), 20)
        with_nodes = (await nodes).rows
        source.keep([0, 2])
        more = hidden(2, 3)
        close(await other.rows(more, 2), expected(tiny, torch.cat([line, more]))[-2:])
        chosen = hidden(3, 2)[[0, 2]]
        close(await source.rows(more, 2), expected(tiny, torch.cat([line, chosen, more]))[-2:])
        assert with_nodes is not None
        assert refused(engine, (2, 1), 1) is Code.UNKNOWN_SESSION
        assert refused(engine, source.key, 4, fork.key) is Code.DUPLICATE_SESSION


async def test_given_pages_are_those_of_who_has_them_now(tiny: Path) -> None:
    """Forks that end, or go back, before anything was copied to them leave nothing in pages that others have by then,
    also where those are forks of something else."""
    async with engine_here(tiny, page_positions=4) as engine:
        lines = [hidden(16, each) for each in range(2)]
        sources = [Caller(engine, (1, 1 + each)).open() for each in range(2)]
        for each, line in zip(sources, lines, strict=True):
            await each.rows(line)
        nothing = [sources[0].fork((1, 10 + each), 16) for each in range(4)]
        held = set(engine.ledger.pages.table(nothing[0].key))
        engine.sessions.close(nothing[0].key)
        engine.sessions.truncate(nothing[1].key, 2)
        await until(lambda: engine.ledger.pages.held(nothing[1].key) == 1)
        engine.sessions.close(sources[0].key)
        forks = [sources[1].fork((1, 20 + each), 15) for each in range(4)]
        assert held & {page for each in forks for page in engine.ledger.pages.table(each.key)}, "pages are used again"
        nothing[1].position = 2
        more = hidden(3, 5)
        got = await asyncio.gather(*(each.rows(more, 3) for each in [*forks, *nothing[1:]]))
        for found in got[:4]:
            close(found, expected(tiny, torch.cat([lines[1][:15], more]))[-3:])
        close(got[4], expected(tiny, torch.cat([lines[0][:2], more]))[-3:])
        for found in got[5:]:
            close(found, expected(tiny, torch.cat([lines[0], more]))[-3:])


async def test_a_source_that_becomes_nan_harms_no_fork(tiny: Path) -> None:
    """What is cleared of its pages is cleared once they have been copied; and a fork that is given such pages has them
    cleared first."""
    async with engine_here(tiny, page_positions=4) as engine:
        few_pages(engine, 9)
        line = hidden(10, 1)
        source = Caller(engine, (1, 1)).open(36)
        await source.rows(line)
        spoilt = source.send(hidden(2, 2) * torch.nan)
        for _ in range(1000):
            await asyncio.sleep(0)
            if engine.sessions[source.key].under_way:
                break
        fork = source.fork((1, 2), 10)
        assert not spoilt.done(), "its copy comes behind that step"
        with pytest.raises(SessionFailed):
            await spoilt
        assert source.ended is not None and source.ended.code is Code.NOT_FINITE
        again = hidden(3, 3)
        close(await fork.rows(again, 3), expected(tiny, torch.cat([line, again]))[-3:])

        other = Caller(engine, (1, 3)).open(36)
        with pytest.raises(SessionFailed):
            await other.rows(hidden(11, 4) * torch.nan)
        last = fork.fork((1, 4), 9)
        assert engine.sessions.upkeep.unclean.take(engine.ledger.pages.table(last.key)) == [], (
            "they are cleared with what it is given"
        )
        close(await last.rows(again[:1]), expected(tiny, torch.cat([line[:9], again[:1]]))[-1:])
        for each in range(4):
            await fork.rows(hidden(1, each))
        for store in (pool_of(engine).keys, pool_of(engine).values):
            assert not store.isnan().any()


async def test_forks_cannot_make_a_step_long(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What forks that have ended were to be given is not copied, and what those of one tenant are given at once is
    bounded; one fork is always taken, and others' are."""
    async with engine_here(tiny, page_positions=4) as engine:
        monkeypatch.setattr("cloud_server.engine.sessions.COPIED_POSITIONS", 50)
        sources = [Caller(engine, (each, 1)).open(tenant=str(each)) for each in (1, 2)]
        await asyncio.gather(*(each.rows(hidden(40, 1)) for each in sources))
        for each in range(2, 200):
            engine.sessions.close(sources[0].fork((1, each), 40).key)
        assert not engine.sessions.upkeep.moved
        sources[0].fork((1, 200), 40)
        assert refused(engine, sources[0].key, 11, (1, 201)) is Code.SESSION_LIMIT
        sources[0].fork((1, 202), 10)
        sources[1].fork((2, 2), 40)
        assert sum(move[2] for moved in engine.sessions.upkeep.moved for move in moved.moves) == 90
        await sources[1].rows(hidden(1, 2))
        assert not engine.sessions.upkeep.moved
        sources[0].fork((1, 203), 40)


async def test_forks_find_room_where_sessions_that_are_kept_have_it(tiny: Path) -> None:
    """Those are ended for it, longest idle first, but neither their source nor anybody who decodes."""
    async with engine_here(tiny, page_positions=4) as engine:
        few_pages(engine, 40)
        line = hidden(40, 1)
        parked, source = (Caller(engine, (1, each)).open() for each in (1, 2))
        for each in (parked, source):
            await each.rows(line)
            engine.sessions.park(each.key)
        forks = [source.fork((1, 3), 40), source.fork((1, 4), 40)]
        assert parked.ended is None and not engine.ledger.pages.free
        forks.append(source.fork((1, 5), 40))
        assert parked.ended is not None and parked.ended.code is Code.EVICTED
        assert engine.ledger.entries[source.key].state is SessionState.PARKED
        assert refused(engine, source.key, 40) is Code.SESSION_LIMIT
        for each in forks:
            more = hidden(2, each.key[1])
            close(await each.rows(more, 2), expected(tiny, torch.cat([line, more]))[-2:])


async def test_a_step_that_fails_ends_the_forks_that_it_should_have_begun(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whosever rows it has: what was to be copied may not have been. And what was not is not resumed."""
    async with engine_here(tiny, resume_s=5.0) as engine:
        line = hidden(12, 1)
        source, other = Caller(engine, (1, 1)).open(), Caller(engine, (1, 2)).open()
        await source.rows(line)
        fork = source.fork((1, 3), 12)
        monkeypatch.setattr(KVPool, "move", lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
        with pytest.raises(SessionFailed):
            await other.rows(hidden(2, 2))
        monkeypatch.undo()
        assert fork.ended is not None and fork.ended.code is Code.INTERNAL and source.ended is None

        fork = source.fork((1, 4), 12)
        engine.sessions.leave(1)
        with pytest.raises(SessionFailed) as failure:
            engine.sessions.resume(fork.key, (2, 1), 12, fork.deliver)
        assert failure.value.code is Code.BAD_POSITION


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_sessions_do_none_sees_another(tiny: Path, seed: int) -> None:
    """Forks among rows, truncations, parking and ends, in few pages, all at once: every row is what it would be in a
    session of its own, and no page is lost or doubly owned."""
    chance = random.Random(seed)
    async with engine_here(tiny, page_positions=4, step_rows=32) as engine:
        few_pages(engine, 45)
        nothing_stale(engine)
        numbers = iter(range(1, 10**6))
        lines: dict[Caller, torch.Tensor] = {}
        answered = 0

        async def go_on(caller: Caller) -> None:
            nonlocal answered
            rows = hidden(chance.choice([1, 1, 3, 12]), next(numbers))
            line = lines[caller] = torch.cat([lines[caller], rows])
            answer: Any = await asyncio.gather(caller.rows(rows, len(rows)), return_exceptions=True)
            if caller.ended is None and isinstance(answer[0], torch.Tensor):
                close(answer[0], expected(tiny, line)[-len(rows) :])
                answered += 1

        def end(caller: Caller) -> None:
            del lines[caller]
            engine.sessions.close(caller.key)

        for _ in range(60):
            for caller in list(lines):
                if caller.ended is not None:
                    end(caller)
            chosen = chance.sample(list(lines), min(len(lines), chance.randint(0, 5)))
            busy = [asyncio.create_task(go_on(caller)) for caller in chosen if caller.position < 45]
            await asyncio.sleep(0)
            for caller in [each for each in lines if each not in chosen]:
                if caller.ended is not None:  # For the pages of a fork, a moment ago.
                    continue
                done, what = min(caller.position, len(lines[caller])), chance.random()
                if what < 0.4 and done and len(lines) < 8:
                    at = chance.randint(1, done)
                    try:
                        lines[caller.fork((1, next(numbers)), at)] = lines[caller][:at]
                    except SessionFailed as failure:
                        assert failure.code in (Code.SESSION_LIMIT, Code.BAD_POSITION), failure
                elif what < 0.6 and done:
                    back = chance.randint(0, done)
                    engine.sessions.truncate(caller.key, back)
                    caller.position, lines[caller] = back, lines[caller][:back]
                elif what < 0.7:
                    end(caller)
                elif what < 0.8:
                    engine.sessions.park(caller.key)
            if len(lines) < 3:
                lines[Caller(engine, (1, next(numbers))).open()] = torch.empty(0, 32)
            await asyncio.gather(*busy)
            engine.ledger.pages.check()
        assert answered > 40
        for caller in list(lines):
            end(caller)
        assert engine.ledger.pages.used == 0
