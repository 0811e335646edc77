"""A step on its way through the pipeline, as tensors: what one stage sends to the next, and the last to the first.

Three tensors at most: a head of ``FIELDS`` numbers (int64); the table (int64); the hidden states ``[rows, hidden]``.
The table has the number of moves and the moves, then for each span start, rows, number of pages, number of nodes, the
pages and the parents of the nodes: none where the rows are simply the next positions. Stages keep no memory of
sessions, so all a stage must know of a step is in them. An empty step is a head alone: it shows that every stage is
there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cloud_server.cache.pool import Moves
from cloud_server.cache.span import PagedSpan
from split_model.tree import TRUNK, Tree

FIELDS = 5


class BadHead(Exception):
    """What came is no head of a step: one of the pipeline's ends is not what it should be."""


@dataclass(frozen=True)
class StepHead:
    """What is known of a step before its table and its rows are there.

    Attributes:
        number: of the step, from 1 on in the order of computing; 0: an empty step.
        failed: the stage that could not compute it; -1 as long as none has.
        microseconds: how long the stages so far have computed.
        table: numbers in the table; 0 on the way back, where nobody needs it.
        rows: of hidden states that follow.
    """

    number: int = 0
    failed: int = -1
    microseconds: int = 0
    table: int = 0
    rows: int = 0

    @property
    def has_rows(self) -> bool:
        """Whether hidden states belong to it: it is not empty, and no stage has failed."""
        return bool(self.number) and self.failed < 0

    def tensor(self) -> torch.Tensor:
        """int64 ``[FIELDS]``."""
        numbers = (self.number, self.failed, self.microseconds, self.table, self.rows)
        return torch.frombuffer(array("q", numbers), dtype=torch.int64)

    @classmethod
    def read(cls, numbers: torch.Tensor) -> StepHead:
        """The head in int64 ``[FIELDS]``. Raises ``BadHead``."""
        head = cls(*numbers.tolist())
        if min(head.table, head.rows) < 0:
            raise BadHead("a length is negative")
        return head


def table_of(spans: Sequence[PagedSpan], moves: Moves = ()) -> torch.Tensor:
    """Moves and spans as int64 numbers, one after the other. All nodes of a span that branches are new in it."""
    numbers = array("q", (len(moves),))
    for move in moves:
        numbers.extend(move)
    for span in spans:
        parents: list[int] = []
        if span.branching is not None:
            parents = [path[-2] if len(path) > 1 else TRUNK for path in span.branching.seen]
            assert len(parents) == len(span.branching.positions)
        numbers.extend((span.start, span.rows, len(span.pages), len(parents)))
        numbers.extend(span.pages)
        numbers.extend(parents)
    return torch.frombuffer(numbers, dtype=torch.int64)


def spans_of(table: torch.Tensor) -> tuple[list[PagedSpan], Moves]:
    """The spans and moves in a table; none where it is empty."""
    numbers = table.tolist()
    if not numbers:
        return [], ()
    at = 1 + 3 * numbers[0]
    moves = list(zip(numbers[1:at:3], numbers[2:at:3], numbers[3:at:3], strict=True))
    spans = []
    while at < len(numbers):
        start, rows, count, nodes = numbers[at : at + 4]
        at += 4
        pages, parents = tuple(numbers[at : at + count]), numbers[at + count : at + count + nodes]
        at += count + nodes
        spans.append(PagedSpan(pages, start, rows, Tree(start).add(parents) if parents else None))
    return spans, moves
