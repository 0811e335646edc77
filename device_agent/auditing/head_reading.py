"""The output side: the cloud computes the last hidden states itself, and the head of a public model is public.

The row that it returns for a position says which token comes next. Where the device keeps layers at the end
(``--tail``) the rows are not the last ones, and the head is asked all the same.
"""

from __future__ import annotations

import torch

from split_model.stack import Head

ROWS_AT_ONCE = 256


def next_tokens(head: Head, rows: torch.Tensor) -> torch.Tensor:
    """int64 ``[rows]``: the likeliest token behind each of the rows ``[rows, hidden_size]`` that the cloud returned."""
    found = [head.forward(part).argmax(dim=1) for part in torch.split(rows, ROWS_AT_ONCE)]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)
