"""Tensor-parallel shards of a model in two processes, and what ends their waits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from checkpoints import DEMO
from oracle import oracle_tokens, prompt_for
from processes import stop_all_threads

from peers.board import PeerLost
from peers.rendezvous import listening
from peers.tensors import over_links
from split_model.checkpoint import Checkpoint
from split_model.reference import Reference
from split_model.slices import Slice, shards
from split_model.stack import Embedding, Head, Span, Stack

ROOT = Path(__file__).resolve().parents[2]
SECRET = "a secret of this test"
TOKENS = 12
WITHIN_S = 120.0

MEMBER = """
import asyncio, os, sys
import torch
from peers.membership import join
from peers.tensors import over_links
from split_model.checkpoint import Checkpoint
from split_model.slices import Slice, shards
from split_model.stack import Span, Stack

def work(member, folder, shares):
    checkpoint = Checkpoint.open(folder)
    spec = checkpoint.spec
    held = shards(spec, Slice(0, spec.num_layers), *shares)[member.rank]
    stack = Stack.load(checkpoint, held, torch.float32)
    cache = stack.new_cache(200)
    member.board.post(f"ready/{member.rank}", b"")
    member.board.get("go", 120.0)
    group = over_links(member.board, member.rank, member.size, member.address)
    while True:
        # The host says how many rows, and gives them by its part of the sum.
        rows = int(group.sum(torch.zeros(1))[0])
        hidden = group.sum(torch.zeros(rows, spec.hidden_size))
        stack.forward(hidden, [Span(cache, rows)], group.sum)

async def main():
    where, folder, *shares = sys.argv[1:]
    shares = [[float(each) for each in share.split(",")] for share in shares]
    async with join(where, os.environ["SECRET"], "member") as member:
        try:
            await asyncio.to_thread(work, member, folder, shares)
        except RuntimeError:
            pass

asyncio.run(main())
"""


@contextmanager
def member_process(where: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """The other member, ended with the block."""
    environment = {**os.environ, "SECRET": SECRET, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MEMBER, where, *arguments]
    with subprocess.Popen(command, env=environment, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.system
@pytest.mark.parametrize(("heads", "columns"), [((1, 1), (5, 2)), pytest.param((0, 1), (1, 1), marks=pytest.mark.slow)])
async def test_shards_in_two_processes_give_transformers_tokens(
    heads: tuple[float, ...], columns: tuple[float, ...]
) -> None:
    """The demo model, its heads and columns parted evenly and not; then the other dies, and the wait for it ends."""
    checkpoint = Checkpoint.open(DEMO)
    spec = checkpoint.spec
    held = shards(spec, Slice(0, spec.num_layers), heads, columns)
    stack = Stack.load(checkpoint, held[0], torch.float32)
    embedding = Embedding.load(checkpoint, torch.float32)
    head = Head.load(checkpoint, spec, torch.float32, embedding)
    prompt = prompt_for(DEMO, 20)

    async with listening("127.0.0.1", 0, SECRET) as rendezvous:
        group = rendezvous.open(1, {1: b""})
        where = f"127.0.0.1:{rendezvous.port}"
        shares = [",".join(map(str, each)) for each in (heads, columns)]
        with member_process(where, str(DEMO), *shares) as other:

            def lead() -> list[int]:
                group.board.get("ready/1", WITHIN_S)
                group.board.post("go", b"")
                tensors = over_links(group.board, 0, 2, "127.0.0.1")

                class Parted(Stack):
                    def forward(self, hidden: torch.Tensor, spans: list[Span], *_: object) -> torch.Tensor:  # type: ignore[override]
                        tensors.sum(torch.tensor([float(len(hidden))]))
                        tensors.sum(hidden)
                        return super().forward(hidden, spans, tensors.sum)

                whole = Parted(spec, held[0], stack.blocks, torch.float32)
                found = Reference(embedding, whole, head).generate(prompt, TOKENS)
                os.kill(other.pid, signal.SIGKILL)
                with pytest.raises(RuntimeError):
                    for _ in range(2):  # Its part of the first may have come before it died.
                        tensors.sum(torch.zeros(1))
                return found

            found = await asyncio.to_thread(lead)
            assert "gone" in await asyncio.wait_for(group.ended, 20)
    wanted = oracle_tokens(DEMO, prompt, TOKENS)
    assert found == wanted[: len(found)] and (len(found) == TOKENS or found[-1] in spec.eos_token_ids)


@pytest.mark.system
async def test_a_member_that_hangs_does_not_hold_the_others() -> None:
    """Who waits for somebody that is stopped is freed by ``abort``, on whatever thread, and never by itself."""
    async with listening("127.0.0.1", 0, SECRET) as rendezvous:
        group = rendezvous.open(1, {1: b""})
        with member_process(f"127.0.0.1:{rendezvous.port}", str(DEMO), "1,1", "1,1") as other:

            def reach() -> object:
                group.board.get("ready/1", WITHIN_S)
                group.board.post("go", b"")
                return over_links(group.board, 0, 2, "127.0.0.1")

            tensors = await asyncio.to_thread(reach)
            stop_all_threads(other.pid)
            began = threading.Event()

            def hang() -> None:
                began.set()
                for _ in range(2):  # Its part of the first has come already.
                    tensors.sum(torch.zeros(1))  # type: ignore[attr-defined]

            waiting = asyncio.create_task(asyncio.to_thread(hang))
            await asyncio.to_thread(began.wait, 10)
            await asyncio.sleep(0.2)
            assert not waiting.done()
            tensors.abort()  # type: ignore[attr-defined]
            with pytest.raises(RuntimeError):
                await asyncio.wait_for(waiting, 10)
            group.end("enough")
    with pytest.raises(PeerLost):
        group.board.get("more", 1.0)
