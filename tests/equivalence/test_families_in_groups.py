"""Groups of real processes give what transformers gives, for every family of models, in every mode, whoever dies."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from clouds import chain_over, greedy, until
from group_reads import read_of
from group_writes import Written, ids, oracle_written
from groups import FORMS, LENDING, UNEVEN, Started, group_of
from oracle import oracle_tokens, prompt_for
from tiny_models import built

from device_agent.group.host import GroupHost
from device_agent.sharing.compute import Compute
from peers.reader import SILENT_S

MODES = ("tensor", "galaxy-1", "galaxy-2", "voltage", "voltage-keys-values", "pipeline")
"""Tensor parallelism, both schemes of Galaxy+, Voltage, sequence parallelism, and whole layers one behind the other; T5
in all of them, and the others also where members lend one another heads."""
PREFIXES = [form for form in FORMS if "prefix" in form]
READERS = ("bert", "distilbert", "vit")
WRITERS = ("gpt2", "opt", "llama")
TOKENS = 24

pytestmark = pytest.mark.system


async def check(path: Path, name: str, host: GroupHost, compute: Compute) -> None:
    """What the model is for: two texts, or images, at once."""
    if name in READERS:
        read = read_of(name, path.parent)
        read.check(await asyncio.wait_for(host.submodel.read(read.hidden, read.lengths), 60))
        return
    if name in WRITERS:
        chain = chain_over(path, 0, 0, host.submodel, compute, 0)
        prompts = [prompt_for(path, length) for length in (30, 17)]
        found = await asyncio.gather(*(greedy(chain, list(each), TOKENS) for each in prompts))
        assert found == [oracle_tokens(path, each, TOKENS) for each in prompts]
        return
    written, texts = Written.over(path, host.submodel, compute), [ids(30), ids(17)]
    assert await asyncio.gather(*map(written.of, texts)) == [oracle_written(path, text) for text in texts]


@pytest.mark.parametrize("form", ["galaxy-2", "voltage"])
async def test_a_sample(form: str, tiny_folder: Path, started: Started, compute: Compute) -> None:
    """T5 with two processes, one with the more."""
    path = built("t5", tiny_folder)
    async with group_of(path, form, started.have(path, 2), started.port, UNEVEN[2]) as host:
        await check(path, "t5", host, compute)


async def test_a_member_is_killed(tiny_folder: Path, started: Started, compute: Compute) -> None:
    """In the middle of an answer: it goes on with the same tokens, by who is left and what was read is not lost."""
    path, text = built("t5", tiny_folder), ids(25)
    noticed: list[float] = []
    async with group_of(path, "galaxy-1", started.have(path, 2), started.port, UNEVEN[2]) as host:
        process = started.processes["two"].process
        assert process is not None

        async def look(began: float) -> None:
            await until(lambda: not host.submodel.connected)
            noticed.append(time.monotonic() - began)

        looking: list[asyncio.Task[None]] = []

        def kill() -> None:
            process.kill()
            looking.append(asyncio.create_task(look(time.monotonic())))

        found = await Written.over(path, host.submodel, compute).of(text, 40, 10, kill)
        assert found == oracle_written(path, text, 40)
        await asyncio.gather(*looking)
        assert noticed and noticed[0] < SILENT_S / 2
        await check(path, "t5", host, compute)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, form) for name in (*READERS, *WRITERS, "t5", "t5-gated") for form in MODES),
        *((name, form) for name in (*READERS, *WRITERS) for form in LENDING),
        *((name, form) for name in WRITERS for form in PREFIXES),
    ],
)
async def test_every_family_in_every_mode(
    name: str, form: str, tiny_folder: Path, started: Started, compute: Compute
) -> None:
    """Three processes with uneven shares; prefixes are for those whose rows see nothing behind them."""
    path = built(name, tiny_folder)
    async with group_of(path, form, started.have(path, 3), started.port, (2, 1, 4)) as host:
        await check(path, name, host, compute)


@pytest.mark.slow
@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize("count", UNEVEN)
@pytest.mark.parametrize("form", MODES)
async def test_t5_with_any_number(
    form: str, count: int, even: bool, tiny_folder: Path, started: Started, compute: Compute
) -> None:
    """From 1 to 6 processes."""
    path = built("t5", tiny_folder)
    async with group_of(path, form, started.have(path, count), started.port, () if even else UNEVEN[count]) as host:
        await check(path, "t5", host, compute)
