"""Which conversation a prompt goes on with, and which are given up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds import chain_over
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import built

from device_agent.answering.conversations import MAX_LOST, MIN_SHARED, Conversations, shared
from device_agent.chain.chain import Chain, ChainSession
from device_agent.chain.prefill import prefill
from device_agent.sharing.compute import Compute

LONG = list(range(5, 45))


@pytest.fixture
def chain(tiny_folder: Path) -> Iterator[Chain]:
    """A tiny Llama, all of it here."""
    compute = Compute()
    yield chain_over(built("llama", tiny_folder), 4, 0, None, compute, 16)
    compute.stop()


async def held(chain: Chain, ids: list[int], positions: int = 100) -> ChainSession:
    """A session that holds these tokens."""
    session = chain.open(positions)
    await prefill(session, ids, 1)
    return session


def closed(session: ChainSession) -> bool:
    """Whether it holds nothing any more."""
    return session.nbytes == 0


async def test_the_longest_common_beginning_is_taken_once(chain: Chain) -> None:
    """Cut back to what is shared, and to nobody else until it is parked again."""
    conversations = Conversations(8, 2**30, 60.0)
    short, long = await held(chain, LONG[:20]), await held(chain, LONG)
    conversations.keep("a", "", LONG[:20], 20, short, 0.0)
    conversations.keep("a", "", LONG, 30, long, 1.0)
    prompt = [*LONG[:30], 90, 91]
    taken = conversations.take("a", "", prompt, 100, 2.0)
    assert taken is long and long.position == 30
    assert conversations.take("a", "", prompt, 100, 2.0) is short and short.position == 20
    assert conversations.take("a", "", prompt, 100, 2.0) is None
    for session in (short, long):
        session.close()


async def test_the_last_token_of_a_prompt_is_always_left_to_do(chain: Chain) -> None:
    """Its logits are wanted, whatever is held."""
    conversations = Conversations(8, 2**30, 60.0)
    conversations.keep("a", "", LONG, 30, await held(chain, LONG), 0.0)
    taken = conversations.take("a", "", LONG[:30], 100, 0.0)
    assert taken is not None and taken.position == 29
    taken.close()


@pytest.mark.parametrize(
    ("tenant", "prompt", "positions"),
    [
        ("b", LONG, 100),
        ("", LONG, 100),
        ("a", LONG[: MIN_SHARED - 1], 100),
        ("a", [*LONG[:19], 90, 91, 92], 100),
        ("a", [4, *LONG], 100),
        ("a", LONG, 101),
    ],
    ids=["another tenant", "no tenant", "too little", "less than half", "another beginning", "no room"],
)
async def test_what_does_not_go_on_with_it_does_not_get_it(
    chain: Chain, tenant: str, prompt: list[int], positions: int
) -> None:
    """It stays as it was."""
    conversations = Conversations(8, 2**30, 60.0)
    session = await held(chain, LONG)
    conversations.keep("a", "", LONG, 10, session, 0.0)
    assert conversations.take(tenant, "", prompt, positions, 0.0) is None
    assert len(conversations) == 1 and session.position == len(LONG)
    conversations.close()
    assert closed(session)


async def test_count_bytes_and_age_are_limits(chain: Chain) -> None:
    """The oldest goes first, closed."""
    first, second, third = [await held(chain, LONG) for _ in range(3)]
    few = Conversations(2, 2**30, 60.0)
    for at, session in enumerate((first, second, third)):
        few.keep("a", "", LONG, 10, session, float(at))
    assert closed(first) and not closed(second) and few.nbytes == second.nbytes + third.nbytes
    few.sweep(61.0)
    assert closed(second) and not closed(third)
    few.sweep(62.0)
    assert closed(third) and not len(few)
    small = Conversations(8, 1, 60.0)
    session = await held(chain, LONG)
    small.keep("a", "", LONG, 10, session, 0.0)
    assert closed(session) and not len(small)
    none = Conversations(0, 2**30, 60.0)
    session = await held(chain, LONG)
    none.keep("a", "", LONG, 10, session, 0.0)
    assert closed(session) and not len(none)


async def test_another_chat_with_the_same_instructions_leaves_it_alone(chain: Chain) -> None:
    """What goes on shares all that was asked last, but for what a template ends it with; only when no more can be kept
    does half of it do."""
    instructions, question, answer = LONG[:30], LONG[30:36], LONG[36:]
    other = [*instructions, 80, 81, 82, 83, 84, 85]
    goes_on = [*instructions, *question[: len(question) - MAX_LOST], 90, 91]
    asked = len(instructions) + len(question)
    conversations = Conversations(2, 2**30, 60.0)
    session = await held(chain, [*instructions, *question, *answer])
    conversations.keep("a", "", LONG, asked, session, 0.0)
    assert conversations.take("a", "", other, 100, 0.0) is None and session.position == len(LONG)
    assert conversations.take("a", "", goes_on, 100, 0.0) is session
    session.truncate(32)
    conversations.keep("a", "", LONG[:32], 32, session, 0.0)
    conversations.keep("b", "", LONG, 40, await held(chain, LONG), 0.0)
    taken = conversations.take("a", "", other[:31] + other, 100, 0.0)
    assert taken is session
    taken.close()
    conversations.close()


async def test_who_holds_most_gives_way(chain: Chain) -> None:
    """A tenant with many conversations does not drive out another's only one, neither by count nor by bytes."""
    one = await held(chain, LONG)
    nbytes = one.nbytes
    for conversations in (Conversations(3, 2**30, 60.0), Conversations(9, 3 * nbytes, 60.0)):
        mine, others = await held(chain, LONG), [await held(chain, LONG) for _ in range(5)]
        conversations.keep("a", "", LONG, 40, mine, 0.0)
        for at, session in enumerate(others):
            conversations.keep("b", "", LONG, 40, session, float(at))
        assert [closed(session) for session in others] == [True, True, True, False, False]
        assert not closed(mine) and len(conversations) == 3
        conversations.close()
    one.close()


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=40), st.integers(0, 40))
def test_shared(a: list[int], b: list[int], common: int) -> None:
    """Common tokens from the beginning on, as counted one by one."""
    b = a[:common] + b
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert shared(a, b) == shared(b, a) == expected
