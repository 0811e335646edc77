"""How layers are cut into stages, and how a step is laid out as tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloud_server.cache.moving import NOWHERE, Move
from cloud_server.cache.span import PagedSpan
from cloud_server.stages.plan import stage_layers
from cloud_server.stages.step_wire import BadHead, StepHead, spans_of, table_of
from split_model.tree import Tree

PAGE_NUMBERS = st.lists(st.integers(0, 2**40), max_size=9).map(tuple)


@st.composite
def branching_spans(draw: st.DrawFn) -> PagedSpan:
    """A span whose rows may branch."""
    start, rows = draw(st.integers(0, 2**40)), draw(st.integers(1, 8))
    parents = [draw(st.integers(-1, node - 1)) for node in range(rows)]
    return PagedSpan(draw(PAGE_NUMBERS), start, rows, Tree(start).add(parents))


SPANS = st.lists(
    st.one_of(st.builds(PagedSpan, PAGE_NUMBERS, st.integers(0, 2**40), st.integers(0, 4096)), branching_spans()),
    min_size=1,
    max_size=6,
)
MOVES = st.lists(st.tuples(st.integers(NOWHERE, 2**40), st.integers(0, 2**40), st.integers(1, 2**40)), max_size=5)


@given(first=st.integers(0, 50), layers=st.integers(1, 100), data=st.data())
def test_stages_share_all_layers_evenly(first: int, layers: int, data: st.DataObject) -> None:
    """Every layer is in exactly one stage, in order; no stage has two more than another, the first none more."""
    stages = data.draw(st.integers(1, layers))
    shares = stage_layers(first, first + layers, stages)
    assert [layer for share in shares for layer in share] == list(range(first, first + layers))
    sizes = [len(share) for share in shares]
    assert len(sizes) == stages and max(sizes) - min(sizes) <= 1 and sizes[0] == min(sizes)


@pytest.mark.parametrize("stages", [0, -1, 4])
def test_a_stage_without_layers_is_refused(stages: int) -> None:
    """Three layers cannot be shared by four stages, nor by none."""
    with pytest.raises(ValueError, match="cannot be shared"):
        stage_layers(2, 5, stages)


@given(SPANS, MOVES)
def test_spans_and_moves_come_back_from_their_table(spans: list[PagedSpan], moves: list[Move]) -> None:
    """Whatever they are, empty spans and those without pages too, the table gives them back."""
    assert spans_of(table_of(spans, moves)) == (spans, moves)


def test_no_table_is_no_spans() -> None:
    """What stays empty because nothing was sent reads as no spans."""
    assert spans_of(torch.empty(0, dtype=torch.int64)) == ([], ())


def test_a_head_comes_back() -> None:
    """All fields survive, also the mark of a step that has failed."""
    for head in (StepHead(7, -1, 1234, 50, 3), StepHead(8, 3, 9)):
        assert StepHead.read(head.tensor()) == head


def test_only_steps_with_rows_have_rows() -> None:
    """An empty step and a failed one bring no hidden states; a step does, whatever its number of rows."""
    assert not StepHead().has_rows
    assert not StepHead(4, failed=0).has_rows
    assert StepHead(4, rows=2).has_rows and StepHead(4).has_rows


@pytest.mark.parametrize("numbers", [[1, -1, 0, -5, 0], [1, -1, 0, 0, -5]])
def test_a_head_that_is_none_is_refused(numbers: list[int]) -> None:
    """Nothing is taken for a length that is none."""
    with pytest.raises(BadHead):
        StepHead.read(torch.tensor(numbers))
