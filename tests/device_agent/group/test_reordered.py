"""The two orders of one attention say the same, however the rows come."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import build_tiny

from device_agent.group.forms.reordered import attend_reordered
from device_agent.group.rows.step_rows import GroupStretch, StepRows
from split_model.blocks import Block
from split_model.checkpoint import Checkpoint


@pytest.fixture(scope="module", params=["bert", "llama-biases"])
def block(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Block:
    """Biases on keys and values, which Eq. 8 leaves out and adds once; KV heads that are shared, unturned here."""
    folder = build_tiny(request.param, tmp_path_factory.mktemp("model"))
    return Block(Checkpoint.open(folder, None), 0, torch.float32, apart=True, plain=True)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.booleans(), st.data())
@settings(max_examples=60, deadline=None)
def test_eq_8_is_eq_3(block: Block, lengths: list[int], all_see_all: bool, data: st.DataObject) -> None:
    """Any rows of several texts, tiles in any order, causal or not, with a window or none."""
    rows = sum(lengths)
    first = data.draw(st.integers(0, rows - 1))
    mine = range(first, data.draw(st.integers(first + 1, rows)))
    ends = sorted({0, rows, *data.draw(st.lists(st.integers(1, rows), max_size=3))})
    tiles = data.draw(st.permutations([range(begin, end) for begin, end in pairwise(ends)]))
    block.window = None if all_see_all else data.draw(st.sampled_from([None, 1, 4]))
    alone = cast("Any", None)
    on = StepRows(alone, (0,), 0, GroupStretch.whole_texts(lengths), None, all_see_all)
    normed = torch.randn(rows, 32, generator=torch.Generator().manual_seed(rows))
    with torch.inference_mode():
        q = block.qkv.query(normed[mine.start : mine.stop])
        wanted = on.look(block, on.store([], *block.qkv.key_value(normed)), q, mine)
        [found] = attend_reordered([block], on, [q], mine, normed, tiles)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
