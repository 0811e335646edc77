"""Texts read by models that write, wherever their layers are: the rows are transformers' last hidden states."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from clouds import chain_over, cloud_here, device_hello, local_middle, remote_middle, until
from groups import NAMES, group_here, plan_of
from line_submodel import LineSession, LineSubmodel
from reading_models import oracle_rows
from tiny_models import TINY_NAMES, built

from device_agent.chain.chain import Chain
from device_agent.chain.chain_reader import SESSIONS_AT_ONCE, ChainReader
from device_agent.sharing.compute import Compute
from split_model.checkpoint import Checkpoint
from split_model.submodel import Submodel

TOLERANCE = 1e-4
TEXTS = [[5, 9, 80, 7], [44], [11, 12, 13], [3] * 20, [8, 9], [60, 61, 62, 63, 64]]
LONG = [each % 97 for each in range(1, 200)]


async def check(chain: Chain, folder: Path, texts: list[list[int]]) -> None:
    """All rows of each text, and its last alone."""
    wanted = [oracle_rows(folder, text) for text in texts]
    for last_alone in (False, True):
        reader = ChainReader(chain, last_alone=last_alone)
        found = await reader.read([(text, None) for text in texts], split)
        assert len(found) == len(texts)
        for mine, all_rows in zip(found, wanted, strict=True):
            expected = all_rows[-len(mine) :]
            assert len(mine) == len(all_rows) or (last_alone and len(mine) == 1)
            torch.testing.assert_close(mine, expected, rtol=0, atol=TOLERANCE)


def split(rows: torch.Tensor, lengths: list[int]) -> list[torch.Tensor]:
    return list(rows.split_with_sizes(lengths))


@pytest.mark.parametrize("name", TINY_NAMES)
async def test_layers_here(tiny_folder: Path, compute: Compute, name: str) -> None:
    """Every family, also where the rows that it gives are narrower than those of its layers."""
    folder = built(name, tiny_folder)
    layers = Checkpoint.open(folder).spec.num_layers
    await check(chain_over(folder, layers, 0, None, compute, 0), folder, TEXTS)


async def test_in_parts_here(tiny: Path, compute: Compute) -> None:
    """In several submodels of this machine; a text that is longer than what is read at once goes in chunks."""
    chain = chain_over(tiny, 1, 1, local_middle(tiny, 1, 1, compute), compute, 64)
    assert ChainReader(chain, last_alone=True).at_once_rows == 64
    await check(chain, tiny, TEXTS)
    await check(chain, tiny, [LONG])


@asynccontextmanager
async def over_a_cloud(folder: Path, ends: tuple[int, int], compute: Compute) -> AsyncIterator[Chain]:
    async with (
        cloud_here(folder, *ends) as cloud,
        remote_middle(cloud.url, device_hello(folder, *ends)) as remote,
    ):
        yield chain_over(folder, *ends, remote, compute, 0)
        await until(lambda: not cloud.server.engine.ledger.entries)


@pytest.mark.parametrize(("name", "ends"), [("llama", (1, 1)), ("gpt2", (0, 0)), ("opt-post-norm", (2, 0))])
async def test_in_the_cloud(tiny_folder: Path, compute: Compute, name: str, ends: tuple[int, int]) -> None:
    """More texts than have sessions at once, and a long one; nothing of them is left there."""
    folder = built(name, tiny_folder)
    async with over_a_cloud(folder, ends, compute) as chain:
        await check(chain, folder, [*TEXTS, LONG])


@pytest.mark.parametrize("form", ["tensor", "pipeline", "galaxy-2", "voltage", "edgeformer"])
async def test_in_a_group(tiny: Path, compute: Compute, form: str) -> None:
    """Behind layers of this device, and with a session beside."""
    spec = Checkpoint.open(tiny).spec
    plan = plan_of(spec, form, NAMES[:2], layers=spec.num_layers - 1)
    with group_here(tiny, plan, 1) as group:
        chain = chain_over(tiny, 1, 0, group, compute, 0)
        session = group.open(3)
        await asyncio.wait_for(check(chain, tiny, TEXTS), 60)
        await asyncio.wait_for(check(chain, tiny, [LONG]), 60)
        session.close()


class Counted(LineSubmodel):
    """Sessions alone, of which it is counted how many are open."""

    def __init__(self, behind: Submodel) -> None:
        super().__init__(behind)
        self.now: set[LineSession] = set()
        self.most = self.opened = 0

    def open(self, positions: int, prompt: int = 0, expected: int = 0) -> LineSession:
        session = super().open(positions, prompt, expected)
        close = session.close

        def closed() -> None:
            self.now.discard(session)
            close()

        session.close = closed
        self.now.add(session)
        self.opened += 1
        self.most = max(self.most, len(self.now))
        return session


async def test_no_more_sessions_than_said_and_none_is_left(tiny: Path, compute: Compute) -> None:
    """A few at once, also where one text cannot be read or nobody waits any more: then the others end with it."""
    middle = Counted(local_middle(tiny, 1, 0, compute))
    chain = chain_over(tiny, 1, 0, middle, compute, 0)
    reader = ChainReader(chain, last_alone=True)
    many = [([each % 97], None) for each in range(40)]
    await reader.read(many, split)
    assert (middle.most, middle.opened, middle.now) == (SESSIONS_AT_ONCE, 40, set())

    with pytest.raises(ValueError, match="token ids"):
        await reader.read([*many[:9], ([97], None), *many], split)
    assert not middle.now and middle.opened < 40 + 9 + 2 * SESSIONS_AT_ONCE

    asked, before = asyncio.create_task(reader.read(many, split)), middle.opened
    await until(lambda: middle.opened > before + 6)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert asked.cancelled() and not middle.now and middle.opened < before + 40
