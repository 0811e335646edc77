"""Rows as bytes: what torch says of them, without torch's threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
import torch

from split_model.history import History
from split_model.tensor_bytes import finite, joined


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite(dtype: torch.dtype) -> None:
    """Large, small and negative numbers are; one NaN or infinity anywhere is not."""
    rows = torch.randn(5, 7).to(dtype)
    rows[0, :4] = torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min, 0.0, torch.finfo(dtype).tiny])
    assert finite(rows) and finite(rows[1:3]) and finite(rows[:0])
    for bad in (float("nan"), float("inf"), -float("inf")):
        spoilt = rows.clone()
        spoilt[4, 6] = bad
        assert not finite(spoilt) and finite(spoilt[:4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_joined(dtype: torch.dtype) -> None:
    """As torch would, parts of other tensors included."""
    rows = torch.randn(20, 3).to(dtype)
    pieces = [rows[:1], rows[1:8], rows[10:20]]
    assert torch.equal(joined(pieces), torch.cat(pieces))
    assert joined(pieces[1:2]) is pieces[1]


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads as Linux shows them")
def test_no_second_team_of_threads() -> None:
    """A thread that looks at large rows and joins them for a replay gets no team of its own; torch would make one."""
    torch.set_num_threads(2)
    rows = torch.zeros(512, 4096)
    history = History()
    for begin in range(0, 256, 32):
        history.append(rows[begin : begin + 32])

    def threads_made(work: Callable[[], object]) -> int:
        made = []

        def run() -> None:
            torch.set_num_threads(2)
            before = set(os.listdir("/proc/self/task"))
            work()
            made.append(len(set(os.listdir("/proc/self/task")) - before))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return made[0]

    assert threads_made(lambda: torch.isfinite(rows).all()) > 0, "else this shows nothing"
    assert threads_made(lambda: finite(rows)) == 0
    assert threads_made(lambda: history.rows(10, 200)) == 0
