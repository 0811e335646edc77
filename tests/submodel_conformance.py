"""What every submodel must do, whoever runs its layers. One suite, run on each kind."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
import torch

from split_model.stack import Span, Stack
from split_model.submodel import Branching, ReadingSubmodel, Submodel, SubmodelSession

ATOL = 1e-5


def rows(count: int, hidden: int, seed: int) -> torch.Tensor:
    """Some hidden states ``[count, hidden]``."""
    return torch.randn(count, hidden, generator=torch.Generator().manual_seed(seed))


async def check_submodel(submodel: Submodel, stack: Stack) -> None:
    """``submodel`` behaves as ``stack``, which holds the same layers, does with a cache of its own: in what all owe,
    and in what this one offers."""
    for check in (_chunks, _want, _truncate, _side_by_side, _limits, _close, _expect_and_park, _forks, _fork_limits):
        await check(submodel, stack)
    session = submodel.open(1)
    session.close()
    if session.branching is not None:
        for check in (_branches, _keep_at_once, _branch_limits, _forks_beside_nodes):
            await check(submodel, stack)
    if submodel.reading is not None:
        await _reads(submodel.reading, stack)
    assert (session.hints is None) == (submodel.hints is None)
    if submodel.hints is not None:
        await _hints(submodel, stack)


async def _reads(reading: ReadingSubmodel, stack: Stack) -> None:
    """Whole texts together give what each gives in a session, and no rows that are not theirs are taken."""
    texts = [rows(count, stack.spec.hidden_size, 40 + count) for count in (5, 1, 17)]
    got = await reading.read(torch.cat(texts), [5, 1, 17])
    torch.testing.assert_close(got, torch.cat([_expected(stack, each) for each in texts]), atol=ATOL, rtol=0)
    with pytest.raises(ValueError, match="rows"):
        reading.read(torch.cat(texts), [5, 1, 18])


def branching(session: SubmodelSession) -> Branching:
    """How its rows may branch, where that is known to be offered."""
    assert session.branching is not None
    return session.branching


def _expected(stack: Stack, hidden: torch.Tensor) -> torch.Tensor:
    return stack.forward(hidden, [Span(stack.new_cache(len(hidden)), len(hidden))])


async def _chunks(submodel: Submodel, stack: Stack) -> None:
    """Chunks handed over without waiting give what one forward gives, in order."""
    hidden = rows(40, stack.spec.hidden_size, 1)
    session = submodel.open(40)
    answers = [session.forward(chunk, len(chunk)) for chunk in torch.split(hidden, [1, 7, 20, 12])]
    assert session.position == 40
    got = torch.cat(await asyncio.gather(*answers))
    session.close()
    torch.testing.assert_close(got, _expected(stack, hidden), atol=ATOL, rtol=0)


async def _want(submodel: Submodel, stack: Stack) -> None:
    """Only the rows asked for come back, and they are the last ones."""
    hidden = rows(9, stack.spec.hidden_size, 2)
    expected = _expected(stack, hidden)
    for want in (0, 1, 4, 9):
        session = submodel.open(9)
        got = await session.forward(hidden, want)
        session.close()
        assert got.shape == (want, stack.spec.hidden_size)
        torch.testing.assert_close(got, expected[9 - want :], atol=ATOL, rtol=0)


async def _truncate(submodel: Submodel, stack: Stack) -> None:
    """Truncated rows might never have been, even when the truncation follows a forward not yet answered."""
    hidden, wrong = rows(20, stack.spec.hidden_size, 3), rows(6, stack.spec.hidden_size, 4)
    session = submodel.open(26)
    first = session.forward(hidden[:12], 12)
    rejected = session.forward(wrong, 6)
    session.truncate(12)
    assert session.position == 12
    last = session.forward(hidden[12:], 8)
    got = torch.cat([await first, await last])
    await rejected
    session.truncate(0)
    again = await session.forward(hidden, 20)
    session.close()
    torch.testing.assert_close(got, _expected(stack, hidden), atol=ATOL, rtol=0)
    torch.testing.assert_close(again, _expected(stack, hidden), atol=ATOL, rtol=0)


PARENTS = (-1, -1, 0, 0, 1, 4, 3)
"""A tree whose paths 0, 3, 6 and 1, 4, 5 leave each other's nodes out."""


def _expected_nodes(stack: Stack, line: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
    """Each node as the last row of a line of its own."""
    paths: list[list[int]] = []
    for node, parent in enumerate(PARENTS):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    return torch.cat([_expected(stack, torch.cat([line, nodes[path]]))[-1:] for path in paths])


async def _branches(submodel: Submodel, stack: Stack) -> None:
    """Rows that branch see their own line and count for nothing; those kept go on, the others might never have been."""
    line, nodes, more = (rows(count, stack.spec.hidden_size, 20 + count) for count in (10, 7, 3))
    session = submodel.open(60)
    await session.forward(line, 0)
    for keep in ((0, 3, 6), (1, 4, 5), (1,), (), None):
        got = await branching(session).forward_nodes(nodes, 5, PARENTS)
        torch.testing.assert_close(got, _expected_nodes(stack, line, nodes)[2:], atol=ATOL, rtol=0)
        assert session.position == len(line)
        if keep is None:
            session.truncate(len(line))
        else:
            branching(session).keep(keep)
            line = torch.cat([line, nodes[list(keep)]])
        assert session.position == len(line)
        line = torch.cat([line, more])
        got = await session.forward(more, 3)
        torch.testing.assert_close(got, _expected(stack, line)[-3:], atol=ATOL, rtol=0)
    session.close()


async def _keep_at_once(submodel: Submodel, stack: Stack) -> None:
    """All of it handed over without waiting: a tree, a path of it, a step back, another tree, and rows behind that."""
    line, nodes, more = (rows(count, stack.spec.hidden_size, 30 + count) for count in (10, 7, 3))
    session = submodel.open(60)
    answers = [session.forward(line, 0), branching(session).forward_nodes(nodes, 7, PARENTS)]
    branching(session).keep((0, 3, 6))
    session.truncate(12)
    answers.append(branching(session).forward_nodes(nodes, 7, PARENTS))
    branching(session).keep((1, 4))
    answers.append(session.forward(more, 3))
    assert session.position == 17
    got = await asyncio.gather(*answers)
    session.close()
    torch.testing.assert_close(got[1], _expected_nodes(stack, line, nodes), atol=ATOL, rtol=0)
    line = torch.cat([line, nodes[[0, 3]]])
    torch.testing.assert_close(got[2], _expected_nodes(stack, line, nodes), atol=ATOL, rtol=0)
    line = torch.cat([line, nodes[[1, 4]], more])
    torch.testing.assert_close(got[3], _expected(stack, line)[-3:], atol=ATOL, rtol=0)


async def _branch_limits(submodel: Submodel, stack: Stack) -> None:
    """A tree that is none, or too large, or beyond the session, is refused at once and nothing has begun; behind a tree
    only its end may follow. A line given as a tree is one."""
    hidden = rows(7, stack.spec.hidden_size, 40)
    session = submodel.open(6)
    with pytest.raises(ValueError):
        branching(session).keep(())
    for parents in ((-1, 1, 0), (-2, -1, -1), (-1, -1), (-1, -1, -1, -1)):
        with pytest.raises(ValueError):
            branching(session).forward_nodes(hidden[:3], 1, parents)
    with pytest.raises(ValueError):
        branching(session).forward_nodes(hidden, 1, tuple(range(-1, 6)))
    with pytest.raises(ValueError):
        branching(session).forward_nodes(rows(65, stack.spec.hidden_size, 41), 1, (-1,) * 65)
    answer = branching(session).forward_nodes(hidden[:4], 4, (-1, 0, 1, -1))
    with pytest.raises(ValueError):
        session.forward(hidden[:1], 1)
    with pytest.raises(ValueError):
        branching(session).forward_nodes(hidden[:1], 1, (-1,))
    for nodes in ((1,), (0, 2), (0, 1, 2, 3), (4,), (-1,), (1, 0)):
        with pytest.raises(ValueError):
            branching(session).keep(nodes)
    with pytest.raises(ValueError):
        session.truncate(1)
    line = await answer
    with pytest.raises(ValueError):
        session.park()
    branching(session).keep((0, 1, 2))
    with pytest.raises(ValueError):
        branching(session).keep(())
    session.park()
    got = torch.cat([line[:3], await session.forward(hidden[3:6], 3)])
    session.close()
    torch.testing.assert_close(got, _expected(stack, hidden[:6]), atol=ATOL, rtol=0)


async def _side_by_side(submodel: Submodel, stack: Stack) -> None:
    """Sessions share nothing."""
    inputs = [rows(3 + each, stack.spec.hidden_size, 10 + each) for each in range(5)]
    sessions = [submodel.open(len(each)) for each in inputs]
    answers = await asyncio.gather(
        *(session.forward(hidden, len(hidden)) for session, hidden in zip(sessions, inputs, strict=True))
    )
    for session, hidden, got in zip(sessions, inputs, answers, strict=True):
        session.close()
        torch.testing.assert_close(got, _expected(stack, hidden), atol=ATOL, rtol=0)


async def _limits(submodel: Submodel, stack: Stack) -> None:
    """What cannot be is refused at once, changes nothing, and the session goes on."""
    hidden = rows(6, stack.spec.hidden_size, 5)
    session = submodel.open(6)
    with pytest.raises(ValueError):
        session.forward(hidden, 7)
    with pytest.raises(ValueError):
        session.forward(hidden[:0], 0)
    with pytest.raises(ValueError):
        session.truncate(1)
    with pytest.raises(ValueError):
        session.forward(torch.cat([hidden, hidden]), 1)
    got = await session.forward(hidden, 6)
    with pytest.raises(ValueError):
        session.forward(hidden[:1], 1)
    session.close()
    torch.testing.assert_close(got, _expected(stack, hidden), atol=ATOL, rtol=0)


async def _close(submodel: Submodel, stack: Stack) -> None:
    """Closing twice is nothing; a closed session does nothing more."""
    session = submodel.open(4)
    session.close()
    session.close()
    with pytest.raises(Exception, match="closed"):
        session.forward(rows(1, stack.spec.hidden_size, 6), 1)


async def _forks(submodel: Submodel, stack: Stack) -> None:
    """A fork goes on from where it was made, be its source further on; what either is asked then, in any order and
    without waiting, to its end, the other never sees."""
    line, more = (rows(count, stack.spec.hidden_size, 50 + count) for count in (20, 3))
    session = submodel.open(60)
    await session.forward(line, 0)
    whole, part = session.fork(20), session.fork(13)
    assert (session.position, whole.position, part.position) == (20, 20, 13)
    answers = [part.forward(more, 3), whole.forward(more[:2], 2)]
    session.truncate(5)
    answers += [session.forward(more, 3), whole.forward(more, 3)]
    got = await asyncio.gather(*answers)
    session.close()
    wanted = [
        _expected(stack, torch.cat([line[:13], more]))[-3:],
        _expected(stack, torch.cat([line, more[:2]]))[-2:],
        _expected(stack, torch.cat([line[:5], more]))[-3:],
        _expected(stack, torch.cat([line, more[:2], more]))[-3:],
    ]
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=ATOL, rtol=0)
    # Its source is gone, and it is one itself; what it was given back is written over by others.
    again = part.fork(16)
    part.truncate(2)
    others = [submodel.open(30) for _ in range(3)]
    await asyncio.gather(*(each.forward(rows(30, stack.spec.hidden_size, 60), 0) for each in [*others, part]))
    got = [await each for each in (again.forward(more, 1), whole.forward(more, 1))]
    torch.testing.assert_close(got[0], _expected(stack, torch.cat([line[:13], more, more]))[-1:], atol=ATOL, rtol=0)
    line = torch.cat([line, more[:2], more, more])
    torch.testing.assert_close(got[1], _expected(stack, line)[-1:], atol=ATOL, rtol=0)
    for each in (*others, part, whole, again):
        each.close()


async def _forks_beside_nodes(submodel: Submodel, stack: Stack) -> None:
    """A fork made while rows branch in its source has none of them, and branches by itself."""
    line, nodes, more = (rows(count, stack.spec.hidden_size, 50 + count) for count in (20, 7, 3))
    session = submodel.open(60)
    await session.forward(line, 0)
    tree = branching(session).forward_nodes(nodes, 7, PARENTS)
    beside = session.fork(20)
    assert session.position == 20
    answers = [branching(beside).forward_nodes(nodes, 7, PARENTS)]
    branching(session).keep((1, 4))
    branching(beside).keep((0, 3, 6))
    session.truncate(5)
    answers += [session.forward(more, 3), beside.forward(more, 1)]
    got = await asyncio.gather(tree, *answers)
    session.close()
    beside.close()
    wanted = [
        _expected_nodes(stack, line, nodes),
        _expected_nodes(stack, line, nodes),
        _expected(stack, torch.cat([line[:5], more]))[-3:],
        _expected(stack, torch.cat([line, nodes[[0, 3, 6]], more]))[-1:],
    ]
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=ATOL, rtol=0)


async def _fork_limits(submodel: Submodel, stack: Stack) -> None:
    """There is no fork beyond what a session has come to, nor of a closed one, and none reaches further; one at the
    very beginning is a session that begins."""
    hidden = rows(6, stack.spec.hidden_size, 70)
    session = submodel.open(6)
    await session.forward(hidden[:4], 0)
    for position in (-1, 5):
        with pytest.raises(ValueError):
            session.fork(position)
    for position in (0, 4):
        fork = session.fork(position)
        with pytest.raises(ValueError):
            fork.forward(rows(7 - position, stack.spec.hidden_size, 71), 1)
        got = await fork.forward(hidden[position:], 1)
        torch.testing.assert_close(got, _expected(stack, hidden)[-1:], atol=ATOL, rtol=0)
        fork.close()
    session.close()
    with pytest.raises(Exception, match="closed"):
        session.fork(4)


async def _expect_and_park(submodel: Submodel, stack: Stack) -> None:
    """Between two turns a session is parked; the next says what to expect, and goes on."""
    hidden = rows(12, stack.spec.hidden_size, 80)
    session = submodel.open(20, prompt=5, expected=8)
    got = [await session.forward(hidden[:5], 5)]
    session.park()
    session.expect(4, 12)
    session.truncate(4)
    got[0] = got[0][:4]
    got += [await session.forward(hidden[4:8], 4), await session.forward(hidden[8:], 4)]
    session.park()
    session.close()
    torch.testing.assert_close(torch.cat(got), _expected(stack, hidden), atol=ATOL, rtol=0)


async def _hints(submodel: Submodel, stack: Stack) -> None:
    """Layers elsewhere have a pace and say where a turn's time went, once its prompt is answered; nothing is advised
    for a turn that has not begun."""
    assert submodel.hints is not None
    assert submodel.hints.chunk is None or submodel.hints.chunk > 0
    session = submodel.open(6, prompt=5, expected=6)
    hints = session.hints
    assert hints is not None and hints.spent is None
    hints.drafts_in(0.001)
    for count in (5, 1):
        await session.forward(rows(count, stack.spec.hidden_size, 90), 1)
    spent = hints.spent
    assert hints.pace.step_s is None or hints.pace.step_s > 0
    assert spent is not None and spent.answers == 1 and spent.decode.step_s >= 0
    assert sum((spent.prompt.device_s, spent.prompt.link_s, spent.prompt.queue_s, spent.prompt.step_s)) > 0
    session.expect(0, 6)
    assert hints.take_advice() is None and hints.spent is None
    session.close()


async def check_sessions(submodel: Submodel, stack: Stack, sessions: int = 5, steps: int = 6) -> None:
    """Several sessions at once, with prompts that are cut and without, decode rows and drafts: each as if alone."""

    async def check(number: int) -> None:
        lengths = [7 + 31 * number, *(1 + number * (step % 3) for step in range(steps))]
        hidden = rows(sum(lengths), stack.spec.hidden_size, number)
        cache, session = stack.new_cache(len(hidden)), submodel.open(len(hidden))
        for begin, end in pairwise([sum(lengths[:count]) for count in range(len(lengths) + 1)]):
            got = await asyncio.wait_for(session.forward(hidden[begin:end], min(end - begin, 40)), 60)
            expected = stack.forward(hidden[begin:end], [Span(cache, end - begin)])[-40:]
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
        session.close()

    await asyncio.gather(*(check(number) for number in range(sessions)))
