"""Sessions as they are read off the frames that carried them."""

from __future__ import annotations

import pytest
import torch

from device_agent.auditing.attack import UNTRIED, Reading
from device_agent.auditing.scoring import drafted, output, rows_that_count
from device_agent.auditing.transcript import Passed, Recorded, transcripts
from split_model.packed_rows import pack
from split_model.tensor_bytes import to_bytes
from wire.frames import Tensor, encode
from wire.limits import PART_BYTES
from wire.message import Heartbeat
from wire.messages import AnyMessage
from wire.parts import first_part, further_part
from wire.session_messages import Close, Forward, Keep, Open, Result, Truncate

HIDDEN = 8


def rows(count: int, seed: int) -> torch.Tensor:
    """Random rows."""
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def passed(up: bool, message: AnyMessage, hidden: torch.Tensor | None = None, packed: bool = False) -> Passed:
    """A frame that passes whole."""
    tensors = [] if hidden is None else [Tensor(*pack(hidden), True) if packed else Tensor(*to_bytes(hidden))]
    return Passed(up, 0.0, bytes(encode(message, tensors)))


def test_rows_come_out_as_they_went_in() -> None:
    """Packed or not, in parts or whole, up and down; what else passes is left out."""
    long = rows(2 * PART_BYTES // (4 * HIDDEN), 0)
    frame = memoryview(encode(Forward(3, 0, 0, 1), [Tensor(*to_bytes(long))]))
    parts = [first_part(9, frame), *(further_part(9, frame, at) for at in (PART_BYTES, 2 * PART_BYTES))]
    talk = [
        passed(True, Open(3, 9000)),
        Passed(True, 0.0, bytes(parts[0])),
        passed(False, Heartbeat(1)),
        *(Passed(True, 0.0, bytes(part)) for part in parts[1:]),
        passed(False, Result(3, 0, 1, 1, 1), rows(1, 1)),
        passed(True, Forward(3, 1, len(long), 2), rows(64, 2), packed=True),
        passed(False, Result(3, 1, 1, 1, 1), rows(2, 3)),
        passed(True, Truncate(3, len(long) + 1)),
        passed(True, Close(3)),
    ]
    [found] = transcripts(talk).values()
    assert [each.position for each in found.sent] == [0, len(long)] and found.end == len(long) + 1
    assert torch.equal(found.sent[0].rows, long) and torch.equal(found.sent[1].rows, rows(64, 2))
    answers = found.answers
    last = len(long) + 64
    assert list(answers) == [len(long) - 1, last - 2, last - 1]
    assert torch.equal(torch.stack([answers[last - 2], answers[last - 1]]), rows(2, 3))
    assert found.prompt_bytes == sum(len(each.data) for each in talk[:5] if each.up)


def test_trees_are_not_read() -> None:
    """An audit drafts chains; whatever else came would be misread."""
    with pytest.raises(ValueError, match="Keep"):
        transcripts([passed(True, Open(1, 9)), passed(True, Keep(1, [0]))])


def test_what_counts_of_a_session() -> None:
    """Rows that stand, for the tokens at their positions; drafts that were rejected apart; of what came back, the rows
    from the prompt's last on."""
    talk = [
        passed(True, Open(1, 9)),
        passed(True, Forward(1, 0, 0, 1), rows(3, 0)),  # rows 0 to 2: the prompt
        passed(False, Result(1, 0, 1, 1, 1), rows(1, 1)),
        passed(True, Forward(1, 1, 3, 3), rows(3, 2)),  # row 3: the first token; rows 4 and 5: a draft
        passed(False, Result(1, 1, 1, 1, 1), rows(3, 3)),
        passed(True, Truncate(1, 5)),  # row 4 was right, row 5 wrong
        passed(True, Forward(1, 2, 5, 1), rows(1, 4)),  # row 6
        passed(False, Result(1, 2, 1, 1, 1), rows(1, 5)),
        passed(True, Close(1)),
    ]
    [found] = transcripts(talk).values()
    recorded = Recorded((10, 11, 12), (13, 14, 15, 16), (2, 1), tuple(talk))
    assert rows_that_count(recorded, found, 1) == [(1, 11), (2, 12), (3, 13), (4, 14), (6, 15)]
    reading = Reading(torch.zeros(7, dtype=torch.int64), torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1e-6, 0.0]))
    counts = drafted([reading], [found], 1e-3)
    assert (counts.sent, counts.rejected, counts.tried, counts.read) == (7, 1, 1, 1)
    out_of_time = Reading(torch.full((7,), UNTRIED), torch.full((7,), float("inf")))
    assert drafted([out_of_time], [found], 1e-3).tried == 0, "what nobody looked at is not safe"
    right = output([recorded], [found], [{2: 13, 3: 14, 4: 15, 5: 99, 6: 1}])
    assert (right.right, right.tried) == (3, 4)
