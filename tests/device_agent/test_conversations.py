"""Which conversation a prompt goes on with, and which are given up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clouds import chain_over
from tiny_models import build_tiny

from device_agent.chain import Chain, ChainSession
from device_agent.conversations import MIN_SHARED, Conversations, shared
from device_agent.local import Compute

LONG = list(range(5, 45))


@pytest.fixture
def chain(tiny_folder: Path) -> Iterator[Chain]:
    """A tiny Llama, all of it here."""
    path = tiny_folder / "llama"
    compute = Compute()
    yield chain_over(path if path.exists() else build_tiny("llama", path), 4, 0, None, compute, 16)
    compute.stop()


async def held(chain: Chain, ids: list[int], positions: int = 100) -> ChainSession:
    """A session that holds these tokens."""
    session = chain.open(positions)
    await session.forward(ids, 1, lambda logits: None)
    return session


def closed(session: ChainSession) -> bool:
    """Whether it holds nothing any more."""
    return session.nbytes == 0


async def test_the_longest_common_beginning_is_taken_once(chain: Chain) -> None:
    """Cut back to what is shared, and to nobody else until it is parked again."""
    conversations = Conversations(8, 2**30, 60.0)
    short, long = await held(chain, LONG[:20]), await held(chain, LONG)
    conversations.keep("a", LONG[:20], short, 0.0)
    conversations.keep("a", LONG, long, 1.0)
    prompt = [*LONG[:30], 90, 91]
    taken = conversations.take("a", prompt, 100, 2.0)
    assert taken is long and long.position == 30
    assert conversations.take("a", prompt, 100, 2.0) is short and short.position == 20
    assert conversations.take("a", prompt, 100, 2.0) is None
    for session in (short, long):
        session.close()


async def test_the_last_token_of_a_prompt_is_always_left_to_do(chain: Chain) -> None:
    """Its logits are wanted, whatever is held."""
    conversations = Conversations(8, 2**30, 60.0)
    conversations.keep("a", LONG, await held(chain, LONG), 0.0)
    taken = conversations.take("a", LONG[:30], 100, 0.0)
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
    conversations.keep("a", LONG, session, 0.0)
    assert conversations.take(tenant, prompt, positions, 0.0) is None
    assert len(conversations) == 1 and session.position == len(LONG)
    conversations.close()
    assert closed(session)


async def test_count_bytes_and_age_are_limits(chain: Chain) -> None:
    """The oldest goes first, closed."""
    first, second, third = [await held(chain, LONG) for _ in range(3)]
    few = Conversations(2, 2**30, 60.0)
    for at, session in enumerate((first, second, third)):
        few.keep("a", LONG, session, float(at))
    assert closed(first) and not closed(second) and few.nbytes == second.nbytes + third.nbytes
    few.sweep(61.0)
    assert closed(second) and not closed(third)
    few.sweep(62.0)
    assert closed(third) and not len(few)
    small = Conversations(8, 1, 60.0)
    session = await held(chain, LONG)
    small.keep("a", LONG, session, 0.0)
    assert closed(session) and not len(small)
    none = Conversations(0, 2**30, 60.0)
    session = await held(chain, LONG)
    none.keep("a", LONG, session, 0.0)
    assert closed(session) and not len(none)


async def test_a_token_begun_with_is_no_part_of_what_is_parked(chain: Chain) -> None:
    """An answer that a stop text has ended may have one."""
    session = chain.open(100)
    await session.forward(LONG, 1, lambda logits: 7, lambda token: token)
    conversations = Conversations(8, 2**30, 60.0)
    conversations.keep("a", LONG, session, 0.0)
    taken = conversations.take("a", [*LONG, 8], 100, 0.0)
    assert taken is session and session.position == len(LONG)
    fresh = await held(chain, LONG)
    got, wanted = [await each.forward([8], 1, lambda logits: logits.clone()) for each in (session, fresh)]
    assert got.equal(wanted)
    session.close()
    fresh.close()


def test_shared() -> None:
    """Common tokens from the beginning on."""
    assert [shared([1, 2, 3], other) for other in ([], [1], [1, 2, 4], [1, 2, 3, 4], [2])] == [0, 1, 2, 3, 0]
