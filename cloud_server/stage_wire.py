"""A step on its way through the pipeline, as tensors: what one stage sends to the next, and the last to the first.

Three tensors at most: a head of ``FIELDS`` numbers (int64); the table (int64), for each span start, rows, number of
pages and the pages; the hidden states ``[rows, hidden]``. Stages keep no memory of sessions, so all a stage must know
of a step is in them. An empty step is a head alone: it shows that every stage is there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from cloud_server.pool import PagedSpan

MAGIC = int.from_bytes(b"trilby\x00\x01", "big")
FIELDS = 7


class BadHead(Exception):
    """What came is no head of this pipeline: one of its ends is not what it should be."""


@dataclass(frozen=True)
class Head:
    """What is known of a step before its table and its rows are there.

    Attributes:
        number: of the step, from 1 on in the order of computing; 0: an empty step.
        failed: the stage that could not compute it; -1 as long as none has.
        microseconds: how long the stages so far have computed.
        table: numbers in the table; 0 on the way back, where nobody needs it.
        rows: of hidden states that follow.
        generation: which start of the pipeline this belongs to.
    """

    number: int = 0
    failed: int = -1
    microseconds: int = 0
    table: int = 0
    rows: int = 0
    generation: int = 0

    @property
    def has_rows(self) -> bool:
        """Whether hidden states belong to it: it is not empty, and no stage has failed."""
        return bool(self.number) and self.failed < 0

    def tensor(self) -> torch.Tensor:
        """int64 ``[FIELDS]``."""
        numbers = (MAGIC, self.number, self.failed, self.microseconds, self.table, self.rows, self.generation)
        return torch.frombuffer(array("q", numbers), dtype=torch.int64)

    @classmethod
    def read(cls, numbers: torch.Tensor, generation: int) -> Head:
        """The head in int64 ``[FIELDS]``. Raises ``BadHead``, also where it is of another generation."""
        magic, *rest = numbers.tolist()
        head = cls(*rest)
        if magic != MAGIC or head.generation != generation:
            raise BadHead("the numbers are not a step of this pipeline")
        if min(head.table, head.rows) < 0:
            raise BadHead("a length is negative")
        return head


def table_of(spans: Sequence[PagedSpan]) -> torch.Tensor:
    """The spans as int64 numbers, one after the other."""
    numbers = array("q")
    for span in spans:
        numbers.extend((span.start, span.rows, len(span.pages)))
        numbers.extend(span.pages)
    return torch.frombuffer(numbers, dtype=torch.int64)


def spans_of(table: torch.Tensor) -> list[PagedSpan]:
    """The spans in a table."""
    numbers = table.tolist()
    spans, at = [], 0
    while at < len(numbers):
        start, rows, count = numbers[at : at + 3]
        at += 3 + count
        spans.append(PagedSpan(tuple(numbers[at - count : at]), start, rows))
    return spans


def stage_layers(first: int, last: int, stages: int) -> list[range]:
    """Layers ``first`` up to, not including, ``last``, cut evenly; where it does not come out, later stages have more.

    The first stage is the process that also serves the devices, so it never has more than another.
    Raises ``ValueError`` where a stage would be left without layers.
    """
    layers = last - first
    if not 1 <= stages <= layers:
        raise ValueError(f"{layers} layers cannot be shared by {stages} stages")
    cuts = [first + stage * layers // stages for stage in range(stages + 1)]
    return [range(begin, end) for begin, end in pairwise(cuts)]
